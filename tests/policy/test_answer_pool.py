"""Answers of the simulator that hold for a while, and are pooled where chance leaves open which mode is better."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_role_planner_errors import MODES, SPLIT

from relevo.policy.scaling.answer_pool import KEPT_S, MOST, POOLED_S, AnswerPool
from relevo.policy.scaling.demand import Demand, Sample
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode

STEADY = Demand(requests_per_s=2.0, samples=(Sample(100, 10),), longest_tokens=110)
OTHER = next(mode for mode in MODES if mode != SPLIT)


def said(split: float, other: float, number: int = 100, *, beaten: bool = False) -> dict[Mode, ModeOutlook]:
    return {
        mode: ModeOutlook(
            attained=split if mode == SPLIT else other,
            ttft_p90_s=0.1,
            itl_p90_s=0.02,
            num_judged=number,
            is_beaten=beaten and mode == OTHER,
        )
        for mode in MODES
    }


def pool() -> AnswerPool:
    return AnswerPool(60.0, 0.02)


def test_a_close_one_is_asked_of_more_requests_and_a_clear_one_is_not() -> None:
    """Red when chance of one small world decides for a minute, or the simulator computes for what is known."""
    for split, other, is_clear in ((0.5, 0.9, True), (0.99, 0.97, True), (0.6, 0.65, False), (0.8, 0.8, False)):
        asked = pool()
        asked.add("", STEADY, 0.0, 0, said(split, other))
        assert (asked.known("", SPLIT, STEADY, 5.0) is not None) == is_clear, (split, other)


def test_answers_are_pooled_by_their_requests_and_each_is_of_others() -> None:
    asked = pool()
    for number, other in enumerate((0.62, 0.74)):
        seed = asked.seed("", STEADY, 10.0 * number)
        assert seed == number, "red when the same requests are counted twice"
        told = asked.add("", STEADY, 10.0 * number, seed, said(0.6, other, 100 * (1 + number)))
    assert (told[OTHER].attained, told[OTHER].num_judged) == (pytest.approx(0.70), 300)
    assert told[OTHER].noise(told[SPLIT]) < said(0.6, 0.7)[OTHER].noise(said(0.6, 0.7)[SPLIT])


def test_it_ends_however_close_they_are() -> None:
    """Red when steady traffic keeps the simulator busy for ever."""
    asked, num_asked = pool(), 0
    for tick in range(120):
        now_s = 5.0 * tick
        if asked.known("", SPLIT, STEADY, now_s) is None:
            asked.add("", STEADY, now_s, asked.seed("", STEADY, now_s), said(0.7, 0.72))
            num_asked += 1
    assert num_asked <= MOST * (1 + 600 / POOLED_S)


def test_what_is_old_or_of_other_traffic_or_workers_does_not_count() -> None:
    asked = pool()
    for number in range(MOST):
        asked.add("", STEADY, float(number), number, said(0.7, 0.72))
    assert asked.known("", SPLIT, STEADY, 10.0) is not None
    assert asked.known("", SPLIT, STEADY.at(2.0), 10.0) is None
    assert asked.known("", SPLIT, replace(STEADY, samples=(Sample(200, 10),)), 10.0) is None
    assert asked.known("", SPLIT, STEADY, MOST + KEPT_S) is None
    told = asked.add("", STEADY, POOLED_S + MOST, 0, said(0.7, 0.9))
    assert told[OTHER].num_judged == 100
    assert asked.known("a worker is new", SPLIT, STEADY, POOLED_S + MOST) is None
    assert asked.known("", SPLIT, STEADY, POOLED_S + MOST) is None, "it was forgotten for the other"


def test_who_was_beaten_once_by_chance_may_come_back() -> None:
    asked = pool()
    assert asked.add("", STEADY, 0.0, 0, said(0.6, 0.5, beaten=True))[OTHER].is_beaten
    asked.add("", STEADY, 1.0, 1, said(0.6, 0.7))
    assert not asked.add("", STEADY, 2.0, 2, said(0.6, 0.7))[OTHER].is_beaten
