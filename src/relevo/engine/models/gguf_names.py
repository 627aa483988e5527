"""What llama.cpp's converter calls tensors, by family.

Owns the names only; what its keys mean is `gguf_fields`'. Source: the name tables of the `gguf` package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from relevo.core.model import DeltaFiles, ModelConfig
from relevo.engine.models.gguf_fields import (
    deepseek_fields,
    delta_experts_fields,
    delta_fields,
    glm_fields,
    gpt_oss_fields,
    has_sigmoids,
    llama4_fields,
    minimax_fields,
)
from relevo.engine.models.spec import GgufKeys, GgufNames
from relevo.engine.models.weight_plan import GGUF_IN_LAYER, GGUF_TOP, LATENT_KEYS, LATENT_VALUES

_ATTENTION = {
    name: stored for name, stored in GGUF_IN_LAYER.items() if name.startswith("attn_") and not name.endswith("_norm")
}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_APART = ("gate_proj", "up_proj", "down_proj")


def _mlp(block: str, *, suffix: str = "") -> dict[str, str]:
    return {f"ffn_{name}{suffix}": f"{block}.{name}_proj" for name in ("gate", "up", "down")}


def _experts(block: str, names: tuple[str, str, str] = _APART, router: str = "gate") -> dict[str, str]:
    """Newer files may have gates and the values beside them in one tensor."""
    gate, up, down = names
    return {
        "ffn_gate_inp": f"{block}.{router}",
        "ffn_gate_exps": f"{block}.experts.*.{gate}",
        "ffn_up_exps": f"{block}.experts.*.{up}",
        "ffn_gate_up_exps": f"{block}.experts.*.{gate}+{up}",
        "ffn_down_exps": f"{block}.experts.*.{down}",
    }


def _names(
    architecture: str, in_layer: Mapping[str, str], has_experts: bool | None = True, permutes_heads: bool = False
) -> GgufNames:
    return GgufNames(architecture, GGUF_TOP, in_layer, permutes_heads, has_experts)


def _three_projections(config: ModelConfig, keys: GgufKeys) -> ModelConfig:
    """Of families whose folders have gates and values in one tensor: files have them apart, or one after the other."""
    experts = config.experts
    return (
        config
        if experts is None
        else replace(config, experts=replace(experts, projections=_APART, is_interleaved=False))
    )


_SPARSE = ("w1", "w3", "w2")  # of Mixtral and MiniMax
MIXTRAL_NAMES = _names("llama", {**_NORMS, **_ATTENTION, **_experts("block_sparse_moe", _SPARSE)}, permutes_heads=True)
QWEN3_MOE_NAMES = _names("qwen3moe", {**GGUF_IN_LAYER, **_experts("mlp")})
GLM4_MOE_NAMES = replace(
    _names(
        "glm4moe",
        {
            "attn_norm": "input_layernorm",
            "post_attention_norm": "post_attention_layernorm",
            **_ATTENTION,
            **_HEAD_NORMS,
            **_mlp("mlp"),
            **_experts("mlp"),
            **_mlp("mlp.shared_experts", suffix="_shexp"),
            "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
        },
    ),
    config_fields=glm_fields,
)
MINIMAX_NAMES = replace(
    _names(
        "minimax-m2",
        {
            **_NORMS,
            **_ATTENTION,
            **_HEAD_NORMS,
            **_experts("block_sparse_moe", _SPARSE),
            "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
        },
    ),
    config_fields=minimax_fields,
)
GPT_OSS_NAMES = replace(
    _names(
        "gpt-oss",
        {
            "attn_norm": "input_layernorm",
            "post_attention_norm": "post_attention_layernorm",
            **_ATTENTION,
            "attn_sinks.weight": "self_attn.sinks",
            **_experts("mlp", router="router"),
        },
    ),
    config_fields=gpt_oss_fields,
    complete=_three_projections,
)
LLAMA4_NAMES = replace(
    _names(
        "llama4",
        {
            **_NORMS,
            **_ATTENTION,
            **_mlp("feed_forward"),
            **_experts("feed_forward", router="router"),
            **_mlp("feed_forward.shared_expert", suffix="_shexp"),
        },
    ),
    config_fields=llama4_fields,
    complete=_three_projections,
)
_DEEPSEEK = {
    **_NORMS,
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b.weight": LATENT_KEYS,
    "attn_v_b.weight": LATENT_VALUES,
    "attn_output": "self_attn.o_proj",
    **_mlp("mlp"),
    **_experts("mlp"),
    **_mlp("mlp.shared_experts", suffix="_shexp"),
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}
DEEPSEEK_V2_NAMES = replace(
    _names("deepseek2", _DEEPSEEK, None),
    is_meant=lambda keys: not has_sigmoids(keys),
    config_fields=deepseek_fields,
)
DEEPSEEK_V3_NAMES = replace(_names("deepseek2", _DEEPSEEK, None), is_meant=has_sigmoids, config_fields=deepseek_fields)


def _of_delta(files: DeltaFiles) -> Callable[[ModelConfig, GgufKeys], ModelConfig]:
    """The converter adds one to norms, but to those behind a state."""

    def complete(config: ModelConfig, keys: GgufKeys) -> ModelConfig:
        assert config.delta is not None, "the family has states"
        return replace(config, norm_offset=0.0, delta=replace(config.delta, files=files))

    return complete


_DELTA = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    **_ATTENTION,
    **_HEAD_NORMS,
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_SHARED = {**_mlp("mlp.shared_expert", suffix="_shexp"), "ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
_GATES = {"ssm_beta": "linear_attn.in_proj_b", "ssm_alpha": "linear_attn.in_proj_a"}
_TILED = _of_delta(DeltaFiles(has_logarithms=False, is_tiled=True))
QWEN3_NEXT_NAMES = replace(
    _names("qwen3next", {**_DELTA, "ssm_ba": "linear_attn.in_proj_ba", **_experts("mlp"), **_SHARED}),
    config_fields=delta_experts_fields,
    complete=_of_delta(DeltaFiles(has_logarithms=False, has_gates_by_head=True)),
)
QWEN3_5_NAMES = replace(
    _names("qwen35", {**_DELTA, **_GATES, **_mlp("mlp")}, has_experts=False),
    config_fields=delta_fields,
    complete=_TILED,
)
QWEN3_5_MOE_NAMES = replace(
    _names("qwen35moe", {**_DELTA, **_GATES, **_experts("mlp"), **_SHARED}),
    config_fields=delta_experts_fields,
    complete=_TILED,
)
