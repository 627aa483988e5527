"""What tokens cost: prices per model and token, exact decimal arithmetic.

Owns the price names (those of LiteLLM's price table, so that its JSON can be used as it is), their validation and the
formula. Knows no currency, no file and no key. Nothing is ever rounded: a result that would have to be is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from decimal import Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow
from typing import Any

from relevo.core.errors import SettingsError

EXACT = Context(prec=200, traps=[Inexact, InvalidOperation, Overflow, DivisionByZero])
MAX_DECIMALS = 40  # arbitrary; the table has prices whose floats were written out with 25
MAX_BUDGET = Decimal(10**15)  # arbitrary; with MAX_DECIMALS it and every sum below it fit into EXACT
MAX_PRICE = Decimal(1_000_000)  # per token; arbitrary: what is above is a price per million in the wrong field

# Names in LiteLLM's table whose meaning for text is not the plain price: they would make another bill than ours.
_CHANGES_THE_BILL = re.compile(
    r"(input|output)_cost_per_(token_above_\w+|character\w*|request|query|second)|cache_\w+_cost_above_\w+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrice:
    """Currency units per token, under LiteLLM's names."""

    input_cost_per_token: Decimal = Decimal(0)
    cache_read_input_token_cost: Decimal = Decimal(0)
    output_cost_per_token: Decimal = Decimal(0)


FREE = ModelPrice()


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledTokens:
    """`num_cached` is a part of `num_prompt`, as in OpenAI's usage object."""

    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.num_cached <= self.num_prompt, "cached tokens are prompt tokens"
        assert self.num_output >= 0


def cost_of(price: ModelPrice, tokens: BilledTokens) -> Decimal:
    """In currency units, exact."""
    parts = (
        (price.input_cost_per_token, tokens.num_prompt - tokens.num_cached),
        (price.cache_read_input_token_cost, tokens.num_cached),
        (price.output_cost_per_token, tokens.num_output),
    )
    return exact_sum(EXACT.multiply(per_token, Decimal(number)) for per_token, number in parts)


def exact_sum(costs: Iterable[Decimal]) -> Decimal:
    total = Decimal(0)
    for cost in costs:
        total = EXACT.add(total, cost)
    return total


def plain(value: Decimal) -> str:
    """Digits without an exponent and without zeros at the end: one text per value."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def parse_prices(document: Any, model_names: tuple[str, ...]) -> dict[str, ModelPrice]:
    """A price for every served name; a name without an entry of its own has the price of the first name.

    `document` maps model names to objects with the price names above; numbers must have been read as Decimal or int.
    Entries of models that are not served are not looked at. Raises SettingsError.
    """
    if not isinstance(document, Mapping):
        raise SettingsError("--prices must hold an object that maps model names to prices")
    own = {name: _model_price(name, document[name]) for name in model_names if name in document}
    default = own.get(model_names[0])
    prices: dict[str, ModelPrice] = {}
    for name in model_names:
        price = own.get(name, default)
        if price is None:
            raise SettingsError(
                f"--prices has no entry for the served model {name!r}; add one, or name the model as the file does "
                f"with --served-model-name"
            )
        prices[name] = price
    return prices


def _model_price(name: str, entry: Any) -> ModelPrice:
    if not isinstance(entry, Mapping):
        raise SettingsError(f"--prices: the entry of {name!r} must be an object with prices")
    for key in entry:
        if _CHANGES_THE_BILL.fullmatch(str(key)) and entry[key] not in (None, 0):
            raise SettingsError(
                f"--prices: {name!r} has {key!r}, which is not offered; remove it, or the bill would not be what the "
                f"file says"
            )
    given = {
        field.name: _amount(name, field.name, entry[field.name])
        for field in fields(ModelPrice)
        if (entry.get(field.name) is not None)
    }
    for required in ("input_cost_per_token", "output_cost_per_token"):
        if required not in given:
            raise SettingsError(f"--prices: {name!r} has no {required!r}; write 0 if it costs nothing")
    given.setdefault("cache_read_input_token_cost", given["input_cost_per_token"])
    return ModelPrice(**given)


def _amount(model: str, field: str, value: Any) -> Decimal:
    amount = decimal_of(value)
    if amount is None or not 0 <= amount <= MAX_PRICE:
        raise SettingsError(
            f"--prices: {field} of {model!r} is {str(value)[:40]!r}; it must be a number from 0 to {MAX_PRICE}"
        )
    if num_decimals(amount) > MAX_DECIMALS:
        raise SettingsError(f"--prices: {field} of {model!r} has more than {MAX_DECIMALS} decimals")
    return amount


def num_decimals(amount: Decimal) -> int:
    """Of a finite number, as it was written: zeros at the end do not count."""
    _, digits, exponent = amount.as_tuple()
    assert isinstance(exponent, int), "finite"
    num_zeros = 0
    for digit in reversed(digits):
        if digit:
            break
        num_zeros += 1
    return max(0, -exponent - num_zeros) if num_zeros < len(digits) else 0


def decimal_of(value: Any) -> Decimal | None:
    """The number that was written; None if it is none, not finite, or a float, which has lost what was written."""
    if isinstance(value, bool) or not isinstance(value, Decimal | int | str):
        return None
    try:
        amount = Decimal(value)
    except InvalidOperation:
        return None
    return amount if amount.is_finite() else None
