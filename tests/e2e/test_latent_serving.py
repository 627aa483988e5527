"""A model of latents behind HTTP: split answers have the bits of unified ones, and a handoff moves latents only.

Red when a transport moves what heads would keep, or when a worker takes a cache of latents for one of keys and values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from handoffs import answers_until_handed_over
from stack import Stack, stack
from tiny_folders import write_folder
from transformers import DeepseekV3Config

LAYERS, LATENT, ROTATED = 2, 24, 8
TOKEN_BYTES = LAYERS * (LATENT + ROTATED) * 2  # float16
NUM_PROMPTS, LENGTH = 6, 150


CONFIG = DeepseekV3Config(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=96,
    moe_intermediate_size=40,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=4,
    n_routed_experts=8,
    num_experts_per_tok=2,
    first_k_dense_replace=1,
    n_group=4,
    topk_group=2,
    q_lora_rank=40,
    kv_lora_rank=LATENT,
    qk_rope_head_dim=ROTATED,
    qk_nope_head_dim=16,
    v_head_dim=16,
    max_position_embeddings=512,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("latents"), CONFIG)


def answer(server: Stack, seed: int) -> Any:
    prompt = [(seed + 7 * place) % 256 for place in range(LENGTH)]
    choice = server.complete(prompt, max_tokens=20, logprobs=1, ignore_eos=True)["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_split_answers_have_the_bits_of_unified_ones(folder: Path, transport: str) -> None:
    flags = ("--num-kv-blocks", "96", "--max-model-len", "512", "--no-enable-prefix-caching")
    with stack(str(folder), "--topology", "unified", *flags) as alone:
        expected = [answer(alone, seed) for seed in range(NUM_PROMPTS)]
    with stack(str(folder), "--topology", "1p1d", "--kv-transport", transport, *flags) as split:
        handed = answers_until_handed_over(split, answer, expected)
        moved = split.metric("relevo:kv_transfer_bytes_total", role="prefill")
    assert moved == handed * LENGTH * TOKEN_BYTES
