"""Models with windows and chunks behind HTTP: split answers have the bits of unified ones, a handoff moves of windows
and chunks what the receiver can see, and what was computed is found again.

Red when a block of a window is left behind or moved for nothing, or when prefixes of such models are not cached.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from handoffs import answers_until_handed_over
from stack import Stack, stack
from tiny_folders import write_byte_tokenizer
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    PreTrainedModel,
)

HEADS, HEAD_SIZE, SPAN, LENGTH, NUM_PROMPTS = 2, 16, 40, 150, 4
LAYER_BYTES = 2 * HEADS * HEAD_SIZE * 2  # of a token, float16
SMALL = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD_SIZE,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 1}
KEPT = {"gemma3": SPAN - 1, "gpt_oss": SPAN - 1, "llama4": LENGTH % SPAN}  # tokens of a window or chunk after a prompt


def model_of(family: str) -> PreTrainedModel:
    if family == "gemma3":
        kinds = ["sliding_attention", "sliding_attention", "full_attention"]
        return Gemma3ForCausalLM(Gemma3TextConfig(**SMALL, num_hidden_layers=3, layer_types=kinds, sliding_window=SPAN))
    if family == "gpt_oss":
        kinds = ["sliding_attention", "full_attention"]
        rope = {"rope_type": "default", "rope_theta": 10000.0}
        return GptOssForCausalLM(
            GptOssConfig(
                **SMALL, **EXPERTS, num_hidden_layers=2, layer_types=kinds, sliding_window=SPAN, rope_parameters=rope
            )
        )
    return Llama4ForCausalLM(
        Llama4TextConfig(**SMALL, **EXPERTS, num_hidden_layers=4, attention_chunk_size=SPAN, intermediate_size_mlp=96)
    )


NUM_LOCAL = {"gemma3": (2, 3), "gpt_oss": (1, 2), "llama4": (3, 4)}  # layers: of windows or chunks, and all


@pytest.fixture(
    scope="module", params=["gemma3", *(pytest.param(each, marks=pytest.mark.slow) for each in ("gpt_oss", "llama4"))]
)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(family)
    torch.manual_seed(1)
    model = model_of(family)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name and family != "gemma3"
            parameter.normal_(1.0 if is_norm else 0.0, 0.2)
    model.save_pretrained(path)
    write_byte_tokenizer(path)
    return path


def answer(server: Stack, seed: int, length: int = LENGTH) -> Any:
    prompt = [(seed + 7 * place + place * place) % 256 for place in range(length)]
    body = server.complete(prompt, max_tokens=60, logprobs=1, ignore_eos=True)
    choice = body["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


FLAGS = ("--num-kv-blocks", "300", "--max-model-len", "512")


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Any]:
    """Each prompt for the first time, then again: what is found of it brings the same bits."""
    with stack(str(folder), "--topology", "unified", *FLAGS) as alone:
        first = [answer(alone, seed) for seed in range(NUM_PROMPTS)]
        assert [answer(alone, seed) for seed in range(NUM_PROMPTS)] == first
        assert alone.metric("vllm:prefix_cache_hits_total") == NUM_PROMPTS * ((LENGTH - 1) // 16 * 16)
    return first


@pytest.mark.parametrize(("transport", "num_ranks"), [("shm", 1), ("tcp", 2)])
def test_split_answers_have_the_bits_of_unified_ones(
    folder: Path, family: str, expected: list[Any], transport: str, num_ranks: int
) -> None:
    flags = (*FLAGS, "--kv-transport", transport, "--no-enable-prefix-caching")
    flags += ("--pipeline-parallel-size", str(num_ranks))
    with stack(str(folder), "--topology", "1p1d", *flags) as split:
        handed = answers_until_handed_over(split, answer, expected)
        moved = split.metric("relevo:kv_transfer_bytes_total", role="prefill")
    local, layers = NUM_LOCAL[family]
    assert moved == handed * LAYER_BYTES * ((layers - local) * LENGTH + local * KEPT[family])
