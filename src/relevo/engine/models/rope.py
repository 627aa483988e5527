"""Frequencies of rotary position embeddings, plain and scaled.

Owns the arithmetic from a config to one frequency per pair of dimensions. Sources: RoFormer (arXiv:2104.09864);
position interpolation (arXiv:2306.15595); NTK-aware scaling; YaRN (arXiv:2309.00071); LongRoPE (arXiv:2402.13753);
Llama 3.1's model card. Parameter names are those of `rope_scaling` in config.json.

"dynamic" and "longrope" are defined over the length of the sequence at hand. A cache holds keys that were rotated
earlier and are shared between requests, so the length is fixed once per process: it is the context length served.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relevo.core.errors import UnsupportedModel
from relevo.core.model import ModelConfig
from relevo.engine.models.families import SUPPORTED_ROPE_TYPES

FloatArray = npt.NDArray[np.float32]


def rope_frequencies(config: ModelConfig, max_model_len: int) -> tuple[FloatArray, float]:
    """Radians per position [D / 2], and the factor on cosines and sines. Raises UnsupportedModel."""
    scaling = config.rope_scaling
    rope_type = scaling.get("rope_type", "default")
    if rope_type not in SUPPORTED_ROPE_TYPES:
        known = ", ".join(SUPPORTED_ROPE_TYPES)
        raise UnsupportedModel(f"rope scaling {rope_type!r} is not implemented; one of {known} is")
    try:
        return _scaled(rope_type, scaling, config, max_model_len)
    except KeyError as missing:
        raise UnsupportedModel(f"rope scaling {rope_type!r} lacks {missing} in the model's config") from missing


def _scaled(
    rope_type: str, scaling: dict[str, Any], config: ModelConfig, max_model_len: int
) -> tuple[FloatArray, float]:
    plain = _plain(config.rope_theta, config.head_size)
    if rope_type == "linear":
        return plain / np.float32(scaling["factor"]), 1.0
    if rope_type == "dynamic":
        return _dynamic(scaling, config, max_model_len), 1.0
    if rope_type == "llama3":
        return _llama3(plain, scaling, config), 1.0
    if rope_type == "yarn":
        return _yarn(plain, scaling, config)
    if rope_type == "longrope":
        return _longrope(plain, scaling, config, max_model_len)
    return plain, 1.0


def _plain(theta: float, head_size: int) -> FloatArray:
    exponents = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    inverse: FloatArray = (1.0 / np.float64(theta) ** exponents.astype(np.float64)).astype(np.float32)
    return inverse


def _original_length(scaling: dict[str, Any], config: ModelConfig) -> int:
    return int(scaling.get("original_max_position_embeddings") or config.max_position)


def _dynamic(scaling: dict[str, Any], config: ModelConfig, max_model_len: int) -> FloatArray:
    factor, size = float(scaling["factor"]), config.head_size
    length = max(max_model_len, config.max_position)
    stretch = factor * length / config.max_position - (factor - 1)
    return _plain(config.rope_theta * stretch ** (size / (size - 2)), size)


def _llama3(plain: FloatArray, scaling: dict[str, Any], config: ModelConfig) -> FloatArray:
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = _original_length(scaling, config) * plain.astype(np.float64) / (2 * math.pi)  # within the original context
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)  # 1: a high frequency, left as it is
    mixed: FloatArray = (kept * plain + (1 - kept) * plain / factor).astype(np.float32)
    return mixed


def _yarn(plain: FloatArray, scaling: dict[str, Any], config: ModelConfig) -> tuple[FloatArray, float]:
    original, size = _original_length(scaling, config), config.head_size
    factor = float(scaling.get("factor") or config.max_position / original)

    def dimension(num_turns: float) -> float:
        return size * math.log(original / (num_turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low, high = dimension(scaling.get("beta_fast") or 32), dimension(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0.0, 1.0)  # 1: interpolated
    mixed: FloatArray = (plain / factor * ramp + plain * (1 - ramp)).astype(np.float32)
    return mixed, _yarn_attention_factor(scaling, factor)


def _yarn_attention_factor(scaling: dict[str, Any], factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    weight, weight_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return magnitude(weight) / magnitude(weight_all) if weight and weight_all else magnitude(1.0)


def _longrope(
    plain: FloatArray, scaling: dict[str, Any], config: ModelConfig, max_model_len: int
) -> tuple[FloatArray, float]:
    original = _original_length(scaling, config)
    factors = np.asarray(scaling["long_factor" if max_model_len > original else "short_factor"], dtype=np.float32)
    if factors.shape != plain.shape:
        raise UnsupportedModel(f"rope scaling 'longrope' has {factors.size} factors, the model needs {plain.size}")
    scale = scaling.get("attention_factor")
    if scale is None:
        stretch = float(scaling.get("factor") or config.max_position / original)
        scale = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    return plain / factors, float(scale)
