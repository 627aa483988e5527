"""What `relevo plan` is asked, and what people write of it: lengths, rates, shares and seconds carry their units."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import exp, isfinite, log
from pathlib import Path

from relevo.core.errors import SettingsError
from relevo.policy.scaling.candidates import Assumptions
from relevo.policy.scaling.inventory import Holding
from relevo.policy.scaling.screen import Targets
from relevo.workload.lengths import FixedLength, Lengths, LognormalLengths, parse_lengths
from relevo.workload.sessions import SessionShape
from relevo.workload.traces.files import ReadOptions

_RATE = re.compile(r"([\d.]+)\s*/\s*(s|min|h)")
_SECONDS = re.compile(r"([\d.]+)\s*(ms|s)")
_PER_S = {"s": 1.0, "min": 1 / 60, "h": 1 / 3600}
_SPREAD = 1.6  # of made-up prompts around their mean: one sigma is a factor of it. Arbitrary
_MOST_RATE_PER_S = 1e5
_MOST_WARM = 1500  # requests; arbitrary
_MOST_TOKENS = 2**21  # of a made-up prompt; more than any model takes. Arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUp:
    """`--workload in,out,rate,reuse`."""

    sessions: SessionShape
    requests_per_s: float
    mean_prompt_tokens: float
    mean_output_tokens: float
    turns: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Everything that was asked for. One of `trace`, `made_up` and `ledger_days`."""

    model: str
    holdings: tuple[Holding, ...]
    targets: Targets
    assumed: Assumptions
    trace: Path | None = None
    reading: ReadOptions = field(default_factory=ReadOptions)
    made_up: MadeUp | None = None
    ledger_days: int | None = None
    ledger_model: str | None = None
    traffic_folder: Path = Path()  # of the ledger's traffic log, whether or not it is there
    rate_per_s: float | None = None  # None: that of the source
    max_request_tokens: int | None = None
    engine: str | None = None
    engine_version: str | None = None
    num_simulated: int = 300  # requests of each simulation that count
    num_warm: int | None = None  # before them, that only warm the caches; None: see `warm_requests`
    seed: int = 0


def warm_requests(options: PlanOptions) -> int:
    """As many as count, or of made-up sessions as many as come in the life of one: so long their content is reused."""
    if options.num_warm is not None:
        return options.num_warm
    made_up = options.made_up
    if made_up is None or made_up.turns == 1:
        return options.num_simulated
    life_s = made_up.turns * (made_up.sessions.mean_gap_s + options.targets.ttft_s)
    life_s += made_up.turns * made_up.mean_output_tokens * options.targets.itl_s
    number = round((options.rate_per_s or made_up.requests_per_s) * life_s)
    return max(options.num_simulated, min(number, _MOST_WARM))


def parse_rate(text: str, option: str) -> float:
    """`5/s`, `300/min` or `18000/h`, per second. Raises SettingsError."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise SettingsError(f"{option}: {text[:40]!r} is no rate; write its unit: {_plain(text)}/s, /min or /h")
    per_s = _number(match[1]) * _PER_S[match[2]]
    if not 0.0 < per_s <= _MOST_RATE_PER_S:
        raise SettingsError(f"{option}: {text[:40]!r} is not above 0 and up to {_MOST_RATE_PER_S:g}/s")
    return per_s


def parse_seconds(text: str, option: str) -> float:
    """`2s` or `500ms`. Raises SettingsError."""
    match = _SECONDS.fullmatch(text.strip())
    if match is None:
        raise SettingsError(f"{option}: {text[:40]!r} is no time; write its unit: {_plain(text)}s or {_plain(text)}ms")
    seconds = _number(match[1]) / (1e3 if match[2] == "ms" else 1.0)
    if not 0.0 < seconds <= 3600.0:
        raise SettingsError(f"{option}: {text[:40]!r} is not above 0 and up to an hour")
    return seconds


def parse_workload(text: str, mean_gap_s: float) -> MadeUp:
    """`4000,300,5/s,60%`: prompt and output tokens, requests a second, and the share of prompt tokens that earlier
    prompts begin with. Raises SettingsError that names the part."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 4:
        raise SettingsError(
            f"--workload {text[:60]!r} has {len(parts)} parts; write prompt tokens, output tokens, rate and reuse:"
            " 4000,300,5/s,60%"
        )
    num_input, num_output = (_mean_tokens(part, name) for part, name in zip(parts, ("prompt", "output"), strict=False))
    reuse, rate = _share(parts[3]), parse_rate(parts[2], "--workload rate")
    return _sessions(parts, num_input, num_output, reuse, rate, mean_gap_s)


def _sessions(parts: list[str], num_input: float, num_output: float, reuse: float, rate: float, gap_s: float) -> MadeUp:
    """Sessions that grow from little to so much that prompts have the mean and the share that was asked for."""
    fresh = (1.0 - reuse) * num_input  # of a turn: the answer before it, and what is said next
    said = max(1.0, fresh - num_output)
    num_turns = int(1 + 2 * (num_input - said) / (said + num_output)) if reuse > 0.0 else 1
    if num_turns == 1:
        said = fresh  # there is no answer before it
    shared = max(0.0, num_input - said - (num_turns - 1) / 2 * (said + num_output))
    turn_tokens = _lengths(parts[0], num_input) if num_turns == 1 and shared < 1 else _around(said)
    shape = SessionShape(
        num_turns=FixedLength(num_turns),
        system_tokens=FixedLength(round(shared)),
        turn_tokens=turn_tokens,
        output_tokens=_lengths(parts[1], num_output),
        num_groups=8 if shared >= 1 else 1,
        mean_gap_s=gap_s,
    )
    sentence = (
        f"made up: sessions of {num_turns} turns, {shared:,.0f} tokens of a shared beginning, {said:,.0f} more and"
        f" an answer of {num_output:,.0f} each turn, pauses of {gap_s:g} s"
    )
    return MadeUp(
        sessions=shape,
        requests_per_s=rate,
        mean_prompt_tokens=num_input,
        mean_output_tokens=num_output,
        turns=num_turns,
        sentence=sentence,
    )


def _mean_tokens(part: str, name: str) -> float:
    if "-" in part:
        low, _, high = part.partition("-")
        mean = (_number(low) + _number(high)) / 2
    else:
        mean = _number(part)
    if not 1.0 <= mean <= _MOST_TOKENS:
        raise SettingsError(f"--workload: {part[:40]!r} is no number of {name} tokens; write 4000 or 2000-6000")
    return mean


def _lengths(part: str, mean: float) -> Lengths:
    try:
        return parse_lengths(part) if "-" in part else _around(mean)
    except ValueError as error:
        raise SettingsError(f"--workload: {error}") from error


def _around(mean: float) -> Lengths:
    """Long-tailed, with that mean: averages hide what the longest do."""
    return LognormalLengths(max(1.0, mean / exp(log(_SPREAD) ** 2 / 2)), _SPREAD)


def _share(part: str) -> float:
    value = _number(part.removesuffix("%")) / 100 if part.endswith("%") else -1.0
    if not 0.0 <= value <= 0.99:
        raise SettingsError(f"--workload: the reuse {part[:40]!r} is no share; write 0% to 99%")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return value if isfinite(value) else -1.0


def _plain(text: str) -> str:
    """What was meant, to show how it is written with a unit."""
    number = re.match(r"[\d.]+", text.strip())
    return number[0] if number else "5"
