"""Pools with blocks of different sizes behind HTTP: the bits of one process, and as many bytes as tokens take.

Red when a worker takes room of another block size for its own, when a prompt is found cached that is not, or when a
window moves whole because blocks are larger.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from handoffs import answers_until_handed_over
from loopback_boxes import command, free_port, get, until
from stack import Stack, stack
from test_grouped_serving import KEPT, LAYER_BYTES, LENGTH, NUM_LOCAL, model_of
from test_latent_serving import CONFIG, LATENT, LAYERS, ROTATED
from tiny_folders import write_folder
from transformers import LlamaConfig, PretrainedConfig

DENSE = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
)
MODELS: dict[str, PretrainedConfig] = {"dense": DENSE, "latent": CONFIG, "window": model_of("gemma3").config}
LOCAL, ALL = NUM_LOCAL["gemma3"]
MOVED = {  # bytes of a prompt, float16
    "dense": 2 * LAYER_BYTES * LENGTH,
    "latent": LAYERS * (LATENT + ROTATED) * 2 * LENGTH,
    "window": LAYER_BYTES * ((ALL - LOCAL) * LENGTH + LOCAL * KEPT["gemma3"]),
}
FLAGS = ("--num-kv-blocks", "300", "--max-model-len", "512")
NUM_PROMPTS = 4


def answer(server: Stack, seed: int) -> Any:
    prompt = [(seed + 7 * place + place * place) % 256 for place in range(LENGTH)]
    choice = server.complete(prompt, max_tokens=40, logprobs=1, ignore_eos=True)["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("model", [pytest.param("dense", marks=pytest.mark.slow), "window"])
def test_split_answers_have_the_bits_of_unified_ones(model: str, tmp_path: Path) -> None:
    are_split_as_unified(model, tmp_path, ((16, 32), (32, 16)))


@pytest.mark.slow
def test_so_have_those_of_latents(tmp_path: Path) -> None:
    are_split_as_unified("latent", tmp_path, ((16, 32), (32, 16), (16, 24)))


def are_split_as_unified(model: str, tmp_path: Path, sizes: tuple[tuple[int, int], ...]) -> None:
    folder = str(write_folder(tmp_path, MODELS[model]))
    with stack(folder, "--topology", "unified", *FLAGS) as alone:
        expected = [answer(alone, seed) for seed in range(NUM_PROMPTS)]
    for own, theirs in sizes:
        flags = ("--block-size", str(own), "--decode-block-size", str(theirs), "--kv-transport", "tcp", *FLAGS)
        with stack(folder, "--topology", "1p1d", "--no-enable-prefix-caching", *flags) as split:
            handed = answers_until_handed_over(split, answer, expected)
            assert split.metric("relevo:kv_transfer_bytes_total", role="prefill") == handed * MOVED[model]


@pytest.mark.parametrize(("own", "theirs"), [("16", "32"), ("32", "16")])
def test_what_is_cached_is_counted_in_the_blocks_where_it_lies(own: str, theirs: str) -> None:
    """Conversations that come again, over both pools. Red when an answer counts tokens that were computed again, or
    when blocks of the other size are taken for what a worker has."""
    flags = ("--block-size", own, "--decode-block-size", theirs, "--kv-transport", "tcp", *FLAGS)
    with stack("fake", "--topology", "unified", *FLAGS) as alone:
        expected = [conversation(alone, seed)[0] for seed in range(NUM_PROMPTS)]
    possible = {(LENGTH - 1) // int(size) * int(size) for size in (own, theirs)}
    with stack("fake", "--topology", "1p1d", *flags) as split:
        for seed in range(NUM_PROMPTS):
            texts, cached = conversation(split, seed)
            assert texts == expected[seed]
            assert cached[0] == 0 and set(cached[1:]) <= possible, cached
        split.wait_idle()
        assert set(split.blocks_in_use().values()) <= {0.0}


def conversation(server: Stack, seed: int) -> tuple[list[str], list[int]]:
    """The same prompt three times: what was said, and what was told to be cached."""
    prompt = [(seed + 11 * place + place * place) % 256 for place in range(LENGTH)]
    bodies = [server.complete(prompt, max_tokens=12, ignore_eos=True) for _ in range(3)]
    cached = [body["usage"]["prompt_tokens_details"]["cached_tokens"] for body in bodies]
    return [body["choices"][0]["text"] for body in bodies], cached


@pytest.mark.parametrize("size", ["32", pytest.param("8", marks=pytest.mark.slow)])
def test_a_box_with_blocks_of_its_own_decodes_what_the_head_computed(size: str, tmp_path: Path) -> None:
    """`relevo join --block-size`. Red when the box is given the head's blocks, when it is not let in for its own, or
    when a prompt of the head lands elsewhere in them than one that was computed there."""
    folder = str(write_folder(tmp_path / "model", DENSE))
    with stack(folder, "--topology", "unified", *FLAGS) as alone:
        expected = [answer(alone, seed) for seed in range(NUM_PROMPTS)]
    founding = [sys.executable, "-m", "relevo", "cluster", "init", "--dir", "A", "--name", "a", "--out", "token"]
    subprocess.run(founding, cwd=tmp_path, check=True, capture_output=True)
    place, own = (f"127.0.0.1:{free_port()}" for _ in range(2))
    head = ("--topology", "1p", "--cluster", place, "--cluster-dir", str(tmp_path / "A"), *FLAGS)
    node = ("join", place, "--token-file", "token", "--cluster-dir", "B", "--name", "b", "--listen", own, "--role",
            "1d", "--data-dir", "data-b", "--block-size", size, "--set", "num_kv_blocks=300")  # fmt: skip
    with stack(folder, "--no-conditional-disaggregation", *head) as split, command(tmp_path, "b.log", *node):
        until(lambda: num_ready(split) == 2, tmp_path, "both are ready")
        assert [answer(split, seed) for seed in range(NUM_PROMPTS)] == expected
        split.wait_idle()
        assert split.metric("relevo:handoffs_total", outcome="completed") == NUM_PROMPTS
        assert split.metric("relevo:kv_transfer_bytes_total", role="prefill") == NUM_PROMPTS * MOVED["dense"]
        assert [answer(split, seed) for seed in range(NUM_PROMPTS)] == expected, "found in the blocks of each"
        split.wait_idle()


def num_ready(server: Stack) -> int:
    """Workers, also while the answer is that not all are."""
    _, said = get(int(server.url.rpartition(":")[2]), "/ready")
    return sum(worker["ready"] for worker in said["workers"])
