"""Bytes of every kind of cache. Red when a kind counts what it does not keep, or a layout forgets one of its groups.

The expected numbers of published models are written down as their papers and configs give them, in bfloat16.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relevo.core.kv import KVGroup, KVLayout
from relevo.policy.perf.model_config import model_shape

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "model_configs"


def layout(*groups: KVGroup, dtype: str = "bfloat16", block_size: int = 16) -> KVLayout:
    return KVLayout("m", dtype, block_size, groups)


PUBLISHED = [
    # config, bytes per token, of these growing with the sequence, bytes per sequence
    ("meta-llama--Meta-Llama-3.1-8B", 131_072, 131_072, 0),
    ("meta-llama--Meta-Llama-3.1-70B", 327_680, 327_680, 0),
    ("Qwen--Qwen3-8B", 147_456, 147_456, 0),
    ("Qwen--Qwen3-32B", 262_144, 262_144, 0),
    ("Qwen--Qwen3-30B-A3B", 98_304, 98_304, 0),
    ("Qwen--Qwen3-235B-A22B", 192_512, 192_512, 0),
    ("openai--gpt-oss-120b", 73_728, 36_864, 0),
    ("meta-llama--Llama-4-Scout-17B-16E-Instruct", 196_608, 49_152, 0),
    ("zai-org--GLM-5", 89_856 + 78 * 132, 89_856 + 78 * 132, 0),
    ("deepseek-ai--DeepSeek-V3", 70_272, 70_272, 0),
    ("deepseek-ai--DeepSeek-R1", 70_272, 70_272, 0),
    ("moonshotai--Kimi-K2-Instruct", 70_272, 70_272, 0),
    ("moonshotai--Kimi-K2.5", 70_272, 70_272, 0),
    ("Qwen--Qwen3.5-35B-A3B", 20_480, 20_480, 64_389_120),
    ("Qwen--Qwen3.5-27B", 65_536, 65_536, 153_944_064),
    ("Qwen--Qwen3.5-397B-A17B", 30_720, 30_720, 192_061_440),
]


@pytest.mark.parametrize(("name", "per_token", "growing", "per_sequence"), PUBLISHED)
def test_published_models(name: str, per_token: int, growing: int, per_sequence: int) -> None:
    path = CONFIGS / f"{name}_config.json"
    if not path.exists():
        pytest.skip(f"no published config at {path}")
    shape = model_shape(name, json.loads(path.read_text()))
    cache = layout(*(layers.cache for layers in shape.attention))
    assert cache.bytes_per_token == per_token
    assert cache.growing_bytes_per_token == growing
    assert cache.bytes_per_sequence == per_sequence


def test_the_model_that_is_served_by_default() -> None:
    """SmolLM2-135M in three dtypes; int8 stores a scale beside the keys and the values of each head."""
    smollm2 = KVGroup.full(range(30), 3, 64)
    assert layout(smollm2).bytes_per_token == 23_040
    assert layout(smollm2, dtype="float32").bytes_per_token == 46_080
    assert layout(smollm2, dtype="int8").bytes_per_token == 30 * 3 * 2 * (64 + 4)
    assert layout(smollm2).bytes_per_block == 16 * 23_040


def test_a_latent_has_one_scale_and_no_value() -> None:
    deepseek = KVGroup.latent(range(61), 576)
    assert layout(deepseek, dtype="float8_e4m3").bytes_per_token == 35_136
    assert layout(deepseek, dtype="int8").bytes_per_token == 61 * (576 + 4)
    assert layout(KVGroup.latent(range(61), 576, index_bytes=132)).bytes_per_token == 70_272 + 61 * 132


@pytest.mark.parametrize(
    ("group", "num_tokens", "first"),
    [
        (KVGroup.full([0], 1, 8), 300, 0),
        (KVGroup.latent([0], 576), 300, 0),
        (KVGroup.window([0], 1, 8, 128), 127, 0),  # the next token sees 128: itself and all of these
        (KVGroup.window([0], 1, 8, 128), 128, 1),
        (KVGroup.window([0], 1, 8, 1), 5, 5),
        (KVGroup.chunk([0], 1, 8, 128), 127, 0),
        (KVGroup.chunk([0], 1, 8, 128), 128, 128),  # the next token begins a chunk
        (KVGroup.chunk([0], 1, 8, 128), 300, 256),
        (KVGroup.state([0], 64), 300, 300),
    ],
)
def test_what_the_next_token_reads(group: KVGroup, num_tokens: int, first: int) -> None:
    assert group.first_kept(num_tokens) == first


def test_a_long_sequence_takes_what_its_kinds_keep() -> None:
    """gpt-oss at 10,000 tokens: all of them in 18 layers, the 127 before the next one in the other 18."""
    gpt_oss = layout(KVGroup.full(range(1, 36, 2), 8, 64), KVGroup.window(range(0, 36, 2), 8, 64, 128))
    assert gpt_oss.sequence_bytes(10_000) == 36_864 * (10_000 + 127)
    assert gpt_oss.sequence_bytes(100) == 73_728 * 100
    hybrid = layout(KVGroup.full([3], 2, 256), KVGroup.state([0, 1, 2], 1000))
    assert hybrid.sequence_bytes(7) == 7 * 2048 + 3000


def test_layouts_that_differ_say_where() -> None:
    mine = layout(KVGroup.full([1, 3], 8, 64), KVGroup.window([0, 2], 8, 64, 128))
    other = layout(KVGroup.full([1, 3], 8, 64), KVGroup.window([0, 2], 8, 64, 256))
    assert mine.mismatch(layout(*mine.groups)) is None
    full, window = "full, layers 1 3, 8 x 64+64", "window of {} tokens, layers 0 2, 8 x 64+64"
    here, there = f"{full} and {window.format(128)}", f"{full} and {window.format(256)}"
    assert mine.mismatch(other) == (
        f"KV layouts differ in groups: {here} here, {there} there; start both with the same value"
    )


def test_workers_with_other_blocks_hand_over_what_can_be_cut() -> None:
    full, state = KVGroup.full([0], 1, 8), KVGroup.state([1], 128)
    assert layout(full).mismatch(layout(full, block_size=32)) is None
    refusal = layout(full, state).mismatch(layout(full, state, block_size=32))
    assert refusal == "KV layouts differ in block_size: 16 here, 32 there; start both with the same value"
