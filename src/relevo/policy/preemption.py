"""Who gives up its blocks when a decoding continuation needs one and none is available, or when somebody finds no room
whom batch requests must not keep waiting.

Preemption is by recompute (vLLM, Kwon et al., SOSP 2023): the victim's blocks are released, its full ones stay
reusable, and it computes prompt and outputs again later. Prefill legs are never chosen: their blocks may be on their
way to another worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from relevo.policy.legs import Branch


def choose_victim(running: Sequence[Branch]) -> Branch | None:
    """Lowest priority, then latest arrival; `running` is in order of service. None: only prefill legs run."""
    return next((branch for branch in reversed(running) if not branch.leg.is_prefill_leg), None)


def choose_batch_victim(running: Sequence[Branch]) -> Branch | None:
    """The last batch continuation in order of service; None: there is none to give way."""
    victim = choose_victim(running)
    return victim if victim is not None and victim.leg.request.terms.is_batch else None
