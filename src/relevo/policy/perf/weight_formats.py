"""How many bytes a weight takes, in which unit it is multiplied, and which parts of a model have which format.

Owns the reading of `quantization_config` of Hugging Face configs (fp8, mxfp4, compressed-tensors, modelopt). Does not
know shapes: a part is one of few names, and a format belongs to a part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from relevo.core.errors import UnsupportedModel


class WeightFormat(StrEnum):
    F32 = "f32"
    BF16 = "bf16"
    FP8 = "fp8"  # one scale per tensor or channel
    FP8_BLOCK = "fp8_block"  # a float32 scale per 128 x 128
    INT8 = "int8"
    INT4_G32 = "int4_g32"  # a bfloat16 scale per 32 in a row
    INT4_G128 = "int4_g128"
    MXFP4 = "mxfp4"  # an 8-bit exponent per 32
    NVFP4 = "nvfp4"  # an 8-bit scale per 16

    @property
    def bytes_per_weight(self) -> float:
        """Scales included. Required by the formats."""
        return _BYTES[self]


_BYTES = {
    WeightFormat.F32: 4.0,
    WeightFormat.BF16: 2.0,
    WeightFormat.FP8: 1.0,
    WeightFormat.FP8_BLOCK: 1.0 + 4 / (128 * 128),
    WeightFormat.INT8: 1.0,
    WeightFormat.INT4_G32: 0.5 + 2 / 32,
    WeightFormat.INT4_G128: 0.5 + 2 / 128,
    WeightFormat.MXFP4: 0.5 + 1 / 32,
    WeightFormat.NVFP4: 0.5 + 1 / 16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormats:
    """Of each part of a model. Norms and routers stay in bfloat16 in every checkpoint known here."""

    attention: WeightFormat
    dense: WeightFormat  # MLPs that are not experts
    experts: WeightFormat  # routed ones
    shared: WeightFormat  # experts that every token passes
    head: WeightFormat = WeightFormat.BF16
    embedding: WeightFormat = WeightFormat.BF16

    @staticmethod
    def uniform(weight_format: WeightFormat) -> WeightFormats:
        """All matrices of the layers; the output layer in bfloat16, as checkpoints have it."""
        return WeightFormats(attention=weight_format, dense=weight_format, experts=weight_format, shared=weight_format)

    @staticmethod
    def experts_only(weight_format: WeightFormat) -> WeightFormats:
        """Routed experts; everything else in bfloat16."""
        bf16 = WeightFormat.BF16
        return WeightFormats(attention=bf16, dense=bf16, experts=weight_format, shared=bf16)


_MODULES = {  # one module of each part, by which exclusions are matched: the largest, where a part is kept in part
    "attention": "model.layers.N.self_attn.o_proj",
    "dense": "model.layers.N.mlp.up_proj",
    "experts": "model.layers.N.mlp.experts.0.up_proj",
    "shared": "model.layers.N.mlp.shared_experts.up_proj",
}
_EXCLUSIONS = ("modules_to_not_convert", "ignore", "exclude_modules")
_LAYER = re.compile(r"layers\.(\d+|\*)\.")


def weight_formats(quantization: Mapping[str, Any] | None) -> WeightFormats:
    """From a config's `quantization_config`; None: bfloat16. Raises UnsupportedModel for methods that are not known."""
    if not quantization:
        return WeightFormats.uniform(WeightFormat.BF16)
    bf16 = WeightFormat.BF16
    try:
        stored = _stored_format(quantization)
        kept = [pattern for key in _EXCLUSIONS for pattern in quantization.get(key) or ()]
        return WeightFormats(**{part: bf16 if _is_kept(name, kept) else stored for part, name in _MODULES.items()})
    except (AttributeError, TypeError, re.error) as error:
        raise UnsupportedModel(f"cannot tell the size of weights: not a quantization config ({error})") from error


def _stored_format(quantization: Mapping[str, Any]) -> WeightFormat:
    method = str(quantization.get("quant_method", "")).lower()
    algorithm = str(quantization.get("quant_algo", "")).lower()
    if method == "mxfp4":
        return WeightFormat.MXFP4
    if method == "fp8":
        return WeightFormat.FP8_BLOCK if quantization.get("weight_block_size") else WeightFormat.FP8
    if "nvfp4" in algorithm:
        return WeightFormat.NVFP4
    if algorithm == "fp8":
        return WeightFormat.FP8
    if method in ("gptq", "awq") and quantization.get("bits") == 4:
        return WeightFormat.INT4_G32 if quantization.get("group_size") == 32 else WeightFormat.INT4_G128
    if method == "compressed-tensors":
        return _compressed_tensors(quantization)
    raise UnsupportedModel(f"cannot tell the size of weights: quantization method {method or '?'!r} is not known")


def _compressed_tensors(quantization: Mapping[str, Any]) -> WeightFormat:
    groups = list((quantization.get("config_groups") or {}).values())
    weights = (groups[0].get("weights") or {}) if groups else {}
    num_bits, kind, group_size = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if num_bits == 8:
        return WeightFormat.INT8 if kind == "int" else WeightFormat.FP8
    if num_bits == 4 and kind == "int":
        return WeightFormat.INT4_G32 if group_size == 32 else WeightFormat.INT4_G128
    if num_bits == 4 and kind == "float":
        return WeightFormat.NVFP4 if group_size == 16 else WeightFormat.MXFP4
    raise UnsupportedModel(f"cannot tell the size of weights: {num_bits} bits of type {kind!r} are not known")


def _is_kept(name: str, patterns: Sequence[str]) -> bool:
    """Whether an exclusion names the module: a `re:` pattern, a glob, or some of the dotted parts of its name."""
    for pattern in patterns:
        if pattern.startswith("re:"):
            if re.match(pattern[3:], name):
                return True
            continue
        plain = _LAYER.sub("layers.N.", pattern.replace("language_model.", ""))
        plain = plain if plain.startswith("model.") else f"*{plain}"
        if fnmatchcase(name, plain) or f".{plain}." in f".{name}.":
            return True
    return False
