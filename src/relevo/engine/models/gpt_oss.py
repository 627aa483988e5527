"""gpt-oss: a window in every other layer, a sink in every head, experts with biases and a clamped activation.

Owns how its config.json becomes a ModelConfig. Source: the config.json fields of Hugging Face `transformers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relevo.core.errors import UnsupportedModel
from relevo.core.model import Activation, ExpertsConfig, LocalAttention, ModelConfig, Routing
from relevo.engine.models.config_fields import ConfigFields, with_defaults
from relevo.engine.models.dense import DenseTraits, load_decoder, read_config
from relevo.engine.models.experts_config import checked_experts
from relevo.engine.models.gguf_names import GPT_OSS_NAMES
from relevo.engine.models.known_fields import refuse_unknown
from relevo.engine.models.layer_kinds import SLIDING, read_layer_kinds
from relevo.engine.models.local_groups import groups_by_reach
from relevo.engine.models.spec import ModelSpec
from relevo.engine.models.weight_plan import weight_groups

_NAME = "gpt_oss"
_DEFAULTS: Mapping[str, Any] = {
    "attention_bias": True,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "rms_norm_eps": 1e-5,
    "sliding_window": 128,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
}
_KNOWN = frozenset(_DEFAULTS) | {
    "experts_per_token",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "initial_context_length",
    "layer_types",
    "num_attention_heads",
    "num_experts",
    "num_experts_per_tok",
    "num_hidden_layers",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "vocab_size",
}
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _experts(fields: ConfigFields) -> ExpertsConfig:
    num_active = fields.optional_integer("num_experts_per_tok") or fields.integer("experts_per_token", 4)
    if (other := fields.optional_integer("experts_per_token")) not in (None, num_active):
        raise UnsupportedModel(
            f"{fields.origin}: num_experts_per_tok and experts_per_token differ: {num_active}, {other}"
        )
    return checked_experts(
        fields,
        ExpertsConfig(
            layers=tuple(range(fields.integer("num_hidden_layers"))),
            num_experts=fields.integer("num_local_experts"),
            intermediate_size=fields.integer("intermediate_size"),
            routing=Routing(num_active=num_active, has_logit_bias=True),
            activation=Activation("clamped", fields.number("swiglu_alpha"), fields.number("swiglu_limit")),
            has_biases=True,
            projections=("gate_up_proj", "down_proj"),
            router="router",
            is_interleaved=True,
        ),
    )


_TRAITS = DenseTraits(qkv_bias="attention_bias", output_bias="attention_bias", default_theta=150000.0, experts=_experts)


def _read_config(stated: ConfigFields) -> ModelConfig:
    refuse_unknown(stated, _KNOWN)
    fields = with_defaults(stated, _DEFAULTS)
    plain = {key: value for key, value in fields.raw.items() if key not in ("layer_types", "sliding_window")}
    if plain.get("rope_parameters") is None and plain.get("rope_scaling") is None:
        plain["rope_scaling"] = _YARN
    config = read_config(_NAME, _TRAITS, ConfigFields(plain, fields.origin))
    kinds = read_layer_kinds(fields, (SLIDING,))
    layers = tuple(range(0, config.num_layers, 2)) if kinds is None else kinds.get(SLIDING, ())
    local = LocalAttention(layers=layers, window=fields.integer("sliding_window")) if layers else None
    return replace(config, local=local, sinks=True)


GPT_OSS = ModelSpec(
    name=_NAME,
    model_types=(_NAME,),
    gguf=GPT_OSS_NAMES,
    read_config=_read_config,
    weights=weight_groups,
    kv_groups=groups_by_reach,
    load=load_decoder,
    quantizations=("mxfp4",),
)
