"""Gemma 3: windows in most layers, two bases of positions, norms on both sides of attention and MLP.

Owns how its config.json and the keys of its GGUF files become a ModelConfig. Sources: the config.json fields of Hugging
Face `transformers`; llama.cpp's converter, which adds one to the weights of norms, and its reader, whose defaults are
those of files without a key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.model import Activation, LocalAttention, ModelConfig
from relevo.engine.models.config_fields import ConfigFields, with_defaults
from relevo.engine.models.dense import DenseTraits, load_decoder, read_config
from relevo.engine.models.known_fields import refuse_unknown
from relevo.engine.models.layer_kinds import SLIDING, read_layer_kinds
from relevo.engine.models.local_groups import groups_by_reach
from relevo.engine.models.rope_config import read_rope
from relevo.engine.models.spec import GgufKeys, GgufNames, ModelSpec, text_of_images
from relevo.engine.models.weight_plan import GGUF_IN_LAYER, GGUF_TOP, weight_groups

_NAME = "gemma3_text"
_TRAITS = DenseTraits(qkv_bias="attention_bias", output_bias="attention_bias", qk_norm=True)
_GELU = Activation("gelu_tanh")
_PATTERN = 6  # every sixth layer sees everything
_LOCAL_THETA = 10000.0
_DEFAULTS: Mapping[str, Any] = {  # released configs leave out what is the family's
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_KNOWN = frozenset(_DEFAULTS) | {
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "layer_types",
    "sliding_window_pattern",
    "_sliding_window_pattern",  # as transformers keeps it beside layer_types
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rope_local_base_freq",
    "attention_bias",
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "use_bidirectional_attention",
    "hidden_act",
}
_GELU_NAMES = ("gelu_pytorch_tanh", "gelu_tanh")
_ROPE_FIELDS = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq")
_GLOBAL_27B_LAYERS = 62  # llama.cpp tells the one size with another scale by its layers


def _read_config(stated: ConfigFields) -> ModelConfig:
    refuse_unknown(stated, _KNOWN)
    fields = with_defaults(stated, _DEFAULTS)
    _refuse_unsupported(fields)
    full_rope, local_rope = _ropes(fields)
    plain = {key: value for key, value in fields.raw.items() if key not in (*_ROPE_FIELDS, "hidden_act")}
    plain = {key: value for key, value in plain.items() if key not in ("layer_types", "sliding_window")}
    config = read_config(_NAME, _TRAITS, ConfigFields(plain, fields.origin))
    pattern = fields.integer("sliding_window_pattern", _PATTERN)
    kinds = read_layer_kinds(fields, (SLIDING,))
    local = kinds.get(SLIDING, ()) if kinds is not None else _pattern_layers(config.num_layers, pattern)
    scalar = fields.number("query_pre_attn_scalar")
    config = replace(config, rope_theta=full_rope[0], rope_scaling=full_rope[1], norm_offset=1.0)
    return _completed(config, local, fields.integer("sliding_window"), local_rope, scalar**-0.5)


def _completed(
    config: ModelConfig, layers: tuple[int, ...], window: int, rope: tuple[float, dict[str, Any]], scale: float
) -> ModelConfig:
    """What every Gemma 3 has."""
    local = LocalAttention(layers=layers, window=window, rope_theta=rope[0], rope_scaling=rope[1]) if layers else None
    return replace(
        config,
        local=local,
        attention_scale=scale,
        embedding_scale=math.sqrt(config.hidden_size),
        sandwich_norms=True,
        activation=_GELU,
        max_position_is_whole=True,
    )


def _refuse_unsupported(fields: ConfigFields) -> None:
    for name in ("hidden_activation", "hidden_act"):
        if (activation := fields.raw.get(name)) is not None and activation not in _GELU_NAMES:
            raise UnsupportedModel(f"{fields.origin}: {name} {activation!r} is not implemented; {_GELU_NAMES[0]!r} is")
    for name in ("final_logit_softcapping", "attn_logit_softcapping"):
        if fields.raw.get(name) is not None:
            raise UnsupportedModel(f"{fields.origin}: {name} {fields.raw[name]} is not implemented; null is")
    if fields.flag("use_bidirectional_attention"):
        raise UnsupportedModel(f"{fields.origin}: use_bidirectional_attention is true, and text is generated causally")


def _ropes(fields: ConfigFields) -> tuple[tuple[float, dict[str, Any]], tuple[float, dict[str, Any]]]:
    """Base and scaling of the layers that see everything, and of those with a window; in either spelling."""
    raw, origin = fields.raw, fields.origin
    by_kind = raw.get("rope_parameters")
    if by_kind is None:
        local = {"rope_theta": raw.get("rope_local_base_freq")}
        return read_rope(raw, origin, 1e6), read_rope(local, origin, _LOCAL_THETA)
    if not isinstance(by_kind, Mapping) or not set(by_kind) <= {"full_attention", SLIDING}:
        raise ModelFileError(
            f"{origin}: rope_parameters is {by_kind!r} and must have full_attention and {SLIDING}; mend it"
        )
    full = {"rope_parameters": by_kind.get("full_attention"), "rope_scaling": raw.get("rope_scaling")}
    return (
        read_rope({**full, "rope_theta": raw.get("rope_theta")}, origin, 1e6),
        read_rope(
            {"rope_parameters": by_kind.get(SLIDING), "rope_theta": raw.get("rope_local_base_freq")},
            origin,
            _LOCAL_THETA,
        ),
    )


def _pattern_layers(num_layers: int, pattern: int) -> tuple[int, ...]:
    return tuple(layer for layer in range(num_layers) if (layer + 1) % pattern)


def _complete_gguf(config: ModelConfig, keys: GgufKeys) -> ModelConfig:
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if keys.get(key):
            raise UnsupportedModel(f"{keys.fields(key).origin}: {key} {keys.get(key)} is not implemented")
    window = keys.fields("attention.sliding_window").integer("attention.sliding_window")
    pattern = keys.get("attention.sliding_window_pattern", _PATTERN)
    if isinstance(pattern, list):
        if len(pattern) != config.num_layers:
            origin = keys.fields("attention.sliding_window").origin
            raise ModelFileError(
                f"{origin}: attention.sliding_window_pattern has {len(pattern)} entries; convert it anew"
            )
        layers = tuple(layer for layer, has_window in enumerate(pattern) if has_window)
    else:
        key = "attention.sliding_window_pattern"
        layers = _pattern_layers(config.num_layers, keys.fields(key).integer(key, _PATTERN))
    theta = keys.fields("rope.freq_base_swa").number("rope.freq_base_swa", _LOCAL_THETA)
    is_27b = config.num_layers == _GLOBAL_27B_LAYERS
    scalar = config.hidden_size // config.num_heads if is_27b else config.head_size
    plain = replace(config, sliding_window=None)
    return _completed(plain, layers, window, (theta, {}), scalar**-0.5)


_IN_LAYER = {
    **GGUF_IN_LAYER,
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GEMMA3 = ModelSpec(
    name=_NAME,
    model_types=(_NAME,),
    gguf=GgufNames("gemma3", GGUF_TOP, _IN_LAYER, complete=_complete_gguf),
    wrappers=(text_of_images("gemma3", "vision_tower.", "multi_modal_projector."),),
    read_config=_read_config,
    weights=weight_groups,
    kv_groups=groups_by_reach,
    load=load_decoder,
)
