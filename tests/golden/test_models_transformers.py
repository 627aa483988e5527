"""Each family computes what `transformers` computes, in float32, from the folder that `transformers` saved.

Red if the decoder, a family's reading of config.json, a rope scaling, or the loading of safetensors changes a number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_decoders import BACKENDS, LOCAL, PagedDecoder, hf_logits, hf_model, prompt, row

from relevo.core.errors import UnsupportedModel
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import config_from_hf

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.05 * i for i in range(8)],
    "long_factor": [1.5 + 0.5 * i for i in range(8)],
    "original_max_position_embeddings": 48,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_THETA = {"rope_theta": 500.0}  # small, so that frequencies differ over few positions

_QWEN_EXPERTS = {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
_GLM_EXPERTS = {
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
    "attention_bias": True,
    "head_dim": 24,
}
_NO_ENDS = {"bos_token_id": None, "eos_token_id": None}  # they are beyond a small vocabulary

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("llama", {"head_dim": 32}),
    "llama-narrow-heads": ("llama", {"head_dim": 8}),
    "llama-multi-head": ("llama", {"num_key_value_heads": 4}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-theta": ("llama", {"rope_parameters": {"rope_type": "default", **_THETA}}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, **_THETA}}),
    "llama-llama3": ("llama", {"rope_parameters": _LLAMA3 | _THETA}),
    "llama-yarn": ("llama", {"rope_parameters": _YARN | _THETA}),
    "llama-yarn-mscale": (
        "llama",
        {
            "rope_parameters": _YARN
            | _THETA
            | {"mscale": 0.7, "mscale_all_dim": 1.1, "beta_fast": 16, "truncate": False}
        },
    ),
    "llama-dynamic-short": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0, **_THETA}}),
    "llama-longrope-short": ("llama", {"rope_parameters": _LONG | _THETA, "max_position_embeddings": 48}),
    "llama-longrope-long": ("llama", {"rope_parameters": _LONG | _THETA, "max_position_embeddings": 96}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "qwen3-biases": ("qwen3", {"head_dim": 16, "attention_bias": True}),
    "mixtral": ("mixtral", {"num_local_experts": 12}),  # as text, 10 sorts before 2
    "mixtral-window": ("mixtral", {"num_local_experts": 4, "sliding_window": 7}),
    "qwen3-moe": ("qwen3_moe", _QWEN_EXPERTS | {"head_dim": 24}),
    "qwen3-moe-normalised": ("qwen3_moe", _QWEN_EXPERTS | {"norm_topk_prob": True, "mlp_only_layers": [0]}),
    "glm4-moe": ("glm4_moe", _GLM_EXPERTS),
    "glm4-moe-plain": ("glm4_moe", {**_GLM_EXPERTS, "norm_topk_prob": False, "n_group": 1, "topk_group": 1}),
    "minimax-m2": ("minimax_m2", {"num_local_experts": 12, "num_experts_per_tok": 3, "head_dim": 16, **_NO_ENDS}),
    **{family: (family, changes) for family, changes in LOCAL.items()},
    "gemma3-scaled": (
        "gemma3_text",
        LOCAL["gemma3_text"]
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, **_THETA},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "minimax-m2-partial": (
        "minimax_m2",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 24,
            **_NO_ENDS,
            "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5, **_THETA},
        },
    ),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, backend: str, tmp_path: Path) -> None:
    family, changes = CASES[case]
    model = hf_model(family, **changes)
    model.save_pretrained(tmp_path)
    files = load_model_files(str(tmp_path))
    tokens = prompt(48 if case.endswith("short") else 60)  # a longrope sequence is "long" when it is longer than 48
    paged = PagedDecoder(files, backend=backend)
    logits = paged.step(row(tokens, 0, list(range(20))))
    np.testing.assert_allclose(logits, hf_logits(model, tokens), atol=1e-4, rtol=1e-4)


def test_dynamic_scaling_follows_the_context_length_served(tmp_path: Path) -> None:
    """The frequencies are those that `transformers` would use for a sequence of max_model_len tokens."""
    model = hf_model(
        "llama", max_position_embeddings=32, rope_parameters={"rope_type": "dynamic", "factor": 3.0, **_THETA}
    )
    model.save_pretrained(tmp_path)
    tokens = prompt(60)
    paged = PagedDecoder(load_model_files(str(tmp_path)), max_model_len=60)
    logits = paged.step(row(tokens, 0, list(range(20))))
    np.testing.assert_allclose(logits, hf_logits(model, tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.15), ("float16", 0.02)])
def test_half_precision_stays_close(dtype: str, tolerance: float, backend: str, tmp_path: Path) -> None:
    """The average error over the logits' spread; a wrong cast (of a mask, of the angles) makes it a multiple."""
    model = hf_model("qwen3", head_dim=16)
    model.save_pretrained(tmp_path)
    tokens = prompt(40)
    paged = PagedDecoder(load_model_files(str(tmp_path)), dtype=dtype, backend=backend)
    logits = paged.step(row(tokens, 0, list(range(10))))
    expected = hf_logits(model, tokens)
    assert np.abs(logits - expected).mean() / expected.std() < tolerance


_MINIMAL = {
    "model_type": "llama",
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}


def test_both_spellings_of_rope_give_one_config() -> None:
    old = config_from_hf(
        _MINIMAL | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}, "config.json"
    )
    new = config_from_hf(
        _MINIMAL | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}, "config.json"
    )
    assert old == new
    assert old.rope_scaling == {"rope_type": "linear", "factor": 2.0}
    assert old.rope_theta == 5e5


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "gemma2"}, "gemma2"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "aqlm"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "mrope"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1, "num_hidden_layers": 4},
            "sliding window",
        ),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(change: dict[str, Any], word: str) -> None:
    """Never served wrongly: each of these fields changes what the weights mean."""
    with pytest.raises(UnsupportedModel, match=word):
        config_from_hf(_MINIMAL | change, "config.json")
