"""One state of the whole server: this gateway's, and what the others say of themselves."""

from __future__ import annotations

import msgspec

from relevo.gateway.console.gather import Report, gather
from relevo.gateway.console.intervals import INTERVAL_S, NUM_KEPT, NUM_LAST_MINUTE
from relevo.gateway.console.merge import merged
from relevo.gateway.console.state import State
from relevo.gateway.http.context import GatewayContext

# What a gateway is asked by another: its state with the last minute, or with all that is kept.
STATE, STATE_WITH_HISTORY = "state", "state_with_history"
_decoder = msgspec.msgpack.Decoder(Report)


def report_for_others(context: GatewayContext, question: str) -> bytes:
    """The answer of this gateway."""
    num_intervals = NUM_KEPT if question == STATE_WITH_HISTORY else NUM_LAST_MINUTE
    return msgspec.msgpack.encode(gather(context, context.watch, num_intervals=num_intervals))


async def read_state(context: GatewayContext, *, history_after: int = -1) -> State:
    """`history` is there where an interval has ended since the one of that number was under way. It is made once for
    each interval."""
    watch = context.watch
    number = int(watch.now_s()) // INTERVAL_S
    latest = watch.past.latest
    known = latest if latest is not None and latest.open_number == number else None
    with_history = number > history_after and known is None
    others: dict[str, Report | None] = {}
    if context.others is not None:
        answers = await context.others.states(STATE_WITH_HISTORY if with_history else STATE)
        others = {name: None if body is None else _decoder.decode(body) for name, body in answers.items()}
    own = gather(context, watch)
    state = merged(own, others)
    if number <= history_after:
        return state
    if not with_history:
        return msgspec.structs.replace(state, history=known)
    reports = [own, *(report for report in others.values() if report is not None)]
    names = [served.name for served in context.models]
    history = watch.past.history([report.intervals for report in reports], names, own.open_number)
    return msgspec.structs.replace(state, history=history)
