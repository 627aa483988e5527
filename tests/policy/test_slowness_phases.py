"""Phases of any timeline are consecutive and sum to what they are parts of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from told_timelines import DECODE, OTHER, PREFILL, counters, facts, gap, leg, ns, ordinary, told, whole_leg

from relevo.core.baton import PrefillFacts
from relevo.core.handoff import Link
from relevo.core.outcome import COMPLETE, Cause, RequestEnd
from relevo.core.timeline import Leg, Preemption, Timeline
from relevo.gateway.requests.report import explanation_json, explanation_of
from relevo.policy.slowness.explain import explain
from relevo.policy.slowness.words import Explanation, PhaseName

GONE = RequestEnd(cause=Cause.CLIENT_GONE)
FAILED = RequestEnd.failed("worker_unavailable", "no worker could go on")


def check_sums(explanation: Explanation) -> None:
    phases = explanation.phases
    at_s = 0.0
    for phase in phases:
        assert phase.took_s > 0
        assert phase.begins_s == pytest.approx(at_s, abs=1e-9), "no hole and no overlap"
        at_s = phase.begins_s + phase.took_s
    assert at_s == pytest.approx(explanation.e2e_s, abs=1e-9)
    if explanation.ttft_s is not None:
        before_s = sum(phase.took_s for phase in phases if phase.is_before_first_token)
        assert before_s == pytest.approx(explanation.ttft_s, abs=1e-9)
    flags = [phase.is_before_first_token for phase in phases]
    assert flags == sorted(flags, reverse=True), "first those before the first token"


def names(explanation: Explanation) -> list[str]:
    return [phase.name.value for phase in explanation.phases]


# ---- shapes ----------------------------------------------------------------------------------------------------------


def test_a_split_request_goes_through_all_of_its_phases() -> None:
    explanation = told(ordinary())
    check_sums(explanation)
    before = ["prepare", "line", "room", "messages", "prefill", "first_write"]
    assert names(explanation) == [*before, "handoff", "decode", "settle"]
    took = {phase.name.value: phase.took_s for phase in explanation.phases}
    assert took["prefill"] == pytest.approx(0.2)
    assert took["messages"] == pytest.approx(0.016)
    assert took["handoff"] == pytest.approx(0.014)
    workers = {phase.name.value: phase.worker_id for phase in explanation.phases}
    assert (workers["prefill"], workers["room"], workers["decode"]) == ("prefill-0", "decode-0", "decode-0")


def test_a_prompt_that_the_decode_worker_computes_has_no_handoff() -> None:
    local = leg(0.003, granted_s=0.004, prefill=DECODE, first_output_s=0.3, facts=facts(0.05, 0.2))
    explanation = told(ordinary(legs=[local], first_written_at_ns=ns(0.301)))
    check_sums(explanation)
    assert names(explanation)[2:] == ["room", "messages", "queue", "prefill", "first_write", "decode", "settle"]


def test_a_whole_request_waits_in_the_queue_of_its_worker() -> None:
    explanation = told(ordinary(legs=[whole_leg(0.003, first_output_s=0.22, facts=facts(0.1, 0.1))]))
    check_sums(explanation)
    assert names(explanation)[2:5] == ["messages", "queue", "prefill"]


def test_a_worker_that_did_not_hear_of_it_for_a_step_had_it_in_its_queue() -> None:
    """Red when what passes before a busy worker reads its messages is taken for the messages' own time."""
    made = whole_leg(0.003, first_output_s=0.8, facts=facts(0.1, 0.2))
    made.asked_counters, made.prompt_counters = replace(counters(5), busy_s=3.0), replace(counters(9), busy_s=3.7)
    timeline = ordinary(legs=[made], first_written_at_ns=ns(0.81))
    assert names(told(timeline))[2:4] == ["queue", "prefill"]
    check_sums(told(timeline))
    made.prompt_counters = replace(counters(9), busy_s=3.3)
    assert names(told(timeline))[2:5] == ["messages", "queue", "prefill"]


def test_a_leg_that_fails_before_the_first_token_is_followed_by_recovery() -> None:
    lost = leg(0.003, granted_s=0.004, ended_s=0.1, failure="decode-0 is gone")
    second = leg(0.15, decode=OTHER, granted_s=0.16, first_output_s=0.5, decode_output_s=0.52, facts=facts())
    explanation = told(ordinary(legs=[lost, second], first_written_at_ns=ns(0.501)))
    check_sums(explanation)
    assert names(explanation)[2:8] == ["room", "prefill", "recover", "room", "messages", "prefill"]


def test_a_leg_that_is_resumed_computes_again_after_the_first_token() -> None:
    first = leg(
        0.003,
        granted_s=0.004,
        first_output_s=0.22,
        decode_output_s=0.235,
        last_output_s=0.6,
        ended_s=0.9,
        failure="decode-0 is gone",
        facts=facts(),
    )
    second = whole_leg(1.0, decode=OTHER, is_resumed=True, first_output_s=1.2, facts=facts(0.05, 0.1))
    explanation = told(ordinary(legs=[first, second]))
    check_sums(explanation)
    assert names(explanation)[-7:] == ["decode", "recover", "messages", "queue", "prefill", "decode", "settle"]
    recover = next(phase for phase in explanation.phases if phase.name is PhaseName.RECOVER)
    assert recover.took_s == pytest.approx(0.4), "from its last sign to the next worker"
    assert not recover.is_before_first_token


def test_a_preemption_interrupts_the_decode() -> None:
    explanation = told(ordinary(preemptions=[Preemption(at_ns=ns(0.5), worker=DECODE, resumed_at_ns=ns(0.8))]))
    check_sums(explanation)
    assert names(explanation)[-4:] == ["decode", "preempted", "decode", "settle"]
    open_ended = ordinary(preemptions=[Preemption(at_ns=ns(0.5), worker=DECODE)])
    check_sums(told(open_ended, GONE))
    assert names(told(open_ended, GONE))[-1] == "preempted"


def test_tokens_that_the_client_did_not_read_are_a_phase_behind_the_last_one() -> None:
    explanation = told(ordinary(blocked_s=2.0, last_written_at_ns=ns(3.5), ended_at_ns=ns(3.6)))
    check_sums(explanation)
    assert names(explanation)[-3:] == ["decode", "client", "settle"]
    assert explanation.phases[-2].took_s == pytest.approx(2.0)


def test_a_client_that_does_not_read_the_first_token_delays_it_itself() -> None:
    explanation = told(ordinary(blocked_first_s=0.5, first_written_at_ns=ns(0.721)))
    check_sums(explanation)
    assert names(explanation)[4:8] == ["prefill", "first_write", "client", "decode"]


def test_a_client_that_left_ends_its_request_in_the_middle_of_something() -> None:
    in_line = Timeline(accepted_at_ns=ns(0), prepared_at_ns=ns(0.01), num_ahead=3, ended_at_ns=ns(4.0))
    assert names(told(in_line, GONE)) == ["prepare", "line"]
    parked = Timeline(accepted_at_ns=ns(0), prepared_at_ns=ns(0.01), let_in_at_ns=ns(0.02), ended_at_ns=ns(4.0))
    assert names(told(parked, GONE)) == ["prepare", "line", "route"]
    for made, last in (
        (leg(0.003), "room"),
        (leg(0.003, granted_s=0.1), "prefill"),
        (leg(0.003, granted_s=0.1, first_output_s=0.3, facts=facts()), "handoff"),
        (whole_leg(0.003), "prefill"),
    ):
        ended = ordinary(legs=[made], first_written_at_ns=None, last_written_at_ns=None, last_output_at_ns=None)
        explanation = told(ended, GONE)
        check_sums(explanation)
        assert names(explanation)[-1] == last
        assert explanation.ttft_s is None
        assert all(phase.is_before_first_token for phase in explanation.phases)


def test_a_request_of_one_token_has_no_handoff_to_wait_for() -> None:
    made = leg(0.003, granted_s=0.004, first_output_s=0.22, facts=facts(prefill_s=0.21))
    one = ordinary(legs=[made], last_output_at_ns=ns(0.22), last_written_at_ns=ns(0.221), ended_at_ns=ns(0.3))
    explanation = told(one, num_output_tokens=1)
    check_sums(explanation)
    assert names(explanation)[-3:] == ["prefill", "first_write", "settle"]


def test_a_request_that_runs_is_told_as_far_as_it_is() -> None:
    timeline = Timeline(accepted_at_ns=ns(0), prepared_at_ns=ns(0.01), num_ahead=3)
    explanation = explain(timeline, num_prompt_tokens=4, num_cached_tokens=0, num_output_tokens=0, now_ns=ns(2.5))
    check_sums(explanation)
    assert explanation.e2e_s == pytest.approx(2.5)
    assert "so far" in explanation.sentence


def test_a_request_that_took_no_time_has_no_phase() -> None:
    explanation = told(Timeline(accepted_at_ns=ns(0), ended_at_ns=ns(0)))
    assert explanation.phases == ()
    assert explanation.e2e_s == 0.0


def test_a_workers_clock_that_says_more_than_ours_is_made_to_fit() -> None:
    explanation = told(ordinary(legs=[whole_leg(0.003, first_output_s=0.203, facts=facts(30.0, 10.0))]))
    check_sums(explanation)
    took = {phase.name.value: phase.took_s for phase in explanation.phases}
    assert took["queue"] == pytest.approx(0.15)
    assert took["prefill"] == pytest.approx(0.05)


# ---- all shapes ------------------------------------------------------------------------------------------------------

moments = st.one_of(st.none(), st.integers(-1, 12).map(lambda tenths: ns(tenths / 4)))
durations = st.sampled_from([0.0, 1e-9, 0.1, 0.7, 5.0])
workers = st.sampled_from([PREFILL, DECODE, OTHER])


@st.composite
def any_leg(draw: Callable[[Any], Any]) -> Leg:
    made = Leg(routed_at_ns=draw(st.integers(0, 12)) * 250_000_000 + ns(0), decode=draw(workers), reason="")
    made.is_split, made.is_resumed = draw(st.booleans()), draw(st.booleans())
    made.prefill = draw(st.none() | workers)
    for name in [name for name in Leg.__slots__ if name.endswith("_at_ns") and name != "routed_at_ns"]:
        setattr(made, name, draw(moments))
    if draw(st.booleans()):
        made.facts = PrefillFacts(
            worker_id=PREFILL.worker_id,
            num_prompt_tokens=draw(st.integers(0, 100)),
            num_cached_tokens=draw(st.integers(0, 100)),
            queue_s=draw(durations),
            prefill_s=draw(durations),
        )
    made.num_lost_hit_tokens = draw(st.integers(0, 200))
    made.link = draw(st.none() | st.sampled_from(Link))
    made.transferred_bytes, made.transfer_s = draw(st.integers(0, 10**9)), draw(durations)
    made.failure = draw(st.sampled_from(["", "gone"]))
    made.first_counters = draw(st.none() | st.builds(counters, st.integers(0, 9), st.integers(0, 99)))
    made.last_counters = draw(st.none() | st.builds(counters, st.integers(0, 99), st.integers(0, 999)))
    return made


@st.composite
def any_timeline(draw: Callable[[Any], Any]) -> Timeline:
    made = Timeline(accepted_at_ns=ns(0), legs=draw(st.lists(any_leg(), max_size=3)))
    for name in [name for name in Timeline.__slots__ if name.endswith("_at_ns") and name != "accepted_at_ns"]:
        setattr(made, name, draw(moments))
    made.preemptions = [
        Preemption(at_ns=ns(at / 4), worker=DECODE, resumed_at_ns=draw(moments))
        for at in draw(st.lists(st.integers(0, 12), max_size=3))
    ]
    made.blocked_s, made.blocked_first_s = draw(durations), draw(durations)
    made.num_outputs = draw(st.integers(0, 50))
    if draw(st.booleans()):
        made.worst_gap = gap(draw(st.integers(0, 4)), 5, counters(), counters(draw(st.integers(0, 9)), 50, 50))
    return made


@settings(max_examples=400, deadline=None)
@given(any_timeline(), st.sampled_from([COMPLETE, GONE, FAILED, None]), st.integers(0, 300), st.integers(0, 300))
def test_phases_of_any_marks_sum(timeline: Timeline, end: RequestEnd | None, num_prompt: int, num_output: int) -> None:
    """Marks in any order, missing, before the first and after the last: red for a hole, an overlap or a wrong sum."""
    explanation = explain(
        timeline, num_prompt_tokens=num_prompt, num_cached_tokens=7, num_output_tokens=num_output, end=end
    )
    check_sums(explanation)
    assert explanation.sentence.endswith(".")
    assert "None" not in explanation.sentence
    assert explanation == explain(
        timeline, num_prompt_tokens=num_prompt, num_cached_tokens=7, num_output_tokens=num_output, end=end
    )


@settings(max_examples=100, deadline=None)
@given(any_timeline())
def test_an_explanation_is_the_same_once_it_was_json(timeline: Timeline) -> None:
    """Red when a field is added to one side only."""
    explanation = explain(timeline, num_prompt_tokens=9, num_cached_tokens=7, num_output_tokens=8, end=COMPLETE)
    back = explanation_of(json.loads(json.dumps(explanation_json(explanation))))
    assert explanation_json(back) == explanation_json(explanation)
