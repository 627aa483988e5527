"""Candidates that are phases: time in which the request waited, or was computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relevo.core.timeline import HitsLost, Leg, Timeline
from relevo.policy.slowness.amounts import count, seconds
from relevo.policy.slowness.candidate import Candidate, SlowPart
from relevo.policy.slowness.spans import Span
from relevo.policy.slowness.words import PhaseName, SlowCause

_SCARCE_FRACTION = 0.05  # of a worker's blocks: with less free, a whole request waits for blocks; arbitrary
_AMPLE_FRACTION = 0.5  # with so many free it is not blocks that are waited for; arbitrary
_GATEWAY = (PhaseName.PREPARE, PhaseName.MESSAGES, PhaseName.FIRST_WRITE, PhaseName.SETTLE)


def waits(spans: Sequence[Span], timeline: Timeline, border_ns: int) -> Iterator[Candidate]:
    """`border_ns`: when the first token was written, or the end."""
    of = {name: [span for span in spans if span.name is name and not span.is_lost] for name in PhaseName}
    yield from _at_the_door(of[PhaseName.LINE], of[PhaseName.ROUTE])
    yield from _for_room(of[PhaseName.ROOM], of[PhaseName.QUEUE])
    yield from _in_queue(of[PhaseName.QUEUE])
    for span in of[PhaseName.PREFILL]:
        yield from _computed_again(span)
    yield from _preempted(of[PhaseName.PREEMPTED], timeline, border_ns)
    yield from _worker_lost(spans, timeline, border_ns)
    own = [span for span in spans if span.name in _GATEWAY and not span.is_lost and not _is_held(span, timeline)]
    yield from _in_gateway(own, border_ns)
    yield from _slow_client(of[PhaseName.CLIENT], timeline, border_ns)


def took_s(spans: Sequence[Span]) -> float:
    return sum(span.took_ns for span in spans) / 1e9


def _part(spans: Sequence[Span], border_ns: int) -> SlowPart:
    """Where most of them lie."""
    before_ns = sum(span.took_ns for span in spans if span.begins_ns < border_ns)
    return SlowPart.FIRST_TOKEN if 2 * before_ns >= sum(span.took_ns for span in spans) else SlowPart.ANSWER


def _at_the_door(line: Sequence[Span], route: Sequence[Span]) -> Iterator[Candidate]:
    if line:
        num_ahead = int(line[0].facts.get("num_ahead", 0))
        ahead = f"{count(num_ahead, 'request')} {'was' if num_ahead == 1 else 'were'} ahead"
        why = ahead if num_ahead else "the workers had no room for it"
        yield _first(SlowCause.LINE, line, f"{seconds(took_s(line))} in the gateway's line: {why}")
    if route:
        yield _first(SlowCause.NO_WORKER, route, f"{seconds(took_s(route))} until a worker was ready")


def _for_room(room: Sequence[Span], queue: Sequence[Span]) -> Iterator[Candidate]:
    spans = [*room, *(span for span in queue if _is_out_of_blocks(span))]
    if not spans:
        return
    facts = spans[0].facts
    what, beside, detail = "room", "", ""
    if "num_free_blocks" in facts:
        free, total = int(facts["num_free_blocks"]), int(facts["num_total_blocks"])
        what, detail = ("a slot", "slot") if free >= _AMPLE_FRACTION * total else ("blocks", "")
        beside = (
            f": {count(int(facts['num_running']), 'stream')} ran there, {count(int(facts['num_waiting']), 'request')} "
            f"waited, {free:,} of {count(total, 'block')} free"
        )
    text = f"{seconds(took_s(spans))} waiting for {what} on {spans[0].worker_id}{beside}"
    yield _candidate(SlowCause.ROOM, spans, text, SlowPart.FIRST_TOKEN, detail)


def _is_out_of_blocks(span: Span) -> bool:
    facts = span.facts
    total = int(facts.get("num_total_blocks", 0))
    return total > 0 and int(facts.get("num_free_blocks", total)) < _SCARCE_FRACTION * total


def _in_queue(queue: Sequence[Span]) -> Iterator[Candidate]:
    spans = [span for span in queue if not _is_out_of_blocks(span)]
    if not spans:
        return
    facts, beside = spans[0].facts, ""
    num_tokens = int(facts.get("num_waiting_prefill_tokens", 0))
    num_waiting, num_running = int(facts.get("num_waiting", 0)), int(facts.get("num_running", 0))
    num_others = int(facts.get("num_neighbour_prompt_tokens", 0))
    if num_others > num_tokens:
        beside = f", which computed {count(num_others, 'prompt token')} of others meanwhile"
    elif num_tokens or num_waiting:
        beside = f": {count(num_waiting, 'request')} waited there, {count(num_tokens, 'prompt token')} were ahead"
    elif num_running:
        beside = f": {count(num_running, 'stream')} ran there"
    yield _first(SlowCause.WORKER_QUEUE, spans, f"{seconds(took_s(spans))} queued at {spans[0].worker_id}{beside}")


def _computed_again(span: Span) -> Iterator[Candidate]:
    num_lost = int(span.facts.get("num_lost_hit_tokens", 0))
    prompt, cached = int(span.facts.get("num_prompt_tokens", 0)), int(span.facts.get("num_cached_tokens", 0))
    num_computed = prompt - cached
    num_again = min(num_lost, num_computed)
    if num_again <= 0:
        return
    avoidable_s = span.took_ns / 1e9 * num_again / num_computed
    hits_lost = str(span.facts.get("hits_lost", HitsLost.EVICTED.value))
    cause = SlowCause.EVICTED_PREFIX if hits_lost == HitsLost.EVICTED.value else SlowCause.MOVED_PREFIX
    why = {
        HitsLost.EVICTED.value: "they had been cached and were evicted",
        HitsLost.WORKER_LOST.value: "the worker that had them cached is gone",
        HitsLost.MOVED.value: "another worker has them cached",
    }[hits_lost]
    text = (
        f"{seconds(avoidable_s)} computing again {num_again:,} of {count(prompt, 'prompt token')} on "
        f"{span.worker_id}: {why}"
    )
    yield Candidate(cause=cause, part=SlowPart.FIRST_TOKEN, avoidable_s=avoidable_s, telling=text, detail=hits_lost)


def _preempted(spans: Sequence[Span], timeline: Timeline, border_ns: int) -> Iterator[Candidate]:
    if not spans:
        return
    times = max(timeline.num_preemptions, len(timeline.preemptions))
    text = (
        f"{seconds(took_s(spans))} preempted on {spans[0].worker_id}"
        f"{f' ({times:,} times)' if times > 1 else ''}: its blocks went to other requests and were computed again"
    )
    yield _candidate(SlowCause.PREEMPTION, spans, text, _part(spans, border_ns))


def _worker_lost(spans: Sequence[Span], timeline: Timeline, border_ns: int) -> Iterator[Candidate]:
    lost = [span for span in spans if span.is_lost]
    failed = [*timeline.legs[:-1], *(leg for leg in timeline.legs[-1:] if leg.failure)]
    if not lost or not failed:
        return
    first, last = failed[0], timeline.legs[-1]
    why = f" ({first.failure})" if first.failure else ""
    more = f", and {count(len(failed) - 1, 'more attempt')} failed" if len(failed) > 1 else ""
    went_on = f"; {last.decode.worker_id} went on" if not last.failure else ""
    text = f"{seconds(took_s(lost))} because {_failed_worker(first)} was lost{why}{more}{went_on}"
    yield _candidate(SlowCause.WORKER_LOST, lost, text, _part(lost, border_ns))


def _failed_worker(leg: Leg) -> str:
    """The one that its failure names, if it names one of them."""
    names = [leg.decode.worker_id, *([leg.prefill.worker_id] if leg.prefill is not None else [])]
    return next((name for name in names if name in leg.failure), names[0])


def _in_gateway(spans: Sequence[Span], border_ns: int) -> Iterator[Candidate]:
    if not spans:
        return
    longest = max(spans, key=lambda span: span.took_ns)
    doing = {
        PhaseName.PREPARE: "reading and tokenizing it",
        PhaseName.MESSAGES: "on messages to and from the worker",
        PhaseName.FIRST_WRITE: "until the first token was written",
        PhaseName.SETTLE: "after the last token",
    }[longest.name]
    text = f"{seconds(took_s(spans))} in the gateway itself, {seconds(longest.took_ns / 1e9)} of it {doing}"
    yield _candidate(SlowCause.GATEWAY, spans, text, _part(spans, border_ns), longest.name.value)


def _is_held(span: Span, timeline: Timeline) -> bool:
    """More tokens came before the first was written: of a call or a stop string, which is not told in parts."""
    if span.name is not PhaseName.FIRST_WRITE or timeline.num_outputs < 2 or timeline.last_output_at_ns is None:
        return False
    mean_gap_ns = (timeline.last_output_at_ns - span.begins_ns) / (timeline.num_outputs - 1)
    return span.took_ns > mean_gap_ns


def _slow_client(spans: Sequence[Span], timeline: Timeline, border_ns: int) -> Iterator[Candidate]:
    waited_s = max(timeline.blocked_s, took_s(spans))
    if waited_s <= 0:
        return
    part = _part(spans, border_ns) if spans else SlowPart.ANSWER
    text = f"{seconds(waited_s)} waiting for the client to read tokens that were ready"
    yield Candidate(cause=SlowCause.SLOW_CLIENT, part=part, avoidable_s=waited_s, telling=text)


def _first(cause: SlowCause, spans: Sequence[Span], text: str) -> Candidate:
    return _candidate(cause, spans, text, SlowPart.FIRST_TOKEN)


def _candidate(cause: SlowCause, spans: Sequence[Span], text: str, part: SlowPart, detail: str = "") -> Candidate:
    return Candidate(cause=cause, part=part, avoidable_s=took_s(spans), telling=text, detail=detail)
