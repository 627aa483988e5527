"""Reports of simulated configurations as a page: distributions, the course of the run, use of the workers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group

from relevo.bench.html.figures import Axis, Bar, Bars, Figure, Look, Plot, latency_curves, over_time
from relevo.bench.html.page import Report
from relevo.sim.report import SimReport
from relevo.sim.report_tables import report_tables, workload_table
from relevo.sim.results import RequestResult
from relevo.sim.workload_facts import MADE_UP, WorkloadFacts
from relevo.telemetry.distribution import Samples

_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """Every arrival of one configuration, as columns: what a reader needs to compute its figures anew. Seconds."""

    arrived_s: list[float]  # since the first arrival
    ttft_s: list[float | None]
    tpot_s: list[float | None]
    e2e_s: list[float | None]
    num_prompt_tokens: list[int]
    num_cached_tokens: list[int]
    num_output_tokens: list[int]
    outcome: list[str]

    @classmethod
    def of(cls, results: Sequence[RequestResult]) -> RequestColumns:
        start_ns = min((result.arrived_at_ns for result in results), default=0)
        times = [result.times for result in results]
        return cls(
            [(result.arrived_at_ns - start_ns) / _NS_PER_S for result in results],
            [each.ttft_s for each in times],
            [each.tpot_s for each in times],
            [each.e2e_s for each in times],
            [result.num_prompt_tokens for result in results],
            [result.num_cached_tokens for result in results],
            [result.num_output_tokens for result in results],
            [result.outcome.value for result in results],
        )

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def simulation_page(
    facts: WorkloadFacts,
    reports: Sequence[SimReport],
    samples: Mapping[str, Mapping[str, Samples]],
    requests: Mapping[str, RequestColumns],
) -> Report:
    """`samples` and `requests`: by the label of a configuration."""
    source = "made-up load" if facts.source == MADE_UP else facts.source
    return Report(
        title=f"Simulation of {source} on {', '.join(report.label for report in reports) or 'nothing yet'}",
        sentence=_sentence(reports),
        tables=Group(workload_table(facts), report_tables(reports)),
        figures=[
            *latency_curves(samples),
            *(_course(label, columns) for label, columns in requests.items()),
            _use(reports),
            _rates(reports),
        ],
        notes=[f"{report.label}: {note}" for report in reports for note in report.notes],
    )


def _sentence(reports: Sequence[SimReport]) -> str:
    if not reports:
        return "No configuration was simulated to its end."
    told = []
    for report in reports:
        p90 = report.latencies["ttft_s"].value("p90")
        ttft = f", TTFT p90 {1e3 * p90:,.0f} ms" if p90 is not None else ""
        goodput = f", {report.goodput.met_fraction:.1%} within the limits" if report.goodput else ""
        told.append(f"{report.label} finishes {report.requests_per_s:,.2f} requests a second{ttft}{goodput}")
    return f"{'; '.join(told)}."


def _course(label: str, columns: RequestColumns) -> Figure:
    known = _known(zip(columns.arrived_s, columns.ttft_s, strict=True))
    curves = over_time([(at_s, 1e3 * ttft_s) for at_s, ttft_s in known if ttft_s > 0], (0.5, 0.9, 0.99))
    return Plot(
        title=f"TTFT over time, {label}",
        x=Axis(label="seconds of virtual time", from_zero=True),
        y=Axis(label="ms", is_log=True),
        curves=[curve for curve in curves if curve.look is not Look.DOTS],
        note="Of what arrived in each part of the time and got a first token.",
    )


def _known(pairs: Iterable[tuple[float, float | None]]) -> list[tuple[float, float]]:
    return [(at_s, value) for at_s, value in pairs if value is not None]


def _use(reports: Sequence[SimReport]) -> Figure:
    """One bar for each limit of each pool."""
    rows = []
    for report in reports:
        for pool in report.pools:
            fractions = {
                "busy": pool.busy_fraction,
                "of products": pool.products_fraction,
                "of bandwidth": pool.bandwidth_fraction,
                "KV peak": pool.kv_peak_fraction,
            }
            rows += [
                Bar(f"{report.label}, {pool.role}: {name}", {name: 100 * value})
                for name, value in fractions.items()
                if value is not None
            ]
    return Bars(title="Use of the workers over the whole run", axis=Axis(label="%"), rows=rows, unit=" %")


def _rates(reports: Sequence[SimReport]) -> Figure:
    rows = [Bar(report.label, {"output": report.output_tokens_per_s_and_device}) for report in reports]
    return Bars(title="Output for each device", axis=Axis(label="tokens a second and device"), rows=rows)
