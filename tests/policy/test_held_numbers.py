"""Ranges of numbers as regular expressions say of every text what arithmetic says of its number."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.gateway.held.numbers import PLAIN_NUMBER, Numbers, decimal_of, number_terms

INTEGERS = st.one_of(
    st.integers(-30, 30), st.integers(-(10**6), 10**6), st.integers(2**53 - 5, 2**64), st.integers(-(2**64), -(2**53))
)
DECIMALS = st.tuples(st.integers(-3000, 3000), st.integers(0, 3)).map(lambda each: Decimal(each[0]).scaleb(-each[1]))


def takes(numbers: Numbers, text: str) -> bool:
    return all(re.fullmatch(term, text) for term in number_terms(numbers))


@given(INTEGERS, INTEGERS, st.data())
def test_integers_are_held_exactly_however_large(one: int, two: int, data: st.DataObject) -> None:
    """Red when a limit above 2^53 goes through a double."""
    low, high = sorted((one, two))
    numbers = Numbers(True, Decimal(low), Decimal(high))
    drawn = data.draw(st.integers(low - 3, high + 3))
    for value in (low - 1, low, high, high + 1, drawn, -drawn):
        assert takes(numbers, str(value)) is (low <= value <= high), value


@given(DECIMALS, DECIMALS, DECIMALS, st.booleans(), st.booleans(), st.sampled_from(["both", "low", "high"]))
def test_decimals_are_held_in_every_spelling(
    one: Decimal, two: Decimal, value: Decimal, out_low: bool, out_high: bool, limits: str
) -> None:
    low, high = sorted((one, two))
    numbers = Numbers(
        False,
        low if limits != "high" else None,
        high if limits != "low" else None,
        out_low and limits != "high",
        out_high and limits != "low",
    )
    if numbers.is_empty:
        return
    for number in (value, low, high, low - Decimal("0.0001"), high + Decimal("0.0001")):
        text = f"{number:f}"
        if number == 0 and text.startswith("-"):
            continue
        longer = f"{text}0" if "." in text else f"{text}.0"
        for spelled in (text, longer):
            assert takes(numbers, spelled) is numbers.admits(number), (spelled, numbers)


def test_no_number_without_limits_reads_back_as_infinity() -> None:
    assert re.fullmatch(PLAIN_NUMBER, "1e99") and re.fullmatch(PLAIN_NUMBER, "-0.5E-10")
    for text in ("1e999", "1e100", "1" * 400, "01", "+1", ".5", "1.", "NaN", "Infinity", ""):
        assert not re.fullmatch(PLAIN_NUMBER, text), text


@pytest.mark.parametrize("limit", [1.7976931348623157e308, 1e300, 10**30])
def test_limits_that_nothing_reaches_cost_nothing(limit: float) -> None:
    """Some libraries write the largest double as a maximum."""
    numbers = Numbers(low=-decimal_of(limit), high=decimal_of(limit))
    assert sum(map(len, number_terms(numbers))) < 20_000
    assert takes(numbers, "12.5")


def test_what_two_ranges_have_in_common() -> None:
    both = Numbers(low=Decimal(1), step=Fraction(1, 2)).both(Numbers(True, high=Decimal(9), step=Fraction(3, 4)))
    assert both == Numbers(True, Decimal(1), Decimal(9), step=Fraction(3, 2))
    assert Numbers(low=Decimal(1)).both(Numbers(low=Decimal(1), excludes_low=True)).excludes_low
    assert (
        Numbers(True, Decimal("1.5"), Decimal("1.7")).is_empty
        and not Numbers(False, Decimal("1.5"), Decimal("1.7")).is_empty
    )
