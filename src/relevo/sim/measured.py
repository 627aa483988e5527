"""What was measured of requests beside what a simulation says of the same ones: how far it is off, before it is asked
about anything else. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from relevo.sim.results import RequestOutcome, RequestResult
from relevo.telemetry.distribution import Distribution, distribution
from relevo.telemetry.latency import milliseconds, percentile
from relevo.workload.traces.served import ServedRequest

_LATENCIES = {
    "ttft_s": "TTFT",
    "itl_p90_s": "p90 of a request's ITL",
    "tpot_s": "TPOT",
    "e2e_s": "E2E",
}
_QUANTILES = ("p50", "p90", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Of the same requests, measured or simulated."""

    num_requests: int
    num_finished: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    latencies: dict[str, Distribution]

    @property
    def hit_fraction(self) -> float:
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "num_requests": self.num_requests,
            "num_finished": self.num_finished,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "hit_fraction": self.hit_fraction,
            "num_output_tokens": self.num_output_tokens,
            "latencies": {key: told.to_json() for key, told in self.latencies.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    measured: RunFacts
    simulated: RunFacts

    def to_json(self) -> dict[str, Any]:
        return {"measured": self.measured.to_json(), "simulated": self.simulated.to_json(), "errors": self.errors()}

    def errors(self) -> dict[str, float | None]:
        """Relative ones of times and tokens, and points of the hit fraction; None: one of the two cannot be told."""
        measured, simulated = self.measured, self.simulated
        told: dict[str, float | None] = {
            "hit_fraction_points": simulated.hit_fraction - measured.hit_fraction,
            "num_output_tokens": _relative(measured.num_output_tokens, simulated.num_output_tokens),
        }
        for key in _LATENCIES:
            for name in _QUANTILES:
                pair = (measured.latencies[key].value(name), simulated.latencies[key].value(name))
                told[f"{key}_{name}"] = _relative(*pair)
        return told


def measured_facts(requests: Sequence[ServedRequest]) -> RunFacts:
    values: dict[str, list[float]] = {key: [] for key in _LATENCIES}
    for request in requests:
        for key, value in (
            ("ttft_s", request.ttft_s),
            ("itl_p90_s", request.itl_p90_s),
            ("tpot_s", _tpot_s(request.ttft_s, request.e2e_s, request.num_output_tokens)),
            ("e2e_s", request.e2e_s if request.outcome == "finished" else None),
        ):
            if value is not None:
                values[key].append(value)
    return RunFacts(
        num_requests=len(requests),
        num_finished=sum(request.outcome == "finished" for request in requests),
        num_prompt_tokens=sum(request.num_prompt_tokens for request in requests),
        num_cached_tokens=sum(request.num_cached_tokens for request in requests),
        num_output_tokens=sum(request.num_output_tokens for request in requests),
        latencies={key: distribution(of_kind) for key, of_kind in values.items()},
    )


def simulated_facts(results: Sequence[RequestResult]) -> RunFacts:
    values: dict[str, list[float]] = {key: [] for key in _LATENCIES}
    for result in results:
        times = result.times
        gaps_s = sorted(times.itl_s)
        for key, value in (
            ("ttft_s", times.ttft_s),
            ("itl_p90_s", percentile(gaps_s, 0.9) if gaps_s else None),
            ("tpot_s", times.tpot_s),
            ("e2e_s", times.e2e_s),
        ):
            if value is not None:
                values[key].append(value)
    return RunFacts(
        num_requests=len(results),
        num_finished=sum(result.outcome is RequestOutcome.FINISHED for result in results),
        num_prompt_tokens=sum(result.num_prompt_tokens for result in results),
        num_cached_tokens=sum(result.num_cached_tokens for result in results),
        num_output_tokens=sum(result.num_output_tokens for result in results),
        latencies={key: distribution(of_kind) for key, of_kind in values.items()},
    )


def _tpot_s(ttft_s: float | None, e2e_s: float | None, num_tokens: int) -> float | None:
    return None if ttft_s is None or e2e_s is None or num_tokens < 2 else (e2e_s - ttft_s) / (num_tokens - 1)


def _relative(measured: float | None, simulated: float | None) -> float | None:
    return simulated / measured - 1.0 if measured and simulated is not None else None


def comparison_table(comparison: Comparison, label: str) -> Table:
    """Baseline: read the errors before anything that follows is believed."""
    table = Table(title=f"As served ({label}): measured, and simulated with the same workers", title_justify="left")
    table.add_column("")
    for heading in ("measured", "simulated", "error"):
        table.add_column(heading, justify="right")
    measured, simulated, errors = comparison.measured, comparison.simulated, comparison.errors()
    table.add_row("requests", f"{measured.num_requests:,}", f"{simulated.num_requests:,}", "")
    table.add_row("finished", f"{measured.num_finished:,}", f"{simulated.num_finished:,}", "")
    points = errors["hit_fraction_points"] or 0.0
    table.add_row(
        "prompt tokens found in a cache",
        f"{measured.hit_fraction:.1%}",
        f"{simulated.hit_fraction:.1%}",
        f"{points * 100:+.1f} points",
    )
    tokens = (measured.num_output_tokens, simulated.num_output_tokens)
    table.add_row("output tokens", *(f"{each:,}" for each in tokens), _percent(errors["num_output_tokens"]))
    for key, name in _LATENCIES.items():
        for quantile in _QUANTILES:
            pair = [facts.latencies[key].value(quantile) for facts in (measured, simulated)]
            if pair == [None, None]:
                continue
            cells = (milliseconds(value) for value in pair)
            table.add_row(f"{name} {quantile}, ms", *cells, _percent(errors[f"{key}_{quantile}"]))
    return table


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{error:+.0%}"
