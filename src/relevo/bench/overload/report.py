"""From the records of an overload to its numbers and table. Pure: no clock, no files.

A request counts towards goodput if it was sent and completed within the load's window and met its objectives.
Rejections are answers 429 and 503; every other failure is an error. What follows the overload is compared, request by
request, with the same load on the server at rest: how long after the overload the last request was sent that was not
served within its objectives though its twin was, and the last whose first token came later than its twin's by more
than `AS_BEFORE` of the objective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from relevo.bench.records import ClientRecord, Outcome
from relevo.telemetry.latency import Slo, milliseconds, percentile

AS_BEFORE = 0.1  # arbitrary: of the objective for the first token, that no client minds
REJECTIONS = ("http_429", "http_503")
_RAMP = 0.25  # of the capacity measurement: not counted, queues fill


@dataclass(slots=True, kw_only=True)
class OverloadPhase:
    """One multiple of the capacity: everything that happened, times on the load generator's clock.

    `at_rest`: before it, one for each request that follows the overload, in the same order; or none at all.
    """

    multiple: float
    offered_per_s: float
    duration_s: float
    start_ns: int
    records: list[ClientRecord] = field(default_factory=list)
    at_rest: list[ClientRecord] = field(default_factory=list)
    rss_before_bytes: dict[int, int] = field(default_factory=dict)
    rss_after_bytes: dict[int, int] = field(default_factory=dict)

    @property
    def end_ns(self) -> int:
        """Of the overload; what follows is the recovery."""
        return self.start_ns + round(self.duration_s * 1e9)

    def report(self, slo: Slo) -> OverloadReport:
        loaded = [r for r in self.records if (r.due_at_ns or r.sent_at_ns) < self.end_ns]
        later = [r for r in self.records if (r.due_at_ns or r.sent_at_ns) >= self.end_ns]
        completed = [record for record in loaded if record.outcome is Outcome.COMPLETED]
        good = [r for r in completed if r.meets(slo) and (r.finished_at_ns or 0) <= self.end_ns]
        rejected_s = sorted(
            (record.failed_at_ns - record.sent_at_ns) / 1e9
            for record in self.records
            if record.error in REJECTIONS and record.failed_at_ns is not None
        )
        lateness_s = sorted(record.lateness_s for record in self.records)
        errors = Counter(r.error for r in self.records if r.error is not None and r.error not in REJECTIONS)
        return OverloadReport(
            multiple=self.multiple,
            offered_per_s=self.offered_per_s,
            num_sent=len(loaded),
            num_completed=len(completed),
            num_rejected=sum(record.error in REJECTIONS for record in loaded),
            errors=dict(errors),
            num_unfinished=sum(record.outcome is Outcome.UNFINISHED for record in self.records),
            goodput_per_s=len(good) / self.duration_s,
            slo_met_fraction=sum(record.meets(slo) for record in completed) / max(1, len(completed)),
            ttft_p50_s=_percentile([r.times.ttft_s for r in completed if r.times.ttft_s is not None], 0.5),
            ttft_p99_s=_percentile([r.times.ttft_s for r in completed if r.times.ttft_s is not None], 0.99),
            rejection_p50_s=_percentile(rejected_s, 0.5),
            rejection_p99_s=_percentile(rejected_s, 0.99),
            recovery_s=_last_bad_s(later, self.at_rest, self.end_ns, slo, _is_missed),
            as_before_s=_last_bad_s(later, self.at_rest, self.end_ns, slo, _is_slower),
            lateness_p99_s=_percentile(lateness_s, 0.99) or 0.0,
            rss_growth_bytes={
                pid: after - self.rss_before_bytes[pid]
                for pid, after in self.rss_after_bytes.items()
                if pid in self.rss_before_bytes
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadReport:
    multiple: float
    offered_per_s: float
    num_sent: int  # within the load's window, like the next two
    num_completed: int
    num_rejected: int
    errors: dict[str, int]  # by kind, rejections not among them
    num_unfinished: int
    goodput_per_s: float
    slo_met_fraction: float  # of the completed ones
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    rejection_p50_s: float | None  # sent -> answered; None: none was rejected
    rejection_p99_s: float | None
    recovery_s: float | None  # all are served; None: not within the time that was watched, or nothing was sent in it
    as_before_s: float | None  # as soon as at rest; likewise
    lateness_p99_s: float
    rss_growth_bytes: dict[int, int]

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def capacity_per_s(records: Sequence[ClientRecord], start_ns: int, duration_s: float) -> float:
    """Completions per second of a closed loop that sent for `duration_s`: the larger of two readings.

    Within the window, its first quarter left out, which is right for a long window; and over everything, until the last
    one ended, which is a little low but knows of no cohorts (clients that begin together end together at first).
    """
    ended = [r.finished_at_ns for r in records if r.outcome is Outcome.COMPLETED and r.finished_at_ns is not None]
    if not ended:
        return 0.0
    from_ns, to_ns = start_ns + round(_RAMP * duration_s * 1e9), start_ns + round(duration_s * 1e9)
    within = sum(from_ns <= at_ns < to_ns for at_ns in ended) / (duration_s * (1.0 - _RAMP))
    return max(within, len(ended) / ((max(ended) - start_ns) / 1e9))


def overload_table(reports: Sequence[OverloadReport]) -> Table:
    """One row per multiple; goodput also as a fraction of the row nearest to the capacity itself."""
    table = Table(title="Overload; times in ms, rates per second", title_justify="left")
    headings = ("load", "offered", "sent", "done", "rejected", "errors", "goodput", "of 1x", "in time", "TTFT p50")
    for heading in (*headings, "p99", "reject p50", "p99", "served s", "as before s", "RSS MB"):
        table.add_column(heading, justify="right")
    base = min(reports, key=lambda report: abs(report.multiple - 1.0), default=None)
    for report in reports:
        of_base = report.goodput_per_s / base.goodput_per_s if base is not None and base.goodput_per_s else None
        growth = sum(report.rss_growth_bytes.values()) / 1e6
        table.add_row(
            f"{report.multiple:g}x",
            f"{report.offered_per_s:.1f}",
            str(report.num_sent),
            str(report.num_completed),
            str(report.num_rejected),
            ", ".join(f"{kind}: {count}" for kind, count in sorted(report.errors.items())) or "0",
            f"{report.goodput_per_s:.2f}",
            "-" if of_base is None else f"{of_base:.0%}",
            f"{report.slo_met_fraction:.1%}",
            milliseconds(report.ttft_p50_s),
            milliseconds(report.ttft_p99_s),
            milliseconds(report.rejection_p50_s),
            milliseconds(report.rejection_p99_s),
            *("-" if at_s is None else f"{at_s:.1f}" for at_s in (report.recovery_s, report.as_before_s)),
            f"{growth:+.1f}" if report.rss_growth_bytes else "-",
        )
    return table


def _last_bad_s(
    later: Sequence[ClientRecord],
    at_rest: Sequence[ClientRecord],
    end_ns: int,
    slo: Slo,
    is_bad: Callable[[ClientRecord, ClientRecord | None, Slo], bool],
) -> float | None:
    """Seconds after the overload at which the last one came that `is_bad` beside its twin at rest; 0: none did.

    None: the last one of all was, or no request came to see.
    """
    in_order = sorted(later, key=lambda record: record.sent_at_ns)
    if at_rest and len(at_rest) != len(in_order):
        return None  # it was interrupted
    twins: Sequence[ClientRecord | None] = at_rest or [None] * len(in_order)
    bad = [is_bad(record, twin, slo) for record, twin in zip(in_order, twins, strict=True)]
    if not bad or bad[-1]:
        return None
    return max(((r.sent_at_ns - end_ns) / 1e9 for r, is_it in zip(in_order, bad, strict=True) if is_it), default=0.0)


def _is_served(record: ClientRecord, slo: Slo) -> bool:
    return record.outcome is Outcome.COMPLETED and record.meets(slo)


def _is_missed(record: ClientRecord, twin: ClientRecord | None, slo: Slo) -> bool:
    return not _is_served(record, slo) and (twin is None or _is_served(twin, slo))


def _is_slower(record: ClientRecord, twin: ClientRecord | None, slo: Slo) -> bool:
    ttft_s, twin_s = record.times.ttft_s, twin.times.ttft_s if twin is not None else None
    if _is_missed(record, twin, slo) or ttft_s is None or twin_s is None:
        return _is_missed(record, twin, slo)
    return ttft_s > twin_s + AS_BEFORE * (slo.ttft_s or 0.0)


def _percentile(values: Sequence[float], q: float) -> float | None:
    return percentile(sorted(values), q) if values else None
