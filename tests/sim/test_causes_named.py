"""The cause of slowness that was put into a simulated world is the one that is named."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from slow_causes import SCENARIOS, Scenario, Told, confusion, run

from relevo.policy.slowness.words import SlowCause

MIN_RIGHT = 0.95
MAX_ERROR = 0.02  # of what phases sum to


def check_sums(told: Told) -> None:
    explanation = told.explanation
    total_s = sum(phase.took_s for phase in explanation.phases)
    assert abs(total_s - told.e2e_s) <= MAX_ERROR * told.e2e_s
    if told.ttft_s is not None:
        before_s = sum(phase.took_s for phase in explanation.phases if phase.is_before_first_token)
        assert abs(before_s - told.ttft_s) <= MAX_ERROR * told.ttft_s
    ends = [phase.begins_s + phase.took_s for phase in explanation.phases]
    begins = [phase.begins_s for phase in explanation.phases[1:]]
    assert all(abs(end - begin) < 1e-6 for end, begin in zip(ends, begins, strict=False))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_the_cause_that_was_put_in_is_named(scenario: Scenario) -> None:
    """Red when a mark is lost on its way, or another cause is taken for this one."""
    told = run(scenario, 4)
    for each in told:
        check_sums(each)
    assert [each.explanation.sentence for each in told if not each.is_right] == []


def test_every_cause_that_a_world_can_bring_about_is_put_in() -> None:
    """What else there is follows from HTTP, or from the door: `tests/policy/test_slowness_causes.py` has those."""
    put_in = {cause for scenario in SCENARIOS for cause in scenario.expected}
    assert set(SlowCause) - put_in == {SlowCause.GATEWAY, SlowCause.REFUSED, SlowCause.NO_WORKER}


def test_the_same_seed_gives_the_same_sentences() -> None:
    scenario = SCENARIOS[0]
    first, second = ([each.explanation for each in run(scenario, 3)] for _ in range(2))
    assert first == second


@pytest.mark.slow
def test_of_a_thousand_requests_the_cause_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """At least 95 % of each, and of all."""
    caplog.set_level(logging.CRITICAL, "relevo")
    num_each = -(-1000 // len(SCENARIOS))
    told = [each for scenario in SCENARIOS for each in run(scenario, num_each, seed=1)]
    assert len(told) >= 1000
    for each in told:
        check_sums(each)
    table = "\n".join(confusion(told))
    right = Counter(each.scenario.name for each in told if each.is_right)
    for scenario in SCENARIOS:
        assert right[scenario.name] >= MIN_RIGHT * num_each, table
