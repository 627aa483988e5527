"""Candidates of a race: who is left out was beaten by more than chance, and who is compared in the end stays."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from relevo.policy.scaling.race import Lead, Race


def race(present: str = "here", **met: list[bool]) -> Race[str]:
    return Race(met, present, wide=0.25, least=0.02)


def test_who_is_far_behind_is_left_out_and_the_present_one_stays() -> None:
    """Red when a mode is compared that was not simulated to the same length, or a clear loser goes on."""
    found = race(here=[False] * 30, best=[True] * 30, near=[True] * 29 + [False], lost=[False] * 30)
    assert found.still_in == ("here", "best", "near")
    assert found.is_decided, "everything that is left gains much"


def test_chance_leaves_none_out() -> None:
    """Two coins. Red when a race is won by luck: what was left out cannot come back."""
    rng, beaten = Random(3), 0
    for _ in range(300):
        met = {name: [rng.random() < 0.7 for _ in range(28)] for name in ("here", "other")}
        beaten += not _both(met)
    assert beaten <= 6


def _both(met: dict[str, list[bool]]) -> bool:
    return not (Lead.of(met["here"], met["other"]).is_clear or Lead.of(met["other"], met["here"]).is_clear)


def test_where_the_present_one_meets_nearly_all_nothing_is_to_be_gained() -> None:
    assert race(here=[True] * 28, other=[True] * 28).is_decided
    assert not race(here=[True] * 20 + [False] * 8, other=[True] * 24 + [False] * 4).is_decided


def test_what_is_hard_for_both_says_nothing() -> None:
    """The same half of the requests misses in both, and one more in one of them: no lead. Without pairs chance would be
    ten times as large."""
    one = [place % 2 == 0 for place in range(200)]
    lead = Lead.of(one, [*one[:-2], False, False])
    assert 0.0 < lead.mean <= lead.chance < 0.04


@given(st.dictionaries(st.sampled_from("abcde"), st.lists(st.booleans(), min_size=28, max_size=28), min_size=1))
def test_the_best_one_is_never_left_out(met: dict[str, list[bool]]) -> None:
    present = min(met)
    found = Race(met, present, wide=0.25, least=0.02)
    assert found.best in found.still_in and present in found.still_in
