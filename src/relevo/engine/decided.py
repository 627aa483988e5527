"""What a worker decided, for a decision log: of each request asked for, of steps, and of what follows from them.

Owns the translation only; without a log nothing is translated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from relevo.core.decisions import Decide, Decision, Fact, unlogged
from relevo.core.events import TokenOutput
from relevo.core.ids import RequestId
from relevo.core.plan import StepPlan
from relevo.policy.worker import effects
from relevo.policy.worker.block_pool import BlockPool
from relevo.wire import messages as wire

_ACCEPTED: dict[object, str] = {wire.Submit: "submit", wire.Reserve: "reserve", wire.Prefill: "prefill"}
_TAKEN_OVER = (wire.StartDecode, wire.ComputeReserved)


def with_evictions(decide: Decide, pool: BlockPool) -> Decide:
    """Before each decision, what the prefix cache has lost since the last one: in one line, however many steps it took,
    so that steps may be taken at once."""
    if decide is unlogged:
        return unlogged
    num_told = pool.num_evicted

    def tell(decision: Decision, subject: str = "", **facts: Fact) -> None:
        nonlocal num_told
        if pool.num_evicted != num_told:
            decide(Decision.EVICT, num_blocks=pool.num_evicted - num_told)
            num_told = pool.num_evicted
        decide(decision, subject, **facts)

    return tell


def tell_accepted(decide: Decide, request_id: RequestId, message: object) -> None:
    """What the message asks was taken."""
    kind = _ACCEPTED.get(type(message))
    if kind is not None:
        decide(Decision.ACCEPT, request_id, kind=kind)
    elif isinstance(message, _TAKEN_OVER):
        decide(Decision.TAKE_OVER, request_id)


def tell_effect(decide: Decide, effect: effects.Effect) -> None:
    match effect:
        case effects.Granted(reservation=room):
            num_blocks, num_hit_tokens = len(room.block_ids), room.num_hit_tokens
            decide(Decision.GRANT, effect.request_id, num_blocks=num_blocks, num_hit_tokens=num_hit_tokens)
        case effects.Refused(code=code):
            decide(Decision.REJECT, effect.request_id, code=code)
        case effects.Failed(code=code):
            decide(Decision.FAIL, effect.request_id, code=code)
        case effects.Dropped():
            decide(Decision.DROP, effect.request_id)
        case effects.HandedOver(num_sealed_tokens=num_tokens):
            decide(Decision.HAND_OVER, effect.request_id, num_tokens=num_tokens)


def tell_plan(decide: Decide, plan: StepPlan, planned: Sequence[RequestId], preempted: Iterable[RequestId]) -> None:
    """`planned`: the request of each row of the plan."""
    for request_id in preempted:
        decide(Decision.PREEMPT, request_id)
    for place in range(plan.num_decodes, plan.num_rows):
        start, num_tokens = plan.starts[place], plan.lengths[place]
        decide(Decision.CHUNK, planned[place], start=start, num_tokens=num_tokens, num_decodes=plan.num_decodes)


def tell_ends(decide: Decide, outputs: Iterable[Sequence[TokenOutput]]) -> None:
    for output in chain.from_iterable(outputs):
        if output.finish_reason is not None:
            decide(Decision.FINISH, output.request_id, sample=output.sample_index, reason=output.finish_reason.value)
