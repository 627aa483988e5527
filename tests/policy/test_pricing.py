"""Prices and bills: exact to the last decimal. Red when a float or a rounding context gets in between."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.core.errors import SettingsError
from relevo.core.outcome import Outcome
from relevo.policy.billing.bill import Work, bill_for
from relevo.policy.billing.pricing import (
    FREE,
    BilledTokens,
    ModelPrice,
    cost_of,
    decimal_of,
    exact_sum,
    parse_prices,
    plain,
)

amounts = st.decimals(min_value=0, max_value=1000, places=35, allow_nan=False, allow_infinity=False)
counts = st.integers(0, 10**12)


@given(amounts, amounts, amounts, counts, counts, counts)
def test_a_cost_is_the_fraction_it_should_be(
    per_input: Decimal, per_cached: Decimal, per_output: Decimal, num_computed: int, num_cached: int, num_output: int
) -> None:
    price = ModelPrice(
        input_cost_per_token=per_input, cache_read_input_token_cost=per_cached, output_cost_per_token=per_output
    )
    tokens = BilledTokens(num_prompt=num_computed + num_cached, num_cached=num_cached, num_output=num_output)
    expected = (
        Fraction(per_input) * num_computed + Fraction(per_cached) * num_cached + Fraction(per_output) * num_output
    )
    assert Fraction(cost_of(price, tokens)) == expected


@given(st.lists(amounts, max_size=50))
def test_sums_lose_nothing_and_text_gives_the_number_back(costs: list[Decimal]) -> None:
    total = exact_sum(costs)
    assert Fraction(total) == sum((Fraction(cost) for cost in costs), Fraction(0))
    assert Decimal(plain(total)) == total
    assert "E" not in plain(total).upper()


@pytest.mark.parametrize(
    ("value", "text"), [("1E-7", "0.0000001"), ("10.500", "10.5"), ("0E-9", "0"), ("100", "100"), ("1E+3", "1000")]
)
def test_plain_text_is_one_per_value(value: str, text: str) -> None:
    assert plain(Decimal(value)) == text


def read(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def test_litellms_names_are_read_as_written() -> None:
    text = """{
        "sample_spec": {"input_cost_per_token": "not a number"},
        "m": {"input_cost_per_token": 1.5e-07, "output_cost_per_token": 7.999999999999999e-07,
              "cache_read_input_token_cost": 1.5e-08, "max_tokens": 4096, "litellm_provider": "x", "mode": "chat"}
    }"""
    price = parse_prices(read(text), ("m",))["m"]
    assert price.output_cost_per_token == Decimal("0.0000007999999999999999")
    assert price.cache_read_input_token_cost == Decimal("0.000000015")


def test_toml_is_read_as_written_too() -> None:
    text = '[m]\ninput_cost_per_token = 1e-7\noutput_cost_per_token = "0.0000004"\n'
    price = parse_prices(tomllib.loads(text, parse_float=Decimal), ("m",))["m"]
    assert plain(price.input_cost_per_token) == "0.0000001"
    assert plain(price.output_cost_per_token) == "0.0000004"


def test_without_a_price_of_their_own_cached_tokens_cost_what_others_cost() -> None:
    price = parse_prices({"m": {"input_cost_per_token": 3, "output_cost_per_token": 0}}, ("m",))["m"]
    assert price.cache_read_input_token_cost == 3


def test_an_alias_has_the_price_of_the_first_name_unless_it_has_its_own() -> None:
    cheap, dear = ({"input_cost_per_token": n, "output_cost_per_token": n} for n in (1, 9))
    prices = parse_prices({"m": cheap, "other": dear}, ("m", "alias", "other"))
    assert prices["alias"] == prices["m"] != prices["other"]


def entry(**fields: Any) -> dict[str, Any]:
    return {"m": {"input_cost_per_token": Decimal(1), "output_cost_per_token": Decimal(1)} | fields}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "object"),
        ({}, "'m'"),
        ({"m": 3}, "'m'"),
        ({"m": {"input_cost_per_token": 1}}, "output_cost_per_token"),
        (entry(input_cost_per_token=-1), "input_cost_per_token"),
        (entry(input_cost_per_token=1e-7), "input_cost_per_token"),  # a float: what was written is lost
        (entry(input_cost_per_token=True), "input_cost_per_token"),
        (entry(input_cost_per_token=Decimal("NaN")), "input_cost_per_token"),
        (entry(input_cost_per_token=Decimal("1e9")), "input_cost_per_token"),
        (entry(input_cost_per_token=Decimal("0." + "1" * 250)), "decimals"),
        (entry(input_cost_per_token=int("9" * 250)), r"'9{40}'; it must"),
        (entry(output_cost_per_token=Decimal("1e-41")), "decimals"),
        (entry(input_cost_per_token_above_128k_tokens=Decimal(2)), "above_128k"),
        (entry(cache_read_input_token_cost_above_200k_tokens=Decimal(2)), "above_200k"),
        (entry(input_cost_per_request=Decimal(2)), "per_request"),
    ],
)
def test_a_price_that_cannot_be_billed_is_refused(document: Any, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parse_prices(document, ("m",))


@pytest.mark.parametrize(
    ("written", "price"),
    [("1." + "0" * 300, "1"), ("0." + "0" * 38 + "1" + "0" * 300, "1e-39"), ("1" + "0" * 250 + "e-285", "1e-35")],
)
def test_a_price_of_hundreds_of_digits_is_billed_as_the_number_it_is(written: str, price: str) -> None:
    """Zeros beyond the precision of sums are none of it."""
    (read,) = parse_prices(entry(input_cost_per_token=Decimal(written)), ("m",)).values()
    cost = cost_of(read, BilledTokens(num_prompt=10**12 + 1, num_output=10**12))
    assert Fraction(cost) == Fraction(price) * (10**12 + 1) + 10**12
    assert len(plain(read.input_cost_per_token)) < 50


@pytest.mark.parametrize("value", [None, 1.0, "", "abc", "NaN", "Infinity", True, [], Decimal("Infinity")])
def test_what_is_no_exact_number_is_none(value: Any) -> None:
    assert decimal_of(value) is None


works = st.builds(
    lambda prompt, cached, output, delivered, computed: Work(
        num_prompt_tokens=prompt,
        num_cached_tokens=min(cached, prompt),
        num_output_tokens=output if computed else 0,
        num_delivered_tokens=min(delivered, output) if computed else 0,
        is_prompt_computed=computed,
    ),
    st.integers(1, 500),  # no request is without a prompt
    *(st.integers(0, 500) for _ in range(3)),
    st.booleans(),
)


@given(st.sampled_from(Outcome), st.lists(works, min_size=1, max_size=4))
def test_what_is_billed_and_what_is_not_are_all_that_was_done(outcome: Outcome, done: list[Work]) -> None:
    bill = bill_for(outcome, done)
    computed = [work for work in done if work.is_prompt_computed or outcome is Outcome.FINISHED]
    assert bill.billed.num_prompt + bill.num_unbilled_prompt_tokens == sum(w.num_prompt_tokens for w in computed)
    assert bill.billed.num_output + bill.num_unbilled_output_tokens == sum(w.num_output_tokens for w in done)
    assert bill.billed.num_cached <= bill.billed.num_prompt
    delivered = sum(w.num_delivered_tokens for w in done)
    assert bill.billed.num_output >= delivered, "what was delivered is billed, whatever ended it"
    assert not delivered or bill.billed.num_prompt or not sum(w.num_prompt_tokens for w in computed)


def test_the_rule_by_outcome() -> None:
    running = Work(
        num_prompt_tokens=100,
        num_cached_tokens=64,
        num_output_tokens=10,
        num_delivered_tokens=7,
        is_prompt_computed=True,
    )
    waiting = Work(
        num_prompt_tokens=50, num_cached_tokens=0, num_output_tokens=0, num_delivered_tokens=0, is_prompt_computed=False
    )
    finished = bill_for(Outcome.FINISHED, [running])
    assert finished.billed == BilledTokens(num_prompt=100, num_cached=64, num_output=10)
    aborted = bill_for(Outcome.ABORTED, [running, waiting])
    assert aborted.billed == BilledTokens(num_prompt=100, num_cached=64, num_output=10)
    assert (aborted.num_unbilled_prompt_tokens, aborted.num_unbilled_output_tokens) == (0, 0)
    undelivered = replace(running, num_delivered_tokens=0)
    failed = bill_for(Outcome.FAILED, [running, undelivered, waiting])
    assert failed.billed == BilledTokens(num_prompt=100, num_cached=64, num_output=7)
    assert (failed.num_unbilled_prompt_tokens, failed.num_unbilled_output_tokens) == (100, 13)
    assert cost_of(FREE, finished.billed) == 0
