"""The report of a simulated run, by hand: latencies over all arrivals, phases, goodput, use, cost."""

from __future__ import annotations

import io
import json
from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from relevo.sim.report import ReportOptions, report_world
from relevo.sim.report_tables import TOO_FEW, report_tables
from relevo.sim.results import LinkResult, RequestOutcome, RequestResult, WorkerResult, WorldResult
from relevo.sim.samples import SharedRuns, latency_samples
from relevo.telemetry.latency import Slo

S = 10**9


def finished(row: int, arrived_s: float, *tokens_s: float, prompt: int = 10, cached: int = 0) -> RequestResult:
    times = array("q", [round(at_s * S) for at_s in tokens_s])
    return RequestResult(
        row=row,
        arrived_at_ns=round(arrived_s * S),
        num_prompt_tokens=prompt,
        num_cached_tokens=cached,
        token_at_ns=[times],
        ended_at_ns=times[-1],
        outcome=RequestOutcome.FINISHED,
    )


def lost(row: int, arrived_s: float, outcome: RequestOutcome, reason: str = "") -> RequestResult:
    ended_at_ns = None if outcome is RequestOutcome.UNFINISHED else round(arrived_s * S)
    return RequestResult(
        row=row,
        arrived_at_ns=round(arrived_s * S),
        num_prompt_tokens=10,
        token_at_ns=[array("q")],  # a client that got nothing may leave an empty run
        ended_at_ns=ended_at_ns,
        outcome=outcome,
        reason=reason,
    )


def test_latencies_by_hand() -> None:
    """TTFT 1 s and 3 s; gaps 0.5, 1.5 and 1 s; TPOT 1 s and 1 s; E2E 3 s and 4 s."""
    told = latency_samples([finished(0, 0, 1.0, 1.5, 3.0), finished(1, 2, 5.0, 6.0)]).distributions()
    assert {key: (d.count, d.mean, d.max) for key, d in told.items()} == {
        "ttft_s": (2, 2.0, 3.0),
        "itl_s": (3, 1.0, 1.5),
        "tpot_s": (2, 1.0, 1.0),
        "e2e_s": (2, 3.5, 4.0),
    }


def test_what_was_not_answered_is_missing_where_it_would_have_been_slow() -> None:
    """Red when a rejected request vanishes from TTFT, or an aborted one is held against the server."""
    stuck = finished(3, 0, 1.0, 2.0)
    stuck.outcome, stuck.ended_at_ns = RequestOutcome.UNFINISHED, None
    results = [
        lost(0, 0, RequestOutcome.REJECTED, "queue"),
        lost(1, 0, RequestOutcome.ABORTED),
        lost(2, 0, RequestOutcome.FAILED, "worker_lost"),
        stuck,
        finished(4, 0, 1.0),
    ]
    told = latency_samples(results).distributions()
    assert {key: (d.count, d.num_missing) for key, d in told.items()} == {
        "ttft_s": (4, 2),
        "itl_s": (1, 0),
        "tpot_s": (1, 1),
        "e2e_s": (4, 3),
    }
    report = report_world("x", WorldResult(requests=results))
    assert report.outcomes == {"rejected": 1, "aborted": 1, "failed": 1, "unfinished": 1, "finished": 1}
    assert report.reasons == {"queue": 1, "worker_lost": 1}


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=6))
def test_shared_runs_count_like_runs_of_their_own(shape: list[tuple[int, int, int]]) -> None:
    """`shape`: for each stretch its tokens, the requests in it, the requests that leave after it."""
    shared = [RequestResult(row=row, arrived_at_ns=0, num_prompt_tokens=1) for row in range(6)]
    at_ns = 0
    for num_tokens, num_requests, first in shape:
        run = array("q", range(at_ns + 1, at_ns + 1 + 3 * num_tokens, 3))
        at_ns = run[-1]
        for result in shared[first : first + num_requests]:
            result.token_at_ns.append(run)
    apart = [list(result.times.token_at_ns) for result in shared]
    gaps = sorted((later - earlier) / S for times in apart for earlier, later in pairwise(times))
    told = SharedRuns(shared).gaps()
    weights = [] if told.weights is None else [int(weight) for weight in told.weights]
    expanded = sorted(float(v) for v, w in zip(told.values_s, weights, strict=True) for _ in range(w))
    assert expanded == pytest.approx(gaps)
    half = at_ns // 2
    assert SharedRuns(shared).num_between(half, at_ns) == sum(half < t <= at_ns for times in apart for t in times)


def world() -> WorldResult:
    """Eleven arrivals, one a second; each answer takes a second to begin and has four tokens a second apart."""
    results = [finished(i, i, *(i + 1.0 + k for k in range(4)), prompt=100, cached=25) for i in range(11)]
    results[10] = finished(10, 10, *(10.5 + k for k in range(4)), prompt=100)
    workers = [
        WorkerResult(
            worker_id="p", role="prefill", num_devices=2, busy_ns=7 * S, products_limit_ns=3 * S, bytes_limit_ns=S
        ),
        WorkerResult(worker_id="d0", role="decode", busy_ns=14 * S, num_blocks=10, most_held_blocks=5),
        WorkerResult(worker_id="d1", role="decode", busy_ns=0, num_blocks=10, most_held_blocks=9),
    ]
    links = [LinkResult(name="p>d0", num_bytes=5 * 10**9, busy_ns=7 * S)]
    return WorldResult(ended_at_ns=14 * S, requests=results, workers=workers, links=links, num_handoffs=11)


def test_phases_are_by_arrival() -> None:
    """The first and the last of ten seconds. Red when a slow request leaves the steady phase by ending late."""
    report = report_world("x", world())
    phases = report.phases
    assert (phases.steady_from_s, phases.steady_to_s) == (1.0, 9.0)
    assert (phases.num_warm_up, phases.num_steady, phases.num_drain) == (1, 9, 1)
    assert report.latencies["ttft_s"].count == 11
    assert report.steady_latencies["ttft_s"].count == 9
    # of tokens in (1, 9]: request i has those at i + 1 .. i + 4
    assert report.steady_output_tokens_per_s == pytest.approx(
        sum(1 < i + 1 + k <= 9 for i in range(10) for k in range(4)) / 8
    )
    own = report_world("x", world(), ReportOptions(warm_up_s=5.0, drain_s=0.0))
    assert (own.phases.num_warm_up, own.phases.num_steady, own.phases.num_drain) == (5, 6, 0)


def test_rates_hits_and_use() -> None:
    report = report_world("x", world())
    assert (report.duration_s, report.arrivals_s, report.num_devices) == (14.0, 10.0, 4)
    assert report.requests_per_s == pytest.approx(11 / 14)
    assert report.output_tokens_per_s_and_device == pytest.approx(44 / 14 / 4)
    assert report.hit_fraction == pytest.approx(250 / 1100)
    prefill, decode = report.pools
    assert (prefill.busy_fraction, decode.busy_fraction) == (0.5, 0.5)  # of two decode workers one was idle
    assert prefill.products_fraction == pytest.approx(3 / 14)
    assert (decode.products_fraction, decode.kv_peak_fraction) == (None, 0.9)
    assert report.links[0].busy_fraction == 0.5


def test_goodput_needs_every_limit_and_a_whole_answer() -> None:
    """The last request begins within 0.5 s, all others after 1 s; gaps are 1 s."""
    results = world()
    results.requests[3].outcome = RequestOutcome.FAILED

    def met(slo: Slo) -> int:
        goodput = report_world("x", results, ReportOptions(slo=slo)).goodput
        assert goodput is not None
        return goodput.num_met

    assert [met(Slo(ttft_s=1.0)), met(Slo(ttft_s=0.9)), met(Slo(tpot_s=0.9)), met(Slo(itl_s=1.0))] == [10, 1, 0, 10]
    goodput = report_world("x", results, ReportOptions(slo=Slo(ttft_s=1.0))).goodput
    assert goodput is not None
    assert goodput.met_fraction == pytest.approx(10 / 11)
    assert goodput.steady_met_fraction == pytest.approx(8 / 9)
    assert goodput.per_s_and_device == pytest.approx(10 / 14 / 4)
    assert report_world("x", results).goodput is None


def test_idle_devices_cost_as_much_as_busy_ones() -> None:
    report = report_world("x", world(), ReportOptions(prices_per_h={"prefill": 3.0, "": 1.0}))
    assert report.cost is not None
    assert report.cost.per_h == 2 * 3.0 + 2 * 1.0
    assert report.cost.total == pytest.approx(8.0 * 14 / 3600)
    assert report.cost.per_million_output_tokens == pytest.approx(report.cost.total / 44 * 1e6)
    assert report.cost.per_thousand_finished == pytest.approx(report.cost.total / 11 * 1e3)


def test_nothing_at_all_is_a_report_too() -> None:
    report = report_world("x", WorldResult(), ReportOptions(slo=Slo(ttft_s=1.0), prices_per_h={"": 1.0}))
    assert (report.num_arrivals, report.requests_per_s, report.hit_fraction) == (0, 0.0, 0.0)
    assert report.goodput is not None and report.goodput.met_fraction == 0.0
    assert report.cost is not None and report.cost.per_million_output_tokens is None
    assert text_of(report_tables([report]))


def text_of(tables: object) -> str:
    console = Console(width=240, record=True, file=io.StringIO())
    console.print(tables)
    return console.export_text()


def test_tables_say_where_a_number_cannot_be_told() -> None:
    reports = [report_world(label, world(), ReportOptions(slo=Slo(ttft_s=1.0))) for label in ("1p2d", "unified")]
    text = text_of(report_tables(reports))
    assert TOO_FEW in text
    assert "1p2d" in text and "unified" in text
    assert "1 / 9 / 1" in text
    assert "cost" not in text  # no prices, no row
    body = json.loads(json.dumps(reports[0].to_json()))
    assert body["latencies"]["ttft_s"]["untold"]["p50"] == "needs 20 samples, there are 11"
    assert body["pools"][1]["role"] == "decode"
