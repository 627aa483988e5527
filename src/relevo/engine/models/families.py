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

SUPPORTED_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")  # `rope` has their arithmetic


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
    try:
        return _config(architecture, family, raw)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{origin}: missing or wrong field ({error!r}); download the file again") from error


def _config(architecture: str, family: Family, raw: Mapping[str, Any]) -> ModelConfig:
    hidden_size, num_heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    rope_theta, rope_scaling = _rope(raw)

    def trait(value: bool | str) -> bool:
        return value if isinstance(value, bool) else bool(raw.get(value, False))

    return ModelConfig(
        architecture=architecture,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden_size,
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
        head_size=int(raw.get("head_dim") or family.default_head_size or hidden_size // num_heads),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=rope_theta,
        max_position=int(raw["max_position_embeddings"]),
        rope_scaling=rope_scaling,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=trait(family.qkv_bias),
        attention_bias=trait(family.output_bias),
        mlp_bias=trait(family.mlp_bias),
        qk_norm=family.qk_norm,
        sliding_window=_sliding_window(family, raw),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
    )


def _rope(raw: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Both spellings: `rope_theta` + `rope_scaling`, or everything inside `rope_parameters`."""
    scaling = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    theta = scaling.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0
    rope_type = scaling.pop("rope_type", None) or scaling.pop("type", None) or "default"
    scaling.pop("type", None)
    scaling.pop("partial_rotary_factor", None)
    if rope_type == "default":
        return float(theta), {}
    if raw.get("original_max_position_embeddings"):
        scaling["original_max_position_embeddings"] = raw["original_max_position_embeddings"]
    return float(theta), {"rope_type": "longrope" if rope_type == "su" else rope_type, **scaling}


def _sliding_window(family: Family, raw: Mapping[str, Any]) -> int | None:
    if not family.has_sliding_window or (family.window_needs_flag and not raw.get("use_sliding_window", False)):
        return None
    window = raw.get("sliding_window", family.default_sliding_window)
    if window is None:
        return None
    if not family.window_needs_flag:
        return int(window)
    first_layer, num_layers = int(raw.get("max_window_layers", 28)), int(raw["num_hidden_layers"])
    if 0 < first_layer < num_layers:
        raise UnsupportedModel(f"a sliding window on layers {first_layer} to {num_layers} only is not implemented")
    return int(window) if first_layer == 0 else None


def _refuse_unsupported(raw: Mapping[str, Any], origin: str) -> None:
    """Fields that change what the weights mean must not be ignored."""
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(f"{origin}: hidden_act {activation!r} is not implemented; 'silu' is")
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise UnsupportedModel(f"{origin}: {method} weights are not implemented; use the unquantised model or a GGUF")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    partial = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise UnsupportedModel(f"{origin}: partial_rotary_factor {partial} is not implemented; 1 is")
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    if rope_type not in (*SUPPORTED_ROPE_TYPES, "su"):
        known = ", ".join(SUPPORTED_ROPE_TYPES)
        raise UnsupportedModel(f"{origin}: rope scaling {rope_type!r} is not implemented; one of {known} is")
    layer_types = set(raw.get("layer_types") or ())
    if len(layer_types) > 1:
        raise UnsupportedModel(
            f"{origin}: layers of different kinds ({', '.join(sorted(layer_types))}) are not implemented"
        )
