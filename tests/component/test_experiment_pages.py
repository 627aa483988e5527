"""What each experiment's page says of results that are known. Pure: nothing is measured, no file is written."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape

import pytest

from relevo.bench.engine.pictures import engine_page
from relevo.bench.engine.run import Breakdown, DecodeRow, EngineReport, PrefillRow, Spread
from relevo.bench.gateway.pictures import gateway_page
from relevo.bench.gateway.run import PathCost
from relevo.bench.handoff.pictures import handoff_page
from relevo.bench.handoff.run import HandoffCost
from relevo.bench.html.figures import Plot
from relevo.bench.html.page import Origin, Report, page
from relevo.bench.interference.phase import PhaseResult
from relevo.bench.interference.pictures import interference_page, ratio_ranges
from relevo.bench.interference.report import InterferenceReport, Variant, VariantResult
from relevo.bench.overload.pictures import overload_page
from relevo.bench.overload.report import OverloadPhase
from relevo.bench.peers.pictures import peers_page
from relevo.bench.peers.report import PeersReport, TargetResult
from relevo.bench.peers.scenarios import Metric
from relevo.bench.quality.pictures import quality_page
from relevo.bench.quality.run import Disagreement, QualityReport, Score
from relevo.bench.record.pictures import RecordedRun, record_page
from relevo.bench.records import ClientRecord
from relevo.bench.serve.pictures import in_flight, load_page, output_rate
from relevo.bench.serve.report import report_load
from relevo.bench.sessions.pictures import sessions_page
from relevo.bench.sessions.report import SessionsReport, VariantRun
from relevo.bench.soak.memory_track import MemoryTrack, Track
from relevo.bench.soak.pictures import soak_page
from relevo.bench.soak.report import Asked, SoakResult
from relevo.bench.tables import load_tables
from relevo.bench.transport.pictures import transport_page
from relevo.bench.transport.run import TransportCost
from relevo.build.bench_requests import keeping_page, measure_keeping
from relevo.sim.pictures import simulation_page
from relevo.sim.workload_facts import WorkloadFacts
from relevo.telemetry.latency import Slo, summarise
from relevo.telemetry.progress import SILENT

S = 1_000_000_000
ORIGIN = Origin(command="relevo bench", at="now", facts=[], settings=[])


def record(sent_s: float, *chunks_s: float, error: str | None = None) -> ClientRecord:
    made = ClientRecord(index=0, num_wanted_input_tokens=4, max_tokens=9, sent_at_ns=round(sent_s * S) + S)
    made.chunk_at_ns = [round(at * S) + S for at in chunks_s]
    made.num_output_tokens = len(chunks_s)
    if error is not None:
        made.error, made.failed_at_ns = error, made.sent_at_ns + S // 100
    elif chunks_s:
        made.finished_at_ns = made.chunk_at_ns[-1]
    return made


RECORDS = [record(0.0, 0.5, 1.0), record(0.2, 0.4, 2.0), record(1.5, error="http_429"), record(1.8)]


def load() -> Report:
    return load_page("m", "http://h", report_load(RECORDS), RECORDS)


def engine() -> Report:
    parts = Breakdown(kernels_s=0.6, inputs_s=0.1, sampling_s=0.1, schedule_s=0.1, rest_s=0.1, overhead_fraction=0.4)
    unknown = Breakdown(
        kernels_s=None, inputs_s=None, sampling_s=None, schedule_s=0.1, rest_s=None, overhead_fraction=None
    )
    report = EngineReport(notes=["no limits here"])
    report.prefill = [
        PrefillRow(
            prompt_len=128,
            tokens_per_s=Spread(median=500.0, least=400.0, most=600.0),
            breakdown=parts,
            num_steps=1,
            operations_per_s=5e9,
            limit_operations_per_s=1e10,
        )
    ]
    report.decode = [
        DecodeRow(
            batch_size=size,
            context=128,
            step_s=Spread(median=0.02, least=0.01, most=0.03),
            breakdown=unknown,
            step_bytes=None,
            bytes_per_s=None,
            operations_per_s=None,
            limit_bytes_per_s=None,
            limit_operations_per_s=None,
        )
        for size in (1, 8)
    ]
    return engine_page(report)


def gateway() -> Report:
    worker = PathCost("worker", [0.010], [0.050], num_tokens=10)
    between = PathCost("gateway", [0.013], [0.051], num_tokens=10, cpu_s=0.001)
    return gateway_page([worker, between])


def handoff() -> Report:
    costs = [
        HandoffCost(
            prompt_len=length,
            num_completed=1,
            num_failed=0,
            client_ttft_s=summarise([0.2]),
            num_handoffs=1,
            handoff_s=0.02,
            transfer_s=None,
            transferred_bytes=1e6,
            handoff_share_of_ttft=0.1,
        )
        for length in (128, 1500)
    ]
    return handoff_page("http://h", costs)


def phase(itl_s: float, ttft_s: float) -> PhaseResult:
    return PhaseResult(itl_s=[itl_s], baseline_itl_s=[], ttft_s=[ttft_s], num_prompts=1, num_failed=0, errors=[])


def interference_report() -> InterferenceReport:
    split, unified = Variant(name="1p1d", is_unified=False), Variant(name="unified-64", is_unified=True)
    report = InterferenceReport(arrival_rate_per_s=1.0)
    report.results = [
        VariantResult(split, [phase(0.01, 0.2), phase(0.02, 0.2)]),
        VariantResult(unified, [phase(0.03, 0.2), phase(0.08, 0.2)]),
    ]
    return report


def interference() -> Report:
    return interference_page(interference_report())


def overload() -> Report:
    made = OverloadPhase(multiple=4.0, offered_per_s=8.0, duration_s=1.6, start_ns=S, records=RECORDS)
    return overload_page("m", "http://h", [made], [made.report(Slo(ttft_s=1.0))])


METRIC = Metric("decode: ms/token", lower_is_better=True)


def peers() -> Report:
    report = PeersReport(metrics=[METRIC])
    report.results = [
        TargetResult("relevo", values={METRIC: [2.0, 4.0, 6.0]}),
        TargetResult("other", values={METRIC: [5.0]}, faults=["one run failed"]),
    ]
    return peers_page(report)


def quality() -> Report:
    report = QualityReport(reference="torch float32", context=8, near_tie=0.05)
    good = Score(name="good", num_tokens=100, kl_sum=0.1, num_disagreements=2, num_near_ties=1)
    good.shown = [Disagreement(0, 5, 0.3)]
    report.scores = [good, Score(name="broken", num_tokens=100, kl_sum=float("nan")), Score(name="not run")]
    return quality_page(report)


def record_runs() -> Report:
    sums = report_load(RECORDS)
    runs = [
        RecordedRun(topology="1p1d", name="capacity", offered_per_s=None, report=sums),
        RecordedRun(topology="1p1d", name="load-30", offered_per_s=0.5, report=sums),
    ]
    return record_page(runs, "runs")


def sessions() -> Report:
    done = record(0.0, 0.5)
    done.num_prompt_tokens, done.num_cached_tokens = 10, 5
    runs = [VariantRun(variant="ttft", records=[done], prefill_tokens={"prefill-0": 5.0, "prefill-1": 0.0})]
    return sessions_page(SessionsReport(runs), "1 session")


def soak() -> Report:
    memory = MemoryTrack({7: Track("gateway", 7, [0.0, 2.0], [10**8, 10**8])})
    result = SoakResult([Asked("a", "question", "/v1/completions", is_complete=True)], [(1.0, "decode-0")], memory)
    return soak_page(result, load_tables(report_load([])), [], ["gateway (7)"])


def transport() -> Report:
    cost = TransportCost(
        transport="tcp", num_bytes=10**7, num_blocks=3, handoff_s=summarise([0.02]), write_s=summarise([0.01, 0.04])
    )
    return transport_page([cost])


def requests() -> Report:
    return keeping_page(measure_keeping(50, SILENT))


def simulation() -> Report:
    facts = WorkloadFacts("made up", 0, 0, 0.0, 0.0, 0, None, None, 0.0, ())
    return simulation_page(facts, [], {}, {})


PAGES: dict[str, tuple[Callable[[], Report], list[str]]] = {
    "serve": (load, ["2 of 4 requests were completed in 2.0 s", "TTFT (client)", "http_429: 1"]),
    "engine": (engine, ["Prefill reaches 500 tokens a second", "of the multiply limit", "50 %", "no limits here"]),
    "gateway": (gateway, ["adds 3.00 ms to TTFT and 1.00 ms to ITL", "for 100 us of CPU per token"]),
    "handoff": (handoff, ["Of a prompt of 1500 tokens the handoff takes 20.0 ms, 10.0 % of TTFT"]),
    "interference": (interference, ["ITL p99 of unified-64 is", "Best unified / disaggregated"]),
    "overload": (overload, ["At 4 times the capacity", "1 of 3 were rejected", "rejected after"]),
    "peers": (peers, ["relevo is better than the best peer in 1 of 1 figures", "one run failed", "lower is better"]),
    "quality": (quality, ["good is nearest to torch float32", "broken: its divergence is no finite number"]),
    "record": (record_runs, ["Requests a second with clients that wait: 1p1d 1.00", "load-30"]),
    "requests": (requests, ["requests a second are kept", "marks of one streamed token"]),
    "sessions": (sessions, ["ttft found most of the prompts in a cache, 50.0 %", "prefill-1"]),
    "soak": (soak, ["1 requests over 1 kills", "gateway (7) grew too fast", "kill -9 of decode-0"]),
    "transport": (transport, ["10.0 MB of KV change workers in 20.00 ms by tcp"]),
    "simulate": (simulation, ["Simulation of made-up load on nothing yet", "No configuration was simulated"]),
}


@pytest.mark.parametrize(("make", "words"), PAGES.values(), ids=PAGES)
def test_a_page_tells_the_result(make: Callable[[], Report], words: list[str]) -> None:
    """Red when a figure cannot be drawn, a table has no form in HTML, or the sentence says another number."""
    text = unescape(page(make(), ORIGIN, b"{}"))
    for expected in words:
        assert expected in text


def nothing() -> list[Report]:
    """Of experiments that were interrupted before anything was measured."""
    return [
        load_page("", "http://h", report_load([]), []),
        engine_page(EngineReport()),
        gateway_page([]),
        gateway_page([PathCost("worker"), PathCost("gateway")]),
        handoff_page("http://h", []),
        interference_page(InterferenceReport()),
        overload_page("", "http://h", [], []),
        peers_page(PeersReport()),
        quality_page(QualityReport(reference="r", context=8, near_tie=0.05)),
        record_page([], "runs"),
        keeping_page(None),
        sessions_page(SessionsReport(), ""),
        soak_page(SoakResult(), load_tables(report_load([])), [], []),
        transport_page([]),
    ]


def test_nothing_measured_is_a_page_too() -> None:
    for report in nothing():
        assert report.sentence.endswith(".")
        assert page(report, ORIGIN, b"{}", partial="it was interrupted")


def test_a_ratio_has_the_spread_of_its_rounds() -> None:
    """Unified over disaggregated: 3 in the first round, 4 in the second. Red when a round is compared with another."""
    (row,) = [row for row in ratio_ranges(interference_report()) if row.name == "ITL p50"]
    assert (row.least, row.most) == (pytest.approx(3.0), pytest.approx(4.0))
    assert row.least <= row.value <= row.most


def test_peers_show_our_least_and_most_over_the_best_peer() -> None:
    (row,) = peers().figures[0].rows  # type: ignore[union-attr]
    assert (row.value, row.least, row.most) == (4 / 5, 2 / 5, 6 / 5)  # type: ignore[union-attr]


def test_requests_in_flight_are_those_without_an_end() -> None:
    points = in_flight(RECORDS, S)
    assert points[:2] == [(0.0, 1.0), (0.2, 2.0)]
    assert points[-1][1] == 1.0, "one was sent and never ended"
    assert [number for _, number in points] == [1, 2, 1, 2, 1, 2, 1]


def test_output_over_time_counts_every_chunk() -> None:
    points = output_rate(RECORDS, S)
    width_s = points[1][0] - points[0][0]
    assert sum(rate * width_s for _, rate in points) == pytest.approx(4.0)


def test_times_of_refusals_are_apart_from_first_tokens() -> None:
    plot = overload().figures[-1]
    assert isinstance(plot, Plot)
    assert {curve.name: len(curve.points) for curve in plot.curves} == {"TTFT": 2, "rejected after": 1}
