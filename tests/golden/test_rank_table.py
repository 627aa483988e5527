"""The guide's table of released models and sizes of a tensor group says what the code does, for every family.

Red when a family has no row, or when a size works that the table does not have, or is refused with another sentence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relevo.core.errors import UnsupportedModel
from relevo.core.model import ModelConfig
from relevo.engine.models.families import MODELS, config_from_hf
from relevo.engine.models.slices import SIZES, share_of

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "ranks.md"


def dense(model_type: str, hidden: int, inner: int, heads: int, kv_heads: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "vocab_size": 1000,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 8,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 4096,
        **more,
    }


def routed(count: int, used: int, size: int, **more: Any) -> dict[str, Any]:
    names = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
    return {**dict(zip(names, (count, used, size), strict=True)), **more}


def deep(model_type: str, hidden: int, inner: int, heads: int, count: int, size: int, **more: Any) -> dict[str, Any]:
    """With the sizes of heads and latents that all of them have."""
    latents = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    experts = {
        "n_routed_experts": count,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": size,
        "n_shared_experts": 2,
    }
    return dense(model_type, hidden, inner, heads, heads, first_k_dense_replace=1, **latents, **experts, **more)


# As released, but for their number of layers, vocabularies and lengths.
RELEASED: dict[str, dict[str, Any]] = {
    "Llama 3.1 8B": dense("llama", 4096, 14336, 32, 8),
    "Llama 3.1 70B": dense("llama", 8192, 28672, 64, 8),
    "SmolLM2 135M": dense("llama", 576, 1536, 9, 3),
    "Mistral 7B": dense("mistral", 4096, 14336, 32, 8),
    "Qwen2.5 0.5B": dense("qwen2", 896, 4864, 14, 2),
    "Qwen2.5 7B": dense("qwen2", 3584, 18944, 28, 4),
    "Qwen3 8B": dense("qwen3", 4096, 12288, 32, 8),
    "Mixtral 8x7B": dense("mixtral", 4096, 14336, 32, 8, num_local_experts=8),
    "Qwen3 30B-A3B": dense("qwen3_moe", 2048, 6144, 32, 4, **routed(128, 8, 768)),
    "GLM-4.5-Air": dense(
        "glm4_moe", 4096, 10944, 96, 8, head_dim=128, moe_intermediate_size=1408, n_routed_experts=128
    ),
    "MiniMax-M2": dense("minimax_m2", 3072, 1536, 48, 8, num_local_experts=256),
    "DeepSeek V2 Lite": deep("deepseek_v2", 2048, 10944, 16, 64, 1408),
    "DeepSeek V3, R1": deep("deepseek_v3", 7168, 18432, 128, 256, 2048),
    "Kimi K2": deep("kimi_k2", 7168, 18432, 64, 384, 2048),
    "Gemma 3 270M": dense("gemma3_text", 640, 2048, 4, 1),
    "Gemma 3 1B": dense("gemma3_text", 1152, 6912, 4, 1),
    "Gemma 3 4B": dense("gemma3_text", 2560, 10240, 8, 4),
    "Gemma 3 27B": dense("gemma3_text", 5376, 21504, 32, 16, head_dim=128),
    "gpt-oss 20B": dense("gpt_oss", 2880, 2880, 64, 8, num_local_experts=32),
    "gpt-oss 120B": dense("gpt_oss", 2880, 2880, 64, 8, num_local_experts=128),
    "Llama 4 Scout": dense("llama4_text", 5120, 8192, 40, 8, intermediate_size_mlp=16384, num_local_experts=16),
    "Qwen3-Next 80B-A3B": dense("qwen3_next", 2048, 5120, 16, 2, **routed(512, 10, 512)),
    "Qwen3.5, dense": dense("qwen3_5_text", 4096, 12288, 16, 4),
    "Qwen3.5, experts": dense("qwen3_5_moe_text", 2048, 512, 16, 2, **routed(256, 8, 512)),
}


def sizes(config: ModelConfig, *, whole_experts: bool) -> tuple[str, str]:
    """Those that work, and what is said of the first that does not."""
    if whole_experts and config.experts is None:
        return "none", ""
    work, why_not = [], ""
    for size in SIZES:
        try:
            share_of(config, 0, size, whole_experts=whole_experts)
            work.append(str(size))
        except UnsupportedModel as error:
            why_not = why_not or str(error)
    return ", ".join(work), why_not


def expected_row(name: str) -> str:
    config = config_from_hf(RELEASED[name], "config.json")
    (plain, why_not), (whole, why_not_whole) = (sizes(config, whole_experts=each) for each in (False, True))
    return f"| {name} | `{RELEASED[name]['model_type']}` | {plain} | {whole} | {why_not or why_not_whole} |"


@pytest.mark.parametrize("name", RELEASED)
def test_the_row_of_a_model_says_what_its_sizes_come_to(name: str) -> None:
    assert expected_row(name) in GUIDE.read_text(encoding="utf-8").splitlines()


def test_every_family_has_a_row_and_every_row_a_model() -> None:
    told = {str(raw["model_type"]) for raw in RELEASED.values()}
    assert {spec.name for spec in MODELS.values()} <= told
    rows = [line for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith("| ") and "| `" in line]
    assert {line.split("|")[1].strip() for line in rows if line.count("|") == 6} == {"model", *RELEASED}
