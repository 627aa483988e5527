"""What config.json says of quantised weights: which ways are read, and why others are not.

Owns the reading of `quantization_config`; which tensors are quantised is decided by the files (loaders.quantized).
Sources: transformers' and compressed-tensors' configuration classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.models.config_fields import ConfigFields

METHODS = ("fp8", "int4", "gptq", "awq")

_KNOWN = (
    "8-bit floats (e4m3) in blocks, 4-bit integers of compressed-tensors, in symmetric groups, GPTQ of 4 or 8 bits and "
    "AWQ (gemm) are"
)


@dataclass(frozen=True, slots=True)
class Quantization:
    """`method`: "fp8" (e4m3, a scale for each block of a matrix), or for each group of a row a scale: "int4"
    (compressed-tensors), and a zero point: "gptq", "awq"."""

    method: str
    block_rows: int  # rows that share a scale; integers: 1
    block_columns: int  # 0: all of a row
    untouched: tuple[str, ...]  # modules that are not quantised: names, parts of names, or "re:" and a pattern
    bits: int = 4  # of integers
    is_symmetric: bool = True  # zero points, where there are any, are the middle
    zero_offset: int = 0  # of stored zero points

    def leaves(self, module: str) -> bool:
        return any(_matches(pattern, module) for pattern in self.untouched)


def quantization_of(raw: Mapping[str, Any], origin: str) -> Quantization | None:
    """Of a config.json; None: weights are floats. Raises ModelFileError, UnsupportedModel."""
    stated = raw.get("quantization_config")
    if not stated:
        return None
    if not isinstance(stated, Mapping):
        raise ModelFileError(f"{origin}: quantization_config is {stated!r} and must be an object; mend it")
    method = str(stated.get("quant_method", "unknown"))
    if method == "fp8":
        return _fp8(stated, origin)
    if method in ("compressed-tensors", "compressed_tensors"):
        return _int4(stated, origin)
    if method == "gptq":
        return _gptq(ConfigFields(stated, f"{origin}: quantization_config"))
    if method == "awq":
        return _awq(ConfigFields(stated, f"{origin}: quantization_config"))
    raise _refused(origin, f"{method} weights")


def _fp8(stated: Mapping[str, Any], origin: str) -> Quantization:
    if (kind := stated.get("fmt", "e4m3")) not in ("e4m3", "float8_e4m3fn"):
        raise _refused(origin, f"8-bit floats of kind {kind!r}")
    if (scheme := stated.get("activation_scheme", "dynamic")) != "dynamic":
        raise _refused(origin, f"8-bit floats with {scheme} scales of activations")
    size = stated.get("weight_block_size")
    if size is None:
        raise _refused(origin, "8-bit floats with one scale for a whole tensor")
    if not isinstance(size, list) or len(size) != 2 or not all(type(each) is int and each > 0 for each in size):
        raise ModelFileError(f"{origin}: weight_block_size is {size!r} and must be two whole numbers; mend it")
    return Quantization("fp8", size[0], size[1], _names(stated, "modules_to_not_convert", origin))


def _int4(stated: Mapping[str, Any], origin: str) -> Quantization:
    groups = stated.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise _refused(origin, "compressed-tensors with other than one group of modules")
    (group,) = groups.values()
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise ModelFileError(f"{origin}: quantization_config says nothing of weights; download the file again")
    if (kind := group.get("format") or stated.get("format")) != "pack-quantized":
        raise _refused(origin, f"compressed-tensors of format {kind!r}")
    if group.get("input_activations"):
        raise _refused(origin, "compressed-tensors with quantised activations")
    if (weights.get("num_bits"), weights.get("type")) != (4, "int"):
        raise _refused(origin, f"compressed-tensors of {weights.get('num_bits')} bits of type {weights.get('type')!r}")
    if weights.get("symmetric") is not True:
        raise _refused(origin, "asymmetric compressed-tensors")
    if weights.get("actorder"):
        raise _refused(origin, "compressed-tensors in the order of activations")
    if weights.get("strategy") != "group":
        raise _refused(origin, f"compressed-tensors with a scale per {weights.get('strategy')}")
    if stated.get("sparsity_config"):
        raise _refused(origin, "sparse compressed-tensors")
    size = ConfigFields(weights, f"{origin}: quantization_config").integer("group_size")
    if size % 8:
        raise _refused(origin, f"compressed-tensors in groups of {size}")
    return Quantization("int4", 1, size, _names(stated, "ignore", origin))


def _gptq(fields: ConfigFields) -> Quantization:
    stated, origin = fields.raw, fields.origin
    if (bits := stated.get("bits")) not in (4, 8):
        raise _refused(origin, f"GPTQ weights of {bits} bits")
    kind = stated.get("checkpoint_format") or "gptq"
    if kind not in ("gptq", "gptq_v2") or stated.get("is_marlin_format"):
        raise _refused(origin, f"GPTQ weights in checkpoint_format {'marlin' if kind == 'gptq' else kind!r}")
    if (word := stated.get("pack_dtype") or "int32") != "int32":
        raise _refused(origin, f"GPTQ weights packed into {word}")
    by_module = stated.get("dynamic") or {}
    if not isinstance(by_module, Mapping) or not all(str(each).startswith("-:") for each in by_module):
        raise _refused(origin, "GPTQ weights whose bits or groups differ by module (dynamic)")
    untouched = {"dynamic": [f"re:{str(each).removeprefix('-:')}" for each in by_module]}
    return Quantization(
        "gptq",
        1,
        0 if stated.get("group_size") == -1 else fields.integer("group_size"),
        _names(untouched, "dynamic", origin),
        bits=bits,
        is_symmetric=stated.get("sym") is None or fields.flag("sym"),
        zero_offset=int(kind == "gptq"),
    )


def _awq(fields: ConfigFields) -> Quantization:
    stated, origin = fields.raw, fields.origin
    if (bits := stated.get("bits", stated.get("w_bit"))) != 4:
        raise _refused(origin, f"AWQ weights of {bits} bits")
    if (version := str(stated.get("version", "gemm")).lower()) != "gemm":
        raise _refused(origin, f"AWQ weights in version {version!r}")
    if stated.get("zero_point", True) is not True:
        raise _refused(origin, "AWQ weights without zero points")
    size = "q_group_size" if "q_group_size" in stated else "group_size"
    return Quantization(
        "awq",
        1,
        0 if stated.get(size) == -1 else fields.integer(size),
        _names(stated, "modules_to_not_convert", origin),
        is_symmetric=False,
    )


def _names(stated: Mapping[str, Any], name: str, origin: str) -> tuple[str, ...]:
    names = stated.get(name) or []
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ModelFileError(f"{origin}: {name} is {names!r} and must be a list of names; mend it")
    for each in names:
        try:
            re.compile(each.removeprefix("re:")) if each.startswith("re:") else None
        except re.error as error:
            raise ModelFileError(f"{origin}: {name} has {each!r}, which is no pattern ({error}); mend it") from error
    return tuple(names)


def _matches(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return f".{pattern}." in f".{module}."


def _refused(origin: str, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"{origin}: {what} are not implemented; {_KNOWN}; use the unquantised model or a GGUF")
