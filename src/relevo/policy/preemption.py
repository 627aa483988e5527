"""Who gives up its blocks when a decoding continuation needs one and none is available, or when somebody finds no room
whom batch requests must not keep waiting.

Preemption is by recompute (vLLM, Kwon et al., SOSP 2023): the victim's blocks are released, its full ones stay
reusable, and it computes prompt and outputs again later. Prefill legs are never chosen: their blocks may be on their
way to another worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from relevo.policy.fair_turns import Shares, party_of, rank_of
from relevo.policy.legs import Branch


def choose_victim(running: Sequence[Branch], blocks: Shares) -> Branch | None:
    """Of the worst rank, of the party that holds most blocks there for its weight: lowest priority, then latest
    arrival. `running` is in order of service. None: only prefill legs run."""
    able = [branch for branch in running if not branch.leg.is_prefill_leg]
    worst = max((rank_of(branch.leg.request) for branch in able), default=0)
    last = {party_of(branch.leg.request): branch for branch in able if rank_of(branch.leg.request) == worst}
    return last[max(last, key=lambda party: (blocks.of(party), last[party].key))] if last else None


def choose_batch_victim(running: Sequence[Branch]) -> Branch | None:
    """The last batch continuation in order of service; None: there is none to give way."""
    return next((b for b in reversed(running) if not b.leg.is_prefill_leg and b.leg.request.terms.is_batch), None)
