"""`bench frontier` as a report: the plane of both tails for each load, and the distributions behind it. Pure."""

from __future__ import annotations

from relevo.bench.frontier.report import FrontierReport, Point, front, frontier_tables, is_outside, meets
from relevo.bench.html.figures import Axis, Curve, Figure, Look, Plot, cumulative
from relevo.bench.html.page import Report
from relevo.telemetry.distribution import Samples


def frontier_page(report: FrontierReport) -> Report:
    figures: list[Figure] = [_plane(report, load) for load in report.loads]
    for load in report.loads:
        points = report.points(load)
        figures.append(cumulative(f"ITL at {load}", {point.arm: Samples(point.phase.gaps_s) for point in points}))
        figures.append(cumulative(f"TTFT at {load}", {point.arm: Samples(_ttfts_s(point)) for point in points}))
    return Report(
        title="Agent traffic: time between tokens against time to the first one",
        sentence=frontier_sentence(report),
        tables=frontier_tables(report),
        figures=figures,
    )


def frontier_sentence(report: FrontierReport) -> str:
    told = []
    for load in report.loads:
        points = report.points(load)
        if not any(point.is_unified and point.place for point in points):
            told.append(f"at {load} there are too few samples of unified servers to compare with")
            continue
        outside = [point.arm for point in points if is_outside(point, points)]
        met = [arm for arm, found in report.ratios_at(load).items() if meets(found)]
        told.append(
            f"at {load} {', '.join(outside) or 'no mode'} lies outside the unified chunk sizes, and "
            f"{', '.join(met) or 'none'} meets both goals"
        )
    partial = f" {report.num_missing} parts are not measured yet." if report.num_missing else ""
    return (f"{'; '.join(told).capitalize()}." if told else "Nothing was measured.") + partial


def _plane(report: FrontierReport, load: str) -> Plot:
    points = report.points(load)
    placed = [(point.arm, place) for point in points if (place := point.place) is not None]
    curves = [Curve(arm, [(1e3 * ttft_s, 1e3 * itl_s)], Look.LINE) for arm, (ttft_s, itl_s) in placed]
    best = sorted(place for point in front(points) if (place := point.place) is not None)
    if len(best) > 1:
        curves.append(Curve("front", [(1e3 * ttft_s, 1e3 * itl_s) for ttft_s, itl_s in best], Look.LINE))
    without = [point.arm for point in points if point.place is None]
    note = "Lower and further left is better."
    return Plot(
        title=f"TTFT p90 against ITL p99 at {load}",
        x=Axis(label="TTFT p90, ms", is_log=True),
        y=Axis(label="ITL p99, ms", is_log=True),
        curves=curves,
        note=f"{note} Not drawn, for too few samples: {', '.join(without)}." if without else note,
    )


def _ttfts_s(point: Point) -> list[float]:
    return [answer.ttft_s for answer in point.phase.answers if answer.ttft_s is not None]
