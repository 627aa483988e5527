"""How many workers there are to be, beside those that are there: orders, restarts, and what a person changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.policy.scaling.enough_workers import CountLimits
from relevo.policy.scaling.wanted_workers import WantedWorkers
from relevo.policy.scaling.worker_count import CountDecision, CountVerdict

LIMITS = CountLimits(least=1, most=6)


def ids(*numbers: int) -> frozenset[str]:
    return frozenset(f"w{number}" for number in numbers)


def settled(*numbers: int) -> WantedWorkers:
    """With these workers, for a minute."""
    wanted = WantedWorkers(limits=LIMITS, start_s=60.0)
    for at_s in range(0, 60, 5):
        wanted.look(float(at_s), ids(*numbers), ids(*numbers))
    assert wanted.number == len(numbers)
    return wanted


def decide(wanted: WantedWorkers, number: int, at_s: float) -> bool:
    verdict = CountVerdict.MORE if number > (wanted.number or 0) else CountVerdict.FEWER
    return wanted.decided(CountDecision(verdict=verdict, num_workers=number, reason="a test"), at_s)


def test_a_gateway_that_is_restarted_finds_them_one_after_the_other() -> None:
    """Red when two that were found first are the number, and a cluster that reads it takes the other two away."""
    wanted = WantedWorkers(limits=LIMITS, start_s=60.0)
    for at_s, there in ((0, (1,)), (5, (1, 2)), (20, (1, 2, 3)), (40, (1, 2, 3, 4)), (65, (1, 2, 3, 4))):
        wanted.look(float(at_s), ids(*there), ids(*there))
        assert wanted.number is None
    wanted.look(70.0, ids(1, 2, 3, 4), ids(1, 2, 3, 4))
    assert (wanted.number, wanted.num_there, wanted.num_coming) == (4, 4, 0)


def test_the_first_number_is_within_the_bounds() -> None:
    for there, number in ((0, 1), (9, 6)):
        wanted = WantedWorkers(limits=LIMITS, start_s=60.0)
        for at_s in (0.0, 40.0):
            wanted.look(at_s, ids(*range(there)), ids(*range(there)))
        assert wanted.number == number


def test_what_is_ordered_is_on_its_way_and_its_time_is_measured() -> None:
    """Red when an order counts as there, or the time that it took does not count for the next one."""
    wanted = settled(1)
    assert decide(wanted, 3, 100.0)
    assert not wanted.look(105.0, ids(1), ids(1))
    assert (wanted.num_there, wanted.num_coming, wanted.expected_start_s) == (1, 2, 60.0)
    assert not wanted.look(120.0, ids(1, 2), ids(1, 2))
    assert not wanted.look(125.0, ids(1, 2, 3), ids(1, 2, 3))
    assert (wanted.num_there, wanted.num_coming, wanted.expected_start_s) == (3, 0, 25.0)


def test_a_worker_that_dies_is_on_its_way_back_and_no_hand_took_it() -> None:
    wanted = settled(1, 2)
    assert not wanted.look(100.0, ids(1), ids(1, 2))
    assert (wanted.number, wanted.num_there, wanted.num_coming) == (2, 1, 1)
    assert not wanted.look(130.0, ids(1, 2), ids(1, 2))
    assert wanted.num_coming == 0 and wanted.expected_start_s == 60.0, "a restart is no order"


def test_a_change_by_hand_is_adopted_named_and_holds() -> None:
    """Red when the planner takes away what a person has just added, or orders again what one took away."""
    wanted = settled(1, 2)
    told = wanted.look(100.0, ids(1, 2, 3), ids(1, 2, 3))
    assert "1 more than were wanted have come, by hand, which holds for 300 s" in told and wanted.number == 3
    assert wanted.held_for_s(150.0) == 250.0 and wanted.held_for_s(400.0) == 0.0
    assert "1 were taken away, by hand" in wanted.look(500.0, ids(1, 2), ids(1, 2)) and wanted.number == 2


def test_who_is_given_back_and_has_not_left_yet_is_no_change_by_hand() -> None:
    """A cluster may take minutes to take a pod away. Red when it is adopted meanwhile, and never leaves."""
    wanted = settled(1, 2, 3, 4)
    assert decide(wanted, 2, 100.0)
    for at_s in (105.0, 200.0):
        assert not wanted.look(at_s, ids(1, 2, 3, 4), ids(1, 2, 3, 4))
        assert (wanted.num_there, wanted.num_coming) == (2, 0)
    assert not wanted.look(210.0, ids(1, 2, 3), ids(1, 2, 3))
    assert not wanted.look(220.0, ids(1, 2), ids(1, 2))
    assert wanted.number == 2


def test_who_takes_over_from_another_one_finds_the_number_anew() -> None:
    wanted = settled(1, 2)
    wanted.forget()
    assert wanted.number is None and wanted.num_coming == 0
    wanted.look(100.0, ids(1, 2, 3), ids(1, 2, 3))
    wanted.look(131.0, ids(1, 2, 3), ids(1, 2, 3))
    assert wanted.number == 3


@given(st.lists(st.tuples(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)), st.integers(0, 6)), max_size=40))
@settings(max_examples=100, deadline=None)
def test_what_is_there_and_what_is_coming_add_up_to_what_is_wanted(steps: list[tuple[set[int], set[int], int]]) -> None:
    """Whatever comes and goes, and is decided. Red when a worker counts twice, or less than none are wanted."""
    wanted, now_s = WantedWorkers(limits=LIMITS, start_s=60.0, settle_s=0.0), 0.0
    for there, away, number in steps:
        now_s += 5.0
        wanted.look(now_s, ids(*there), ids(*there, *away))
        if wanted.number is not None:
            assert wanted.num_there + wanted.num_coming == wanted.number >= 0
            assert wanted.num_there <= len(there)
            decide(wanted, number, now_s)
