"""What a request becomes as spans: complete, each within its parent, workers' time told as theirs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from told_timelines import DECODE, OTHER, PREFILL, facts, leg, ns, ordinary, whole_leg

from relevo.core.outcome import COMPLETE, Cause, RequestEnd
from relevo.core.timeline import Preemption, Timeline
from relevo.policy.tracing.request_spans import MAX_FAILURE_CHARS, spans_of
from relevo.policy.tracing.trace_context import TraceContext
from relevo.policy.tracing.words import (
    MAX_PROMPTS,
    AttemptTrace,
    CallTrace,
    Generation,
    PlannedSpan,
    PromptTrace,
    SpanKind,
)

OWN = TraceContext(trace_id=7, span_id=8, is_sampled=True)


def prompt_of(timeline: Timeline, end: RequestEnd = COMPLETE, **parts: object) -> PromptTrace:
    given_parts = {
        "request_id": "r0",
        "num_prompt_tokens": 400,
        "num_cached_tokens": 16,
        "num_output_tokens": 100,
        "finish_reasons": ("stop",),
    } | parts
    return PromptTrace(timeline=timeline, end=end, **given_parts)  # type: ignore[arg-type]


def call_of(*prompts: PromptTrace, **parts: object) -> CallTrace:
    asked = Generation(
        operation="chat",
        model="tiny",
        response_id="chatcmpl-1",
        is_streamed=True,
        num_choices=1,
        max_tokens=128,
        conversation="0f0f",
    )
    given_parts = {"status": 200, "generation": asked, "ends_ns": ns(1.252)} | parts
    call = CallTrace(
        own=OWN,
        parent_id=0,
        method="POST",
        route="/v1/chat/completions",
        begins_ns=ns(0.0),
        **given_parts,  # type: ignore[arg-type]
    )
    call.ended_with(COMPLETE, prompts)
    return call


def named(spans: Sequence[PlannedSpan], name: str) -> PlannedSpan:
    (found,) = [span for span in spans if span.name == name]
    return found


def is_well_nested(spans: Sequence[PlannedSpan]) -> bool:
    for place, span in enumerate(spans):
        if span.ends_ns < span.begins_ns or (span.parent is None) != (place == 0):
            return False
        if span.parent is not None:
            around = spans[span.parent]
            if span.parent >= place or not around.begins_ns <= span.begins_ns <= span.ends_ns <= around.ends_ns:
                return False
    return True


def test_a_split_request_is_told_by_phases_and_by_the_workers_they_were_on() -> None:
    timeline = ordinary()
    timeline.legs[0].ended_at_ns = ns(1.25)
    spans = spans_of(call_of(prompt_of(timeline)))
    assert is_well_nested(spans)
    assert (spans[0].name, spans[1].name) == ("POST /v1/chat/completions", "leg")
    assert {(span.name, span.worker) for span in spans[1:]} == {
        ("leg", None),
        ("prepare", None),
        ("line", None),
        ("room", DECODE),
        ("prefill", PREFILL),
        ("messages", None),
        ("first_write", None),
        ("handoff", DECODE),
        ("decode", DECODE),
        ("settle", None),
    }
    assert (spans[0].begins_ns, spans[0].ends_ns) == (ns(0.0), ns(1.252))
    assert {span.name for span in spans if span.parent == 1} == {
        *("room", "prefill", "messages", "first_write", "handoff", "decode")
    }
    assert named(spans, "prefill").kind is SpanKind.SERVER and named(spans, "leg").kind is SpanKind.CLIENT
    assert named(spans, "decode").attributes["relevo.worker.epoch"] == 1
    assert {span.failure for span in spans} == {None}


def test_a_call_is_told_by_the_conventions_of_generative_ai() -> None:
    told = spans_of(call_of(prompt_of(ordinary())))[0]
    assert told.kind is SpanKind.SERVER
    assert told.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "relevo",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.stream": True,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.max_tokens": 128,
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": pytest.approx(0.221),
        "gen_ai.usage.input_tokens": 400,
        "gen_ai.usage.output_tokens": 100,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "gen_ai.conversation.id": "0f0f",
        "relevo.num_prompts": 1,
        "relevo.request_id": "r0",
        "relevo.cause": "own_output",
        "relevo.explanation": told.attributes["relevo.explanation"],
        "relevo.num_legs": 1,
        "relevo.num_preemptions": 0,
        "relevo.ttft_s": pytest.approx(0.221),
    }


def test_a_failed_leg_says_why_and_another_follows() -> None:
    """Red when a failover looks like one attempt, or the second worker's time is the first one's."""
    timeline = ordinary()
    timeline.legs = [
        leg(
            0.003,
            granted_s=0.004,
            first_output_s=0.22,
            ended_s=0.5,
            last_output_s=0.45,
            failure="decode-0 " + "x" * 999,
        ),
        whole_leg(0.51, decode=OTHER, is_resumed=True, first_output_s=0.8, facts=facts(), ended_s=1.25),
    ]
    spans = spans_of(call_of(prompt_of(timeline)))
    assert is_well_nested(spans)
    first, second = [span for span in spans if span.name == "leg"]
    assert first.failure is not None and first.failure.startswith("decode-0 x")
    assert len(first.failure) == MAX_FAILURE_CHARS
    assert (first.attributes["relevo.leg"], second.attributes["relevo.leg"]) == (1, 2)
    assert second.failure is None and second.attributes["relevo.is_resumed"] is True
    of_other = [span for span in spans if span.worker == OTHER]
    assert of_other and all(spans[span.parent or 0] is second for span in of_other)
    recover = named(spans, "recover")
    assert recover.worker is None and recover.attributes["relevo.worker.id"] == "decode-0"
    assert spans[0].failure is None, "the request itself has not failed"


def test_a_preemption_is_the_workers_time() -> None:
    timeline = ordinary()
    timeline.preemptions = [Preemption(at_ns=ns(0.5), worker=DECODE, resumed_at_ns=ns(0.75))]
    timeline.num_preemptions = 1
    spans = spans_of(call_of(prompt_of(timeline)))
    assert is_well_nested(spans)
    preempted = named(spans, "preempted")
    assert (preempted.begins_ns, preempted.ends_ns, preempted.worker) == (ns(0.5), ns(0.75), DECODE)
    assert spans[0].attributes["relevo.num_preemptions"] == 1


def test_several_prompts_have_a_span_each_up_to_a_bound() -> None:
    prompts = [prompt_of(ordinary(), request_id=f"r{number}") for number in range(MAX_PROMPTS + 3)]
    spans = spans_of(call_of(*prompts))
    assert is_well_nested(spans)
    told = [span for span in spans if span.name == "prompt"]
    assert [span.attributes["relevo.request_id"] for span in told] == [f"r{number}" for number in range(MAX_PROMPTS)]
    assert all(span.parent == 0 for span in told)
    assert spans[0].attributes["relevo.num_prompts"] == MAX_PROMPTS + 3
    assert spans[0].attributes["gen_ai.usage.input_tokens"] == 400 * (MAX_PROMPTS + 3)
    assert "relevo.cause" not in spans[0].attributes, "each prompt has its own"


def test_a_request_that_was_turned_away_is_a_span_with_its_error() -> None:
    refused = Timeline(accepted_at_ns=ns(0.0), prepared_at_ns=ns(0.001), num_ahead=3, ended_at_ns=ns(0.0011))
    end = RequestEnd.failed("overloaded", "too many", 1.0, "queue_full")
    call = call_of(prompt_of(refused, end, num_output_tokens=0, finish_reasons=()), status=429, error="overloaded")
    spans = spans_of(call)
    assert is_well_nested(spans)
    assert spans[0].attributes["error.type"] == "overloaded"
    assert spans[0].attributes["relevo.cause"] == "refused"
    assert spans[0].failure is None, "429 is no failure of the server"
    assert not [span for span in spans if span.name == "leg"]
    failed = spans_of(call_of(status=500, error="internal_error", has_failed=True, generation=None))
    assert (len(failed), failed[0].failure) == (1, "")


def test_a_call_that_asks_no_model_is_one_span() -> None:
    (span,) = spans_of(call_of(generation=None))
    assert not [name for name in span.attributes if name.startswith(("gen_ai.", "relevo."))]


times = st.none() | st.floats(-0.5, 2.0)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), cause=st.sampled_from(Cause), num_legs=st.integers(0, 3), num_prompts=st.integers(0, 2))
def test_spans_are_well_nested_whatever_the_marks(
    data: st.DataObject, cause: Cause, num_legs: int, num_prompts: int
) -> None:
    """Red when a mark out of order, or one that is missing, lets a span out of its parent."""

    def moment(label: str) -> int | None:
        at_s = data.draw(times, label=label)
        return None if at_s is None else ns(at_s)

    def drawn() -> Timeline:
        timeline = Timeline(accepted_at_ns=ns(data.draw(st.floats(-0.1, 1.0))))
        for name in (each for each in timeline.__slots__ if each.endswith("_at_ns") and each != "accepted_at_ns"):
            setattr(timeline, name, moment(name))
        for _ in range(num_legs):
            attempt = leg(data.draw(st.floats(-0.5, 2.0)), is_split=data.draw(st.booleans()))
            for name in (each for each in attempt.__slots__ if each.endswith("_at_ns") and each != "routed_at_ns"):
                setattr(attempt, name, moment(name))
            attempt.facts = data.draw(st.sampled_from([None, facts(), facts(queue_s=5.0, prefill_s=-1.0)]))
            timeline.legs.append(attempt)
        at_ns = moment("preempted")
        if at_ns is not None:
            timeline.preemptions.append(Preemption(at_ns=at_ns, worker=OTHER, resumed_at_ns=moment("resumed")))
        return timeline

    prompts = [prompt_of(drawn(), RequestEnd(cause=cause)) for _ in range(num_prompts)]
    spans = spans_of(call_of(*prompts, ends_ns=ns(data.draw(st.floats(-0.1, 2.0)))))
    assert is_well_nested(spans)
    assert len([span for span in spans if span.name == "leg"]) == num_legs * num_prompts


def test_an_edge_tells_of_every_region_that_it_asked() -> None:
    """Red when a region that was passed over does not show, or the span that the next process continues has another id
    than it was told."""
    asked = [
        AttemptTrace(
            region="east", context=OWN._replace(span_id=9), begins_ns=ns(0.1), ends_ns=ns(0.2), failure="refused"
        ),
        AttemptTrace(
            region="west",
            context=OWN._replace(span_id=10),
            begins_ns=ns(0.2),
            ends_ns=ns(0.3),
            status=429,
            failure="busy",
        ),
        AttemptTrace(region="north", context=OWN._replace(span_id=11), begins_ns=ns(0.3), status=200),
    ]
    spans = spans_of(call_of(generation=None, attempts=asked))
    assert is_well_nested(spans)
    assert [(span.own_id, span.kind, span.failure) for span in spans[1:]] == [
        (9, SpanKind.CLIENT, "refused"),
        (10, SpanKind.CLIENT, "busy"),
        (11, SpanKind.CLIENT, None),
    ]
    assert [span.attributes.get("error.type") for span in spans[1:]] == ["region_failed", "429", None]
    assert spans[3].ends_ns == spans[0].ends_ns
