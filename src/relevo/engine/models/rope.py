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
from relevo.engine.models.rope_config import original_length

FloatArray = npt.NDArray[np.float32]


def rope_frequencies(config: ModelConfig, max_model_len: int) -> tuple[FloatArray, float]:
    """Radians per position [D / 2], and the factor on cosines and sines. Raises UnsupportedModel.

    In float32 and in transformers' order of operations: a frequency that is one step of float32 off turns keys by
    visible angles after some hundred positions. `config.rope_scaling` has been checked by `rope_config`.
    """
    scaling = config.rope_scaling
    lengths = _wavelengths(config.rope_theta, _size(config))
    match scaling.get("rope_type", "default"):
        case "linear":
            return np.float32(1) / lengths / np.float32(scaling["factor"]), 1.0
        case "dynamic":
            return _dynamic(scaling, config, max_model_len), 1.0
        case "llama3":
            return _llama3(np.float32(1) / lengths, scaling, config), 1.0
        case "yarn":
            return _yarn(lengths, scaling, config)
        case "longrope":
            return _longrope(lengths, scaling, config, max_model_len)
    return np.float32(1) / lengths, 1.0


def _size(config: ModelConfig) -> int:
    """Elements of a head that are rotated."""
    return config.head_size if config.rotary_size is None else config.rotary_size


def _wavelengths(theta: float, head_size: int) -> FloatArray:
    """Positions per radian [D / 2]: float32 operands, each power rounded once.

    numpy's own float32 power has other last bits where it finds AVX-512, and keys that one machine wrote are read by
    another.
    """
    exponents = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    base = float(np.float32(theta))
    return np.array([math.pow(base, exponent) for exponent in exponents.tolist()], np.float32)


def _dynamic(scaling: dict[str, Any], config: ModelConfig, max_model_len: int) -> FloatArray:
    factor, size = float(scaling["factor"]), _size(config)
    length = max(max_model_len, config.max_position)
    stretch = factor * length / config.max_position - (factor - 1)
    return np.float32(1) / _wavelengths(config.rope_theta * stretch ** (size / (size - 2)), size)


def _llama3(plain: FloatArray, scaling: dict[str, Any], config: ModelConfig) -> FloatArray:
    original, factor = original_length(scaling, config.max_position), np.float32(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    lengths = np.float32(1) / plain * np.float32(2 * math.pi)  # positions per turn; torch divides by reciprocals
    mixed = np.where(lengths > np.float32(original / low), plain / factor, plain)
    if low == high:  # nothing is between
        return np.asarray(mixed)
    kept = (np.float32(1) / lengths * np.float32(original) - np.float32(low)) / np.float32(high - low)
    smooth = (np.float32(1) - kept) * mixed / factor + kept * mixed
    is_between = ~(lengths < np.float32(original / high)) & ~(lengths > np.float32(original / low))
    frequencies: FloatArray = np.where(is_between, smooth, mixed)
    return frequencies


def _yarn(lengths: FloatArray, scaling: dict[str, Any], config: ModelConfig) -> tuple[FloatArray, float]:
    original, size = original_length(scaling, config.max_position), _size(config)
    factor = float(scaling.get("factor", config.max_position / original))

    def dimension(num_turns: float) -> float:
        return size * math.log(original / (num_turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low, high = dimension(scaling.get("beta_fast", 32)), dimension(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    span = 0.001 if low == high else high - low  # required by the reference: no division by zero
    ramp = np.clip((np.arange(size // 2, dtype=np.float32) - np.float32(low)) / np.float32(span), 0.0, 1.0)
    kept = np.float32(1) - ramp  # 0: interpolated
    interpolated, plain = np.float32(1) / (np.float32(factor) * lengths), np.float32(1) / lengths
    mixed: FloatArray = interpolated * (np.float32(1) - kept) + plain * kept
    return mixed, _yarn_attention_factor(scaling, factor)


def _yarn_attention_factor(scaling: dict[str, Any], factor: float) -> float:
    if "attention_factor" in scaling:
        return float(scaling["attention_factor"])

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if "mscale" in scaling and "mscale_all_dim" in scaling:
        return magnitude(scaling["mscale"]) / magnitude(scaling["mscale_all_dim"])
    return magnitude(1.0)


def _longrope(
    lengths: FloatArray, scaling: dict[str, Any], config: ModelConfig, max_model_len: int
) -> tuple[FloatArray, float]:
    original = original_length(scaling, config.max_position)
    factors = np.asarray(scaling["long_factor" if max_model_len > original else "short_factor"], dtype=np.float32)
    if factors.shape != lengths.shape:
        raise UnsupportedModel(f"rope scaling 'longrope' has {factors.size} factors, the model needs {lengths.size}")
    scale = scaling.get("attention_factor")
    if scale is None:
        stretch = float(scaling.get("factor", config.max_position / original))
        scale = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    return np.float32(1) / (factors * lengths), float(scale)
