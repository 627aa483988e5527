"""A load test as a report: how long things took, when, and how much was done at a time. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from relevo.bench.html.figures import Axis, Curve, Figure, Look, Plot, latency_curves, over_time
from relevo.bench.html.page import Report
from relevo.bench.records import ClientRecord, Outcome
from relevo.bench.serve.report import LoadReport, latency_samples
from relevo.bench.tables import load_tables
from relevo.telemetry.latency import Slo, milliseconds

_NUM_PARTS = 60  # of the time, for rates; arbitrary
_MOST_CHANGES = 1000  # that are drawn; arbitrary


def load_page(
    model: str, url: str, report: LoadReport, records: Sequence[ClientRecord], slo: Slo | None = None
) -> Report:
    limits_s = {} if slo is None else {"ttft_s": slo.ttft_s, "itl_s": slo.itl_s}
    return Report(
        title=f"Load test of {model or 'no model yet'} at {url}",
        sentence=load_sentence(report),
        tables=load_tables(report),
        figures=[*latency_curves({model: latency_samples(records)}, limits_s), *course(records)],
    )


def load_sentence(report: LoadReport) -> str:
    if not report.num_requests:
        return "Nothing was sent."
    ttft, itl = report.latencies.get("client_ttft_s"), report.latencies.get("itl_s")
    parts = [
        f"{report.num_completed:,} of {report.num_requests:,} requests were completed in {report.duration_s:,.1f} s,",
        f"{report.requests_per_s:,.2f} requests and {report.output_tokens_per_s:,.0f} output tokens a second",
    ]
    if ttft is not None:
        parts.append(f"with TTFT p50 {milliseconds(ttft.p50)} ms, p99 {milliseconds(ttft.p99)} ms")
    if itl is not None:
        parts.append(f"and ITL p50 {milliseconds(itl.p50)} ms, p99 {milliseconds(itl.p99)} ms")
    return f"{' '.join(parts)}."


def course(records: Sequence[ClientRecord]) -> list[Figure]:
    """TTFT by when a request was sent, requests in flight, and output that came in each part of the time."""
    sent = [record for record in records if record.sent_at_ns]
    if not sent:
        return []
    start_ns = min(record.sent_at_ns for record in sent)
    ttfts = [
        ((record.sent_at_ns - start_ns) / 1e9, ttft_s * 1e3)
        for record in sent
        if record.outcome is Outcome.COMPLETED and (ttft_s := record.times.ttft_s) is not None
    ]
    seconds = Axis(label="seconds since the first request", from_zero=True)
    return [
        Plot(
            title="TTFT over time",
            x=seconds,
            y=Axis(label="ms", is_log=True),
            curves=over_time([point for point in ttfts if point[1] > 0]),
        ),
        Plot(
            title="Requests in flight",
            x=seconds,
            y=Axis(label="requests", from_zero=True),
            curves=[Curve("in flight", in_flight(sent, start_ns), Look.STEPS)],
        ),
        Plot(
            title="Output over time",
            x=seconds,
            y=Axis(label="chunks a second", from_zero=True),
            curves=[Curve("chunks", output_rate(sent, start_ns))],
            note="A chunk is a token unless the server puts several into one.",
        ),
    ]


def in_flight(records: Sequence[ClientRecord], start_ns: int) -> list[tuple[float, float]]:
    """Sent and not ended, after each change; a request without an end counts until the last one of all."""
    ends = [(record.finished_at_ns or record.failed_at_ns, -1) for record in records]
    moments = [(record.sent_at_ns, 1) for record in records] + [(at, by) for at, by in ends if at is not None]
    points, number = [], 0
    for at_ns, by in sorted(moments):
        number += by
        points.append(((at_ns - start_ns) / 1e9, float(number)))
    every = max(1, len(points) // _MOST_CHANGES)
    return points if every == 1 else [*points[::every], points[-1]]


def output_rate(records: Sequence[ClientRecord], start_ns: int) -> list[tuple[float, float]]:
    at_s = [(stamp - start_ns) / 1e9 for record in records for stamp in record.chunk_at_ns]
    if not at_s:
        return []
    width_s = max(at_s) / _NUM_PARTS
    if width_s <= 0:
        return []
    counts = [0] * _NUM_PARTS
    for at in at_s:
        counts[min(_NUM_PARTS - 1, int(at / width_s))] += 1
    return [((number + 0.5) * width_s, count / width_s) for number, count in enumerate(counts)]
