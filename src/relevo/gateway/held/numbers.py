"""JSON numbers as regular expressions: ranges are held by their digits, so they are exact however large they are.

Numbers without limits have at most 20 digits before the point (17 of a number that may have an exponent), 16 behind it
and an exponent of two digits: no answer can write one that reads back as infinity, or one that never ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import lcm

NUM_INTEGER_DIGITS = 20  # of what has no limit; a 64-bit integer has at most as many
NUM_FRACTION_DIGITS = 16
MAX_LIMIT_DIGITS = 400  # arbitrary: a double has at most 309 before its point
PLAIN_INTEGER = r"-?(?:0|[1-9][0-9]{0,19})"
PLAIN_NUMBER = r"-?(?:0|[1-9][0-9]{0,16})(?:\.[0-9]{1,16})?(?:[eE][+\-]?[0-9]{1,2})?"
_FARTHEST = {True: Decimal(10) ** NUM_INTEGER_DIGITS, False: Decimal("1e116")}  # no plain integer, number reaches it


@dataclass(frozen=True, slots=True)
class Numbers:
    """Those within the limits that are multiples of `step`."""

    is_integer: bool = False
    low: Decimal | None = None
    high: Decimal | None = None
    excludes_low: bool = False
    excludes_high: bool = False
    step: Fraction | None = None  # positive

    def both(self, other: Numbers) -> Numbers:
        low, excludes_low = max(
            _lower(limit, is_out) for limit, is_out in ((self.low, self.excludes_low), (other.low, other.excludes_low))
        )
        negated_high, excludes_high = max(
            _lower(None if limit is None else -limit, is_out)
            for limit, is_out in ((self.high, self.excludes_high), (other.high, other.excludes_high))
        )
        return Numbers(
            self.is_integer or other.is_integer,
            None if low == -Decimal("Infinity") else low,
            None if negated_high == -Decimal("Infinity") else -negated_high,
            excludes_low,
            excludes_high,
            _common_step(self.step, other.step),
        )

    def admits(self, value: Decimal) -> bool:
        return not (
            (self.is_integer and value != value.to_integral_value())
            or (self.low is not None and (value < self.low or (self.excludes_low and value == self.low)))
            or (self.high is not None and (value > self.high or (self.excludes_high and value == self.high)))
            or (self.step is not None and Fraction(value) % self.step != 0)
        )

    @property
    def is_empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        if self.is_integer:
            whole = self.whole_limits()
            return whole.low is not None and whole.high is not None and whole.low > whole.high
        return self.low > self.high or (self.low == self.high and (self.excludes_low or self.excludes_high))

    def whole_limits(self) -> Numbers:
        """Of integers: the same with limits that are integers themselves, and included."""
        low, high = self.low, self.high
        if low is not None:
            floor = low.to_integral_value("ROUND_FLOOR")
            low = floor + 1 if floor < low or self.excludes_low else floor
        if high is not None:
            ceiling = high.to_integral_value("ROUND_CEILING")
            high = ceiling - 1 if ceiling > high or self.excludes_high else ceiling
        return replace(self, low=low, high=high, excludes_low=False, excludes_high=False)

    def without_far_limits(self) -> Numbers:
        """The same without limits that no number reaches as it is written here."""
        far = _FARTHEST[self.is_integer]
        low = None if self.low is not None and self.low <= -far else self.low
        high = None if self.high is not None and self.high >= far else self.high
        return replace(self, low=low, high=high)


def _lower(limit: Decimal | None, is_excluded: bool) -> tuple[Decimal, bool]:
    return (-Decimal("Infinity"), False) if limit is None else (limit, is_excluded)


def _common_step(first: Fraction | None, second: Fraction | None) -> Fraction | None:
    if first is None or second is None:
        return first or second
    common = lcm(first.denominator, second.denominator)
    return Fraction(lcm(int(first * common), int(second * common)), common)


def number_terms(numbers: Numbers) -> list[str]:
    """Regular expressions that a number's text has to match, all of them. `step` is not held by them.

    Empty limits are the caller's to see first (`is_empty`).
    """
    numbers = numbers.without_far_limits()
    if numbers.is_integer:
        numbers = numbers.whole_limits()
    if numbers.low is None and numbers.high is None:
        return [PLAIN_INTEGER if numbers.is_integer else PLAIN_NUMBER]
    if numbers.is_integer:
        return [_integer_range(numbers.low, numbers.high)]
    most = max(_num_digits(limit) for limit in (numbers.low, numbers.high) if limit is not None)
    behind = max(NUM_FRACTION_DIGITS, *(len(_split(abs(x))[1]) for x in (numbers.low, numbers.high) if x is not None))
    digits = max(NUM_INTEGER_DIGITS, most + 1)
    terms = [rf"-?(?:0|[1-9][0-9]{{0,{digits - 1}}})(?:\.[0-9]{{1,{behind}}})?"]
    if numbers.low is not None:
        terms.append(_at_least(numbers.low, numbers.excludes_low))
    if numbers.high is not None:
        terms.append(_at_most(numbers.high, numbers.excludes_high))
    return terms


def decimal_of(number: int | float) -> Decimal:
    """The number as its shortest text says it."""
    return Decimal(number) if isinstance(number, int) else Decimal(repr(number))


def _num_digits(limit: Decimal) -> int:
    return len(str(int(abs(limit))))


def _split(magnitude: Decimal) -> tuple[int, str]:
    whole, _, behind = f"{magnitude:f}".partition(".")
    return int(whole), behind.rstrip("0")


def _integer_range(low: Decimal | None, high: Decimal | None) -> str:
    digits = max(NUM_INTEGER_DIGITS, *(_num_digits(limit) + 1 for limit in (low, high) if limit is not None))
    least = int(low) if low is not None else -(10**digits) + 1
    most = int(high) if high is not None else 10**digits - 1
    options = []
    if least < 0:
        options.append("-" + magnitudes(max(1, -most), -least))
    if most >= 0:
        options.append(magnitudes(max(0, least), most))
    return _either(options)


def magnitudes(low: int, high: int) -> str:
    """Integers from `low` to `high`, neither negative, without leading zeros."""
    options: list[str] = []
    for num_digits in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (num_digits - 1) if num_digits > 1 else 0)
        last = min(high, 10**num_digits - 1)
        options += _same_length(str(first), str(last))
    return _either(options)


def _same_length(low: str, high: str) -> Iterator[str]:
    """Texts of digits from `low` to `high`, as long as both."""
    if not low:
        yield ""
        return
    rest = len(low) - 1
    if low[0] == high[0]:
        for tail in _same_length(low[1:], high[1:]):
            yield low[0] + tail
        return
    first, last = int(low[0]), int(high[0])
    if rest and low[1:] != "0" * rest:
        yield low[0] + _either(list(_same_length(low[1:], "9" * rest)))
        first += 1
    ends_early = bool(rest) and high[1:] != "9" * rest
    if ends_early:
        last -= 1
    if first <= last:
        yield (f"[{first}-{last}]" if first < last else str(first)) + _digits(rest)
    if ends_early:
        yield high[0] + _either(list(_same_length("0" * rest, high[1:])))


def _digits(count: int) -> str:
    return "" if count == 0 else "[0-9]" if count == 1 else f"[0-9]{{{count}}}"


def _either(options: list[str]) -> str:
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"


def _at_least(limit: Decimal, is_excluded: bool) -> str:
    """Numbers from `limit` on; how many digits they have is another term's."""
    if limit > 0 or (limit == 0 and is_excluded):
        return _magnitude_from(limit, is_excluded)
    any_magnitude = r"[0-9]+(?:\.[0-9]+)?"
    if limit == 0:
        return any_magnitude
    return _either([any_magnitude, "-" + _magnitude_to(-limit, is_excluded)])


def _at_most(limit: Decimal, is_excluded: bool) -> str:
    if limit < 0 or (limit == 0 and is_excluded):
        return "-" + _magnitude_from(-limit if limit else limit, is_excluded)
    return _either([r"-[0-9]+(?:\.[0-9]+)?", _magnitude_to(limit, is_excluded)])


def _magnitude_from(limit: Decimal, is_excluded: bool) -> str:
    whole, behind = _split(limit)
    digits = max(NUM_INTEGER_DIGITS, len(str(whole)) + 1)
    if behind:
        options = [rf"{behind[:i]}[{int(behind[i]) + 1}-9][0-9]*" for i in range(len(behind)) if behind[i] != "9"]
        options.append(behind + ("[0-9]*[1-9][0-9]*" if is_excluded else "[0-9]*"))
        fraction = rf"\.{_either(options)}"
    else:
        fraction = r"\.[0-9]*[1-9][0-9]*" if is_excluded else r"(?:\.[0-9]+)?"
    return _either([magnitudes(whole + 1, 10**digits - 1) + r"(?:\.[0-9]+)?", f"{whole}{fraction}"])


def _magnitude_to(limit: Decimal, is_excluded: bool) -> str:
    """Empty only for an excluded 0, which callers never ask for."""
    whole, behind = _split(limit)
    options = [magnitudes(0, whole - 1) + r"(?:\.[0-9]+)?"] if whole else []
    if behind:
        smaller = [rf"{behind[:i]}[0-{int(behind[i]) - 1}][0-9]*" for i in range(len(behind)) if behind[i] != "0"]
        shorter = [behind[:i] for i in range(1, len(behind))]
        equal = [] if is_excluded else [f"{behind}0*"]
        options.append(rf"{whole}(?:\.{_either([*smaller, *shorter, *equal])})?")
    elif not is_excluded:
        options.append(rf"{whole}(?:\.0+)?")
    return _either(options)
