"""A field of config.json that a family does not know is refused: computing without it could give other answers.

Red when a family begins to pass over what it does not read, or refuses what `transformers` and makers write everywhere.
"""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from relevo.core.errors import UnsupportedModel
from relevo.engine.models.families import MODELS, config_from_hf

# As makers write them beside what transformers does.
WRITTEN: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128, "partial_rotary_factor": 0.5},
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration.Config"},
        "is_llama_config": True,
        "max_sequence_length": 2048,
        "pretraining_tp": 1,
        "rope_interleaved": False,
        "torch_dtype": "bfloat16",
        "transformers.js_config": {"dtype": "q4"},
        "use_sliding_window": False,
    },
    "qwen2": {"use_mrope": False, "max_window_layers": 21, "sliding_window": None, "use_cache": True},
    "mixtral": {"router_jitter_noise": 0.0, "output_router_logits": False},
    "qwen3_moe": {"qkv_bias": False, "shared_expert_intermediate_size": 0, "use_qk_norm": True},
    "minimax_m2": {
        "mtp_transformer_layers": 1,
        "num_mtp_modules": 3,
        "qk_norm_type": "per_layer",
        "shared_intermediate_size": 0,
        "use_mtp": True,
        "use_qk_norm": True,
        "use_routing_bias": True,
    },
}
OTHERS: list[tuple[str, str, Any]] = [
    ("llama", "rope_interleaved", True),
    ("llama", "use_sliding_window", True),
    ("llama", "sliding_window", 4096),
    ("mistral", "use_sliding_window", False),
    ("qwen2", "use_mrope", True),
    ("qwen3_moe", "qkv_bias", True),
    ("qwen3_moe", "use_qk_norm", False),
    ("qwen3_moe", "shared_expert_intermediate_size", 512),
    ("minimax_m2", "attn_type_list", [1, 0]),
    ("minimax_m2", "qk_norm_type", "per_head"),
    ("minimax_m2", "shared_intermediate_size", 512),
    ("minimax_m2", "use_routing_bias", False),
]


def raw_of(family: str) -> dict[str, Any]:
    raw: dict[str, Any] = AutoConfig.for_model(family).to_dict()
    return raw


@pytest.mark.parametrize("family", MODELS)
def test_what_transformers_writes_is_known_and_no_more(family: str) -> None:
    raw = raw_of(family) | WRITTEN.get(family, {})
    read = config_from_hf(raw, "config.json")
    assert config_from_hf(raw | {"attention_multiplier": None}, "config.json") == read
    with pytest.raises(UnsupportedModel, match=r"^config\.json: 1 fields are not known .* 'attention_multiplier';"):
        config_from_hf(raw | {"attention_multiplier": 0.5}, "config.json")


@pytest.mark.parametrize(("family", "name", "value"), OTHERS)
def test_a_value_that_is_not_implemented_is_refused(family: str, name: str, value: Any) -> None:
    with pytest.raises(UnsupportedModel, match=rf"^config\.json: {name} "):
        config_from_hf(raw_of(family) | {name: value}, "config.json")
