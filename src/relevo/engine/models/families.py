"""The model families: what sets each apart, and how its config.json becomes a ModelConfig.

Owns the table of families. Llama also covers SmolLM2, TinyLlama and others that are stored under its name. It does not
know files or weights. Source: the config.json fields of Hugging Face `transformers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.model import ModelConfig
from relevo.engine.models.config_fields import ConfigFields, check_shape
from relevo.engine.models.rope_config import read_rope

_FULL, _SLIDING = "full_attention", "sliding_attention"  # words of `layer_types`


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Traits are True, False, or the name of the config.json field that decides (absent: False)."""

    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool = False
    has_sliding_window: bool = False
    default_sliding_window: int | None = None
    window_needs_flag: bool = False  # `use_sliding_window` turns it on, `max_window_layers` limits it to some layers
    default_head_size: int | None = None  # None: hidden_size / num_attention_heads


FAMILIES: dict[str, Family] = {
    "llama": Family(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"),
    "mistral": Family(has_sliding_window=True, default_sliding_window=4096),
    "qwen2": Family(qkv_bias=True, has_sliding_window=True, default_sliding_window=4096, window_needs_flag=True),
    "qwen3": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm=True,
        has_sliding_window=True,
        default_sliding_window=4096,
        window_needs_flag=True,
        default_head_size=128,
    ),
}


def config_from_hf(raw: Mapping[str, Any], origin: str) -> ModelConfig:
    """`raw` is config.json, `origin` names it in errors. Raises ModelFileError, UnsupportedModel."""
    architecture = str(raw.get("model_type", ""))
    family = FAMILIES.get(architecture)
    if family is None:
        known = ", ".join(FAMILIES)
        raise UnsupportedModel(f"{origin}: model_type {architecture!r} is not implemented; one of {known} is")
    _refuse_unsupported(raw, origin)
    return check_shape(_config(architecture, family, ConfigFields(raw, origin)), origin)


def _config(architecture: str, family: Family, fields: ConfigFields) -> ModelConfig:
    raw, origin = fields.raw, fields.origin
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    rope_theta, rope_scaling = read_rope(raw, origin)
    head_size = fields.optional_integer("head_dim") or family.default_head_size
    if head_size is None and hidden_size % num_heads:
        raise ModelFileError(
            f"{origin}: hidden_size {hidden_size} is no multiple of num_attention_heads {num_heads} and there is no "
            "head_dim; mend it or download it again"
        )

    def trait(value: bool | str) -> bool:
        return value if isinstance(value, bool) else fields.flag(value)

    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_size=hidden_size // num_heads if head_size is None else head_size,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6, zero=True),
        rope_theta=rope_theta,
        max_position=fields.integer("max_position_embeddings"),
        rope_scaling=rope_scaling,
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        qkv_bias=trait(family.qkv_bias),
        attention_bias=trait(family.output_bias),
        mlp_bias=trait(family.mlp_bias),
        qk_norm=family.qk_norm,
        sliding_window=_sliding_window(architecture, family, fields),
        dtype=str(next((raw[key] for key in ("dtype", "torch_dtype") if raw.get(key) is not None), "float32")),
    )


def _sliding_window(architecture: str, family: Family, fields: ConfigFields) -> int | None:
    """Of all layers; None: none. `layer_types` decides where it is there, whatever else the config says."""
    window = fields.optional_integer("sliding_window")  # a wrong one is refused, also where it is switched off
    if window is None and "sliding_window" not in fields.raw:
        window = family.default_sliding_window
    is_switched_off = family.window_needs_flag and not fields.flag("use_sliding_window")
    kind = _kind_of_layers(fields)
    if kind == _FULL:
        return None
    if kind == _SLIDING:
        if not family.has_sliding_window:
            raise UnsupportedModel(f"{fields.origin}: a {architecture} model with sliding windows is not implemented")
        if is_switched_off or window is None:
            why = "use_sliding_window is false" if is_switched_off else "sliding_window is null"
            raise ModelFileError(f"{fields.origin}: layer_types asks for sliding windows and {why}; mend one of them")
        return window
    if not family.has_sliding_window or is_switched_off or window is None:
        return None
    return window if _begins_at_first_layer(family, fields) else None


def _begins_at_first_layer(family: Family, fields: ConfigFields) -> bool:
    if not family.window_needs_flag:
        return True
    first, num_layers = fields.integer("max_window_layers", 28, least=0), fields.integer("num_hidden_layers")
    if 0 < first < num_layers:
        raise UnsupportedModel(
            f"{fields.origin}: a sliding window on layers {first} to {num_layers} only is not implemented"
        )
    return first == 0


def _kind_of_layers(fields: ConfigFields) -> str | None:
    """The one kind that `layer_types` names; None: it is not there. Raises UnsupportedModel, ModelFileError."""
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        return None
    num_layers = fields.integer("num_hidden_layers")
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        num_kinds = len(kinds) if isinstance(kinds, list) else repr(kinds)
        raise ModelFileError(f"{fields.origin}: layer_types has {num_kinds} entries for {num_layers} layers; mend it")
    distinct = sorted(set(map(str, kinds)))
    if len(distinct) > 1:
        names = ", ".join(distinct)
        raise UnsupportedModel(f"{fields.origin}: layers of different kinds ({names}) are not implemented")
    if distinct[0] not in (_FULL, _SLIDING):
        raise UnsupportedModel(
            f"{fields.origin}: layers of kind {distinct[0]!r} are not implemented; {_FULL} and {_SLIDING} are"
        )
    return distinct[0]


def _refuse_unsupported(raw: Mapping[str, Any], origin: str) -> None:
    """Fields that change what the weights mean must not be ignored."""
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(f"{origin}: hidden_act {activation!r} is not implemented; 'silu' is")
    quantization = raw.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else "unknown"
        raise UnsupportedModel(f"{origin}: {method} weights are not implemented; use the unquantised model or a GGUF")
