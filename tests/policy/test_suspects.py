"""Which requests make a step fail: found by halves, with a bounded number of questions."""

from __future__ import annotations

from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from relevo.policy.worker.suspects import Suspects


def asked(request_ids: list[str], culprits: set[str], names: bool = False) -> tuple[list[str], list[tuple[str, ...]]]:
    """Culprits found, and every group that was asked about."""

    def named(group: list[str]) -> list[str]:
        return [each for each in group if each in culprits][:1] if names else []

    suspects = Suspects(request_ids, named(request_ids))
    groups = []
    while group := suspects.next_group:
        groups.append(tuple(group))
        suspects.raised(named(list(group))) if culprits.intersection(group) else suspects.passed()
    return suspects.culprits, groups


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))), st.booleans())
def test_exactly_the_culprits_are_found_with_fewer_than_two_questions_per_request(case, names):
    """Red when an innocent request ends, when a culprit is asked about for ever, or when a group is left out."""
    count, chosen = case
    request_ids = [f"r{index}" for index in range(count)]
    culprits = {f"r{index}" for index in chosen}
    found, groups = asked(request_ids, culprits, names)
    # a step of one request that raised is not tried again: there is none to tell apart from it
    assert sorted(found) == sorted(request_ids if count == 1 else culprits)
    assert len(groups) <= 2 * count - 1
    assert asked(request_ids, culprits, names) == (found, groups)


@given(st.integers(2, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_one_culprit_is_found_in_two_questions_per_halving(case):
    count, culprit = case
    found, groups = asked([f"r{index}" for index in range(count)], {f"r{culprit}"})
    assert found == [f"r{culprit}"] and len(groups) <= 2 * ceil(log2(count))


def test_those_whom_an_error_names_are_believed_and_the_others_asked_once():
    found, groups = asked(["a", "b", "c", "d"], {"b"}, names=True)
    assert found == ["b"] and groups == [("a", "c", "d")]


def test_names_that_are_not_in_the_step_are_no_answer():
    suspects = Suspects(["a", "b"], named=["elsewhere"])
    assert suspects.next_group == ("a",)
