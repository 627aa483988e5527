"""Interference and handoff measurements against scripted servers, and the rules that turn samples into a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_openai_server import FakeOpenAI, served
from told_progress import Told

from relevo.bench.handoff.run import HandoffCost, HandoffOptions, measure_handoffs
from relevo.bench.interference.phase import PhaseOptions, PhaseResult, gaps_within
from relevo.bench.interference.report import InterferenceReport, Variant, VariantResult, best_unified, ratios
from relevo.bench.interference.run import InterferenceOptions, compare_topologies, plan_variants
from relevo.bench.records import ClientRecord
from relevo.client.prometheus_text import metric_deltas, metric_sums
from relevo.core.errors import SettingsError, StartError
from relevo.telemetry.progress import SILENT

PHASE = PhaseOptions(
    num_streams=2,
    stream_prompt_len=4,
    stream_output_len=20,
    prompt_len=30,
    prompt_output_len=2,
    duration_s=0.3,
    baseline_s=0.1,
    seed=0,
)


def options(tmp_path: Path, urls: dict[str, str], **changes: object) -> InterferenceOptions:
    plan = {
        "model": None,
        "urls": urls,
        "topology": "1p1d",
        "chunk_sizes": (64, 256),
        "prefill_chunk_size": None,
        "serve_flags": ("--seed", "1"),
        "load": 0.5,
        "rate_per_s": None,
        "num_rate_prompts": 3,
        "rounds": 2,
        "phase": PHASE,
        "log_dir": tmp_path,
    }
    return InterferenceOptions(**(plan | changes))  # type: ignore[arg-type]


async def test_variants_take_turns_and_meet_the_same_prompts(tmp_path: Path) -> None:
    """Red when a variant gets other arrivals or prompts than the next one, or the rate is measured on the wrong one."""
    split, unified = FakeOpenAI(token_delay_s=0.002), FakeOpenAI(token_delay_s=0.002)
    told = Told()
    report = InterferenceReport()
    async with served(split) as split_url, served(unified) as unified_url:
        plan = options(tmp_path, {"unified-64": unified_url, "1p1d": split_url}, num_rate_prompts=4)
        await compare_topologies(plan, report, told)
    begun = [what for what, _, _ in told.stretches if what.startswith("round") and "starting" not in what]
    assert [what.split(": ")[1] for what in begun] == ["1p1d", "unified-64"] * 2
    assert ("what prefill sustains", 5, 5) in told.stretches
    assert report.arrival_rate_per_s == pytest.approx(0.5 * report.sustained_prompts_per_s)
    long_prompts = [
        [body["prompt"] for body in fake.bodies if body["max_tokens"] == PHASE.prompt_output_len]
        for fake in (split, unified)
    ]
    assert len(long_prompts[0]) > 2
    assert sorted(long_prompts[0]) == sorted(long_prompts[1])  # close arrivals may overtake each other on the way
    assert [body["max_tokens"] for body in split.bodies].count(1) == 5
    assert all(len(body["prompt"]) in (4, 30) and body["ignore_eos"] for body in split.bodies + unified.bodies)
    for result in report.results:
        assert len(result.phases) == 2
        assert result.num_prompts == len(long_prompts[0])
        assert result.num_failed == 0
        assert result.itl is not None
        assert result.baseline_itl is not None
        assert result.ttft is not None
    assert split.num_in_flight == unified.num_in_flight == 0
    body = report.to_json()
    assert body["best_unified"] == "unified-64"
    assert set(body["ratios_best_unified_to_disaggregated"]) == {
        f"{name}_{q}" for name in ("itl", "ttft") for q in ("p50", "p90", "p99")
    }


async def test_streams_that_fail_end_the_measurement(tmp_path: Path) -> None:
    """Red when a refused stream is retried for ever."""
    fake = FakeOpenAI(statuses=[400] * 50)
    async with served(fake) as url:
        plan = options(tmp_path, {"1p1d": url}, rate_per_s=5.0)
        with pytest.raises(StartError, match="decoding stream failed: http_400"):
            await compare_topologies(plan, InterferenceReport(), SILENT)


def test_started_servers_differ_in_topology_and_chunk_only(tmp_path: Path) -> None:
    variants = plan_variants(options(tmp_path, {}, prefill_chunk_size=512))
    assert [variant.name for variant in variants] == ["1p1d", "unified-64", "unified-256"]
    assert variants[0].flags == ("--topology", "1p1d", "--max-num-batched-tokens", "512", "--seed", "1")
    assert variants[2].flags == ("--topology", "unified", "--max-num-batched-tokens", "256", "--seed", "1")
    assert [variant.is_unified for variant in variants] == [False, True, True]


@pytest.mark.parametrize(
    ("changes", "message"), [({"load": 0.0}, "--load"), ({"rounds": 0}, "--rounds"), ({"urls": {"x": "u"}}, "--url")]
)
def test_impossible_plans_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        options(tmp_path, **({"urls": {}} | changes)).check()  # type: ignore[arg-type]


def result(name: str, itl_s: float, ttft_s: float) -> VariantResult:
    phase = PhaseResult(
        itl_s=[itl_s] * 5, baseline_itl_s=[], ttft_s=[ttft_s] * 5, num_prompts=5, num_failed=0, errors=[]
    )
    return VariantResult(Variant(name=name, is_unified=name.startswith("unified")), [phase])


def test_a_chunk_size_that_starves_the_prompts_is_not_the_best() -> None:
    results = [
        result("1p1d", 0.02, 1.0),
        result("unified-64", 0.03, 9.0),
        result("unified-256", 0.05, 3.9),
        result("unified-512", 0.09, 2.0),
    ]
    best = best_unified(results)
    assert best is not None
    assert best.variant.name == "unified-256"
    assert ratios(results)["itl_p90"] == pytest.approx(2.5)
    assert ratios(results)["ttft_p50"] == pytest.approx(3.9)
    assert best_unified(results[:1]) is None
    assert ratios(results[:1]) == {}


def test_gaps_belong_to_the_window_they_end_in_and_never_span_a_restart() -> None:
    def record(stamps: list[int]) -> ClientRecord:
        return ClientRecord(index=0, num_wanted_input_tokens=1, max_tokens=9, chunk_at_ns=stamps)

    second = 10**9
    streams = [[record([0, second, 3 * second]), record([4 * second, 6 * second])], [record([2 * second])]]
    assert gaps_within(streams, (second, 6 * second)) == [1.0, 2.0]
    assert gaps_within(streams, (0, 7 * second)) == [1.0, 2.0, 2.0]


def test_prometheus_samples_are_summed_over_labels() -> None:
    text = "\n".join(
        [
            "# HELP a_total things",
            'a_total{x="1",y="with } and space"} 2',
            'a_total{x="2"} 3 1712000000',
            "b 1.5e3",
            'h_seconds_bucket{le="+Inf"} 9',
            "h_seconds_sum 0.5",
            "broken",
            "c NaN",
        ]
    )
    assert metric_sums(text) == {"a_total": 5.0, "b": 1500.0, "h_seconds_sum": 0.5}
    assert metric_deltas({"a": 1.0}, {"a": 4.0, "new": 2.0}) == {"a": 3.0, "new": 2.0}


def scrape(count: int, handoff_s: float, transferred_bytes: int, transfer_s: float) -> str:
    label = '{model_name="fake-model"}'
    return (
        f"relevo:handoff_seconds_count{label} {count}\nrelevo:handoff_seconds_sum{label} {handoff_s}\n"
        f"relevo:kv_transfer_bytes_total{label} {transferred_bytes}\n"
        f"relevo:kv_transfer_seconds_sum{label} {transfer_s}\n"
    )


async def test_handoff_costs_are_the_difference_of_two_scrapes() -> None:
    scrapes = [scrape(3, 1.0, 10, 0.1), scrape(5, 1.5, 50, 0.3), scrape(5, 1.5, 50, 0.3), scrape(5, 1.5, 50, 0.3)]
    fake = FakeOpenAI(metrics=scrapes)
    costs: list[HandoffCost] = []
    async with served(fake) as url:
        plan = HandoffOptions(
            url=url, model=None, api_key=None, prompt_lens=(8, 20), num_repeats=2, max_tokens=3, seed=0
        )
        await measure_handoffs(plan, costs, SILENT)
    handed, local = costs
    assert [len(body["prompt"]) for body in fake.bodies] == [8, 8, 20, 20]
    assert (handed.num_completed, handed.num_handoffs, handed.transferred_bytes) == (2, 2, 20.0)
    assert handed.handoff_s == pytest.approx(0.25)
    assert handed.transfer_s == pytest.approx(0.1)
    assert handed.client_ttft_s is not None
    assert handed.handoff_share_of_ttft == pytest.approx(0.25 / handed.client_ttft_s.mean)
    assert (local.num_handoffs, local.handoff_s, local.handoff_share_of_ttft) == (0, None, None)
