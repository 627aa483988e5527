"""The phases of a request from its marks: consecutive, from accepted to ended, without holes.

What a leg's marks mean is `leg_phases`'. Does not know causes. Source: docs/architecture.md, "Life of a request".
"""

from __future__ import annotations

from relevo.core.timeline import Timeline
from relevo.policy.slowness.leg_phases import lay_leg
from relevo.policy.slowness.spans import Facts, Span, SpanLine, merged, overlaid, split_at
from relevo.policy.slowness.words import PhaseName

_COMPUTING = (PhaseName.QUEUE, PhaseName.PREFILL, PhaseName.MESSAGES, PhaseName.HANDOFF, PhaseName.DECODE)
_AFTER_OUTPUT = (PhaseName.HANDOFF, PhaseName.DECODE, PhaseName.SETTLE)
_UNREAD_NS = 50_000_000  # a client that reads is never so far behind; arbitrary


def spans_of(timeline: Timeline, end_at_ns: int, *, is_complete: bool) -> list[Span]:
    """`end_at_ns`: where it ended, or now. `is_complete`: it ended with its last token, and not in the middle of
    something."""
    accepted_ns = timeline.accepted_at_ns
    line = SpanLine(accepted_ns, max(end_at_ns, accepted_ns))
    _lay_door(line, timeline)
    last_ns = _last_output_ns(timeline) if is_complete else line.limit_ns
    for number, leg in enumerate(timeline.legs):
        if number:
            failure: Facts = {"failure": timeline.legs[number - 1].failure}
            line.until(PhaseName.RECOVER, leg.routed_at_ns, timeline.legs[number - 1].decode.worker_id, failure, True)
        else:
            line.until(PhaseName.ROUTE, leg.routed_at_ns)
        next_ns = timeline.legs[number + 1].routed_at_ns if number + 1 < len(timeline.legs) else None
        lay_leg(line, leg, next_ns, min(last_ns, line.limit_ns))
    if timeline.legs:
        _lay_end(line, timeline, is_complete=is_complete)
    spans = _with_first_write(line.spans, timeline)
    for preemption in timeline.preemptions:
        ends_ns = preemption.resumed_at_ns
        if ends_ns is None:
            ends_ns = _lost_at_ns(timeline, preemption.at_ns) or line.limit_ns
        worker_id = preemption.worker.worker_id
        spans = overlaid(spans, preemption.at_ns, ends_ns, _COMPUTING, PhaseName.PREEMPTED, worker_id)
    if not is_complete and _waits_for_client(timeline, line.limit_ns):
        spans = overlaid(spans, timeline.last_output_at_ns or 0, line.limit_ns, _AFTER_OUTPUT, PhaseName.CLIENT)
    border_ns = first_token_ns(timeline, line.limit_ns)
    return merged(split_at(spans, border_ns) if border_ns is not None else spans, border_ns)


def first_token_ns(timeline: Timeline, end_at_ns: int) -> int | None:
    """When the first token was written to the client; None: none was."""
    if timeline.first_written_at_ns is None:
        return None
    return min(max(timeline.first_written_at_ns, timeline.accepted_at_ns), max(end_at_ns, timeline.accepted_at_ns))


def first_output_ns(timeline: Timeline) -> int | None:
    """When the first token was here."""
    return next((leg.first_output_at_ns for leg in timeline.legs if leg.first_output_at_ns is not None), None)


def _lay_door(line: SpanLine, timeline: Timeline) -> None:
    line.until(PhaseName.PREPARE, timeline.prepared_at_ns)
    facts: Facts = {"num_ahead": timeline.num_ahead}
    line.until(PhaseName.LINE, timeline.let_in_at_ns, facts=facts)
    if timeline.legs and timeline.let_in_at_ns is None:
        line.until(PhaseName.LINE, timeline.legs[0].routed_at_ns, facts=facts)
    elif not timeline.legs:  # it ended where it was
        if timeline.let_in_at_ns is not None:
            line.until(PhaseName.ROUTE, line.limit_ns)
        elif timeline.prepared_at_ns is not None:
            line.until(PhaseName.LINE, line.limit_ns, facts=facts)
        line.until(PhaseName.PREPARE, line.limit_ns)


def _lay_end(line: SpanLine, timeline: Timeline, *, is_complete: bool) -> None:
    last = timeline.legs[-1]
    if last.failure and not is_complete:
        line.until(PhaseName.RECOVER, line.limit_ns, last.decode.worker_id, {"failure": last.failure}, True)
    if is_complete and timeline.blocked_s > 0 and timeline.last_written_at_ns is not None:
        blocked_ns = round(timeline.blocked_s * 1e9)
        line.until(PhaseName.CLIENT, min(timeline.last_written_at_ns, line.cursor_ns + blocked_ns))
    line.until(PhaseName.SETTLE, line.limit_ns)


def _last_output_ns(timeline: Timeline) -> int:
    """Of a complete request, from where on nothing was computed."""
    seen = [timeline.last_output_at_ns, first_output_ns(timeline)]
    return max((at_ns for at_ns in seen if at_ns is not None), default=timeline.accepted_at_ns)


def _with_first_write(spans: list[Span], timeline: Timeline) -> list[Span]:
    output_ns, written_ns = first_output_ns(timeline), timeline.first_written_at_ns
    if output_ns is None or written_ns is None:
        return spans
    blocked_ns = min(round(timeline.blocked_first_s * 1e9), max(written_ns - output_ns, 0))
    spans = overlaid(spans, output_ns, written_ns - blocked_ns, _AFTER_OUTPUT, PhaseName.FIRST_WRITE)
    return overlaid(spans, written_ns - blocked_ns, written_ns, _AFTER_OUTPUT, PhaseName.CLIENT)


def _waits_for_client(timeline: Timeline, end_at_ns: int) -> bool:
    """The last tokens were here, and were not written for so long."""
    output_ns, written_ns = timeline.last_output_at_ns, timeline.last_written_at_ns
    is_behind = output_ns is not None and written_ns is not None and written_ns < output_ns
    return is_behind and end_at_ns - (output_ns or 0) >= _UNREAD_NS


def _lost_at_ns(timeline: Timeline, at_ns: int) -> int | None:
    """The end of the leg in which it was preempted, if it did not go on in it."""
    return next(
        (leg.ended_at_ns for leg in timeline.legs if leg.ended_at_ns is not None and leg.ended_at_ns >= at_ns), None
    )
