"""Which sequence gives up its blocks when a decoding one needs a block and none is available, or when a request finds
no room that batch requests must not keep waiting.

Preemption is by recompute (vLLM, Kwon et al., SOSP 2023): the victim's blocks are released, its full ones stay
reusable, and it computes prompt and outputs again later. Remote prefills are never chosen: their blocks may be on their
way to another worker.
"""

from __future__ import annotations

from collections import abc

from relevo.policy.worker.fair_turns import Shares, flow_of, rank_of
from relevo.policy.worker.worker_requests import Sequence


def choose_victim(running: abc.Sequence[Sequence], blocks: Shares) -> Sequence | None:
    """Of the worst rank, of the flow that holds most blocks there for its weight: lowest priority, then latest
    arrival. `running` is in order of service. None: only remote prefills run."""
    able = [sequence for sequence in running if not sequence.parent.is_remote_prefill]
    worst = max((rank_of(sequence.parent.request) for sequence in able), default=0)
    last = {
        flow_of(sequence.parent.request): sequence for sequence in able if rank_of(sequence.parent.request) == worst
    }
    return last[max(last, key=lambda flow: (blocks.of(flow), last[flow].key))] if last else None


def choose_batch_victim(running: abc.Sequence[Sequence]) -> Sequence | None:
    """The last batch continuation in order of service; None: there is none to give way."""
    return next(
        (b for b in reversed(running) if not b.parent.is_remote_prefill and b.parent.request.terms.is_batch), None
    )
