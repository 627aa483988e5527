"""Llama 4: chunks in most layers, no positions in the others, experts beside an MLP that every token passes.

Owns how its config.json becomes a ModelConfig. Source: the config.json fields of Hugging Face `transformers`, which
writes 1 into `no_rope_layers` for a layer that has positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relevo.core.errors import ModelFileError
from relevo.core.model import ExpertsConfig, LocalAttention, ModelConfig, QueryGrowth, Routing
from relevo.engine.models.config_fields import ConfigFields, with_defaults
from relevo.engine.models.dense import DenseTraits, load_decoder, read_config
from relevo.engine.models.experts_config import checked_experts
from relevo.engine.models.gguf_names import LLAMA4_NAMES
from relevo.engine.models.known_fields import refuse_unknown
from relevo.engine.models.layer_kinds import CHUNKED, read_layer_kinds
from relevo.engine.models.local_groups import groups_by_reach
from relevo.engine.models.spec import ModelSpec, text_of_images
from relevo.engine.models.weight_plan import weight_groups

_NAME = "llama4_text"
_DEFAULTS: Mapping[str, Any] = {
    "attention_bias": False,
    "attn_scale": 0.1,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "head_dim": 128,
    "hidden_size": 5120,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 131072,
    "no_rope_layer_interval": 4,
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "rms_norm_eps": 1e-5,
    "use_qk_norm": True,
    "vocab_size": 202048,
}
_KNOWN = frozenset(_DEFAULTS) | {
    "attention_chunk_size",
    "for_llm_compressor",
    "hidden_act",
    "layer_types",
    "moe_layers",
    "no_rope_layers",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
}
_DEFAULT_CHUNK = 8192


def _experts(fields: ConfigFields) -> ExpertsConfig | None:
    num_layers, size = fields.integer("num_hidden_layers"), fields.integer("expert_size")
    layers = _places(fields, "moe_layers", num_layers)
    if layers is None:
        step = fields.integer("interleave_moe_layer_step")
        layers = tuple(range(step - 1, num_layers, step))
    if not layers:
        return None
    return checked_experts(
        fields,
        ExpertsConfig(
            layers=layers,
            num_experts=fields.integer("num_local_experts"),
            intermediate_size=size,
            routing=Routing(
                num_active=fields.integer("num_experts_per_tok"),
                scoring="sigmoid",
                normalises=False,
                weighs_inputs=True,
            ),
            shared_size=size,
            block="feed_forward",
            projections=("gate_up_proj", "down_proj"),
            router="router",
            shared="shared_expert",
        ),
    )


_TRAITS = DenseTraits(qkv_bias="attention_bias", output_bias="attention_bias", default_theta=500000.0, experts=_experts)


def _read_config(stated: ConfigFields) -> ModelConfig:
    refuse_unknown(stated, _KNOWN)
    fields = with_defaults(stated, _DEFAULTS)
    plain = {key: value for key, value in fields.raw.items() if key != "layer_types"}
    plain["expert_size"], plain["intermediate_size"] = plain["intermediate_size"], plain["intermediate_size_mlp"]
    config = read_config(_NAME, _TRAITS, ConfigFields(plain, fields.origin))
    turned = _turned_layers(fields, config.num_layers)
    chunk = fields.optional_integer("attention_chunk_size")
    if "attention_chunk_size" not in stated.raw:
        chunk = _DEFAULT_CHUNK
    kinds = read_layer_kinds(fields, (CHUNKED,))
    layers = (turned if chunk else ()) if kinds is None else kinds.get(CHUNKED, ())
    if layers and chunk is None:
        raise ModelFileError(f"{fields.origin}: layer_types asks for chunks and attention_chunk_size is null; mend one")
    growth = QueryGrowth(fields.number("attn_scale", zero=True), fields.number("floor_scale"))
    return replace(
        config,
        local=LocalAttention(layers=layers, chunk=chunk) if layers and chunk else None,
        unturned_layers=tuple(layer for layer in range(config.num_layers) if layer not in turned),
        query_growth=growth if _is_tuned(fields) else None,
        interleaved_rope=True,
        unit_qk_norm=fields.flag("use_qk_norm"),
        mlp="feed_forward",
        max_position_is_whole=True,
    )


def _is_tuned(fields: ConfigFields) -> bool:
    """Released configs say 4 where they mean true."""
    value = fields.raw["attn_temperature_tuning"]
    return value != 0 if isinstance(value, int) else fields.flag("attn_temperature_tuning")


def _turned_layers(fields: ConfigFields, num_layers: int) -> tuple[int, ...]:
    """That know positions."""
    flags = fields.raw.get("no_rope_layers")
    if not flags:
        interval = fields.integer("no_rope_layer_interval")
        return tuple(layer for layer in range(num_layers) if (layer + 1) % interval)
    if not isinstance(flags, list) or len(flags) < num_layers or any(flag not in (0, 1) for flag in flags):
        raise ModelFileError(f"{fields.origin}: no_rope_layers needs a 0 or 1 for each of {num_layers} layers; mend it")
    return tuple(layer for layer in range(num_layers) if flags[layer])


def _places(fields: ConfigFields, name: str, num_layers: int) -> tuple[int, ...] | None:
    places = fields.raw.get(name)
    if places is None:
        return None
    if not isinstance(places, list) or any(not isinstance(each, int) or not 0 <= each < num_layers for each in places):
        raise ModelFileError(f"{fields.origin}: {name} is {places!r} and must be a list of layers; mend it")
    return tuple(sorted(set(places)))


LLAMA4 = ModelSpec(
    name=_NAME,
    model_types=(_NAME,),
    gguf=LLAMA4_NAMES,
    wrappers=(text_of_images("llama4", "vision_model.", "multi_modal_projector."),),
    read_config=_read_config,
    weights=weight_groups,
    kv_groups=groups_by_reach,
    load=load_decoder,
)
