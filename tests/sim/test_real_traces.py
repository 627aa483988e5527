"""The readers on the public traces themselves: rows, means and reuse as published or counted independently."""

from __future__ import annotations

from statistics import fmean

import pytest
from real_traces import trace

from relevo.sim.reuse import measure_reuse, reuse_curve
from relevo.workload.timing import tick_s
from relevo.workload.traces.files import ReadOptions, read_trace_file

# name: rows, mean prompt tokens, mean output tokens, seconds from first to last arrival
ROWS = {
    "mooncake_conversation_trace.jsonl": (12_031, 12_035, 343, 3_537),
    "mooncake_synthetic_trace.jsonl": (3_993, 15_325, 149, 1_022),
    "AzureLLMInferenceTrace_code_2023.csv": (8_819, 2_048, 28, 3_436),
    "AzureLLMInferenceTrace_conv_2023.csv": (19_366, 1_155, 211, 3_502),
    "derived_lmcache_miniswe_blk16.jsonl": (402, None, None, None),
    "derived_lmcache_magagent_blk16.jsonl": (746, None, None, None),
    "llmservingsim_workload_me2_01_mixed.jsonl": (608, 9_218, 3_021, 61),
    "derived_sharegpt_lengths.jsonl": (61_239, 753, 325, None),
    "vidur_arxiv_summarization.csv": (28_257, 2_588, 291, None),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_and_means(name: str) -> None:
    """Red when a reader loses rows, swaps columns, or takes milliseconds for seconds."""
    num_rows, prompt, output, span_s = ROWS[name]
    requests = read_trace_file(trace(name)).requests
    assert len(requests) == num_rows
    if prompt is not None and output is not None:
        assert fmean(r.num_prompt_tokens for r in requests) == pytest.approx(prompt, abs=1)
        assert fmean(r.num_output_tokens for r in requests) == pytest.approx(output, abs=1)
    if span_s is not None:
        assert max(r.arrived_at_s or 0.0 for r in requests) == pytest.approx(span_s, abs=1)


def test_only_the_conversation_trace_has_ticks() -> None:
    assert tick_s(read_trace_file(trace("mooncake_conversation_trace.jsonl")).requests) == 3.0
    assert tick_s(read_trace_file(trace("mooncake_synthetic_trace.jsonl")).requests) is None


@pytest.mark.parametrize(
    ("name", "most", "shares"),
    [
        ("conversation", 0.3664, {1: 0.145, 3: 0.371, 10: 0.778, 30: 0.979, 50: 0.992}),
        ("synthetic", 0.6396, {1: 0.223, 3: 0.484, 10: 0.886, 30: 1.0}),
    ],
)
def test_reuse_of_mooncake(name: str, most: float, shares: dict[int, float]) -> None:
    """The block pool against an independent count of a least-recently-used cache, by millions of tokens. Red when
    eviction takes a prefix before what builds on it, or forgets in another order than it was used."""
    requests = read_trace_file(trace(f"mooncake_{name}_trace.jsonl")).requests
    unbounded, curve = reuse_curve(requests, 512, [millions * 1_000_000 for millions in shares])
    assert unbounded.hit_fraction == pytest.approx(most, abs=5e-5)
    assert [share for _, share in curve] == pytest.approx(list(shares.values()), abs=5e-4)


def test_agents_repeat_almost_everything() -> None:
    requests = read_trace_file(trace("derived_lmcache_miniswe_blk16.jsonl")).requests
    reuse = measure_reuse(requests, 16, None)
    cached = 16 * reuse.num_hit_blocks / sum(r.num_prompt_tokens for r in requests)
    assert cached == pytest.approx(0.935, abs=0.002)


def test_a_day_of_servegen_has_its_published_rate() -> None:
    """Ten minutes of it, at noon, inside the range of its rates over the day."""
    options = ReadOptions(part="reason/deepseek-r1", start_s=12 * 3600, duration_s=600)
    requests = read_trace_file(trace("servegen_deepseek-r1_and_m-small.tar.gz"), options).requests
    assert 4.3 < len(requests) / 600 < 42.5
    assert len({r.client for r in requests}) > 10
