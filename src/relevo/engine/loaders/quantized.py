"""Quantised weights of a folder: a weight and its scales, in tensors of their own, become one tensor.

Owns which tensors belong together and what they are checked for; the arithmetic is `quantized_tensors`', which is
imported when weights are read. The files decide what is quantised; what config.json says must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.loaders.model_files import StoredTensor
from relevo.engine.loaders.packed_groups import packed_weights
from relevo.engine.loaders.plain_tensor import FLOATS
from relevo.engine.loaders.weight_parts import check_integers, check_not_left, check_shape, part_of
from relevo.engine.models.quantization import METHODS, Quantization
from relevo.engine.models.weight_plan import KV_UP

if TYPE_CHECKING:  # a process that only opens a folder does without numpy
    import numpy as np
    import numpy.typing as npt

    from relevo.engine.ops.protocol import HostTensor

_Q4_GROUP = 32  # of weights that a backend may multiply as they are; a larger group is several of them


def whole_weights(
    quantization: Quantization | None, stored: Sequence[StoredTensor], folder: Path
) -> list[StoredTensor]:
    """Weights joined with their scales, all else as it is. Raises ModelFileError, UnsupportedModel."""
    if quantization is None:
        joined = list(stored)
    else:
        by_name = {tensor.name: tensor for tensor in stored}
        match quantization.method:
            case "fp8":
                joined = _fp8(quantization, by_name, folder)
            case "int4":
                joined = _int4(quantization, by_name)
            case _:
                joined = packed_weights(quantization, by_name)
    for tensor in joined:
        if tensor.stored_as not in (*FLOATS, "U8", *METHODS):
            known = ", ".join(FLOATS)
            raise UnsupportedModel(
                f"{tensor.path}: tensor {tensor.name} is stored as {tensor.stored_as}; one of {known} is implemented "
                "without a quantization_config that says what it means"
            )
    return joined


def _fp8(quantization: Quantization, by_name: Mapping[str, StoredTensor], folder: Path) -> list[StoredTensor]:
    joined = []
    for name, tensor in by_name.items():
        if name.endswith(".weight_scale_inv") and name.removesuffix("_scale_inv") in by_name:
            if by_name[name.removesuffix("_scale_inv")].stored_as != "F8_E4M3":
                raise ModelFileError(f"{folder}: {name} belongs to a weight that is not quantised; download it again")
            continue
        if tensor.stored_as != "F8_E4M3":
            joined.append(tensor)
            continue
        scales = part_of(by_name, f"{name}_scale_inv", tensor, FLOATS)
        check_not_left(quantization, tensor, name.removesuffix(".weight"))
        if len(tensor.shape) != 2:
            raise UnsupportedModel(
                f"{tensor.path}: tensor {name} of shape {list(tensor.shape)} is stored in 8-bit floats, which is "
                "implemented for matrices"
            )
        blocks = (quantization.block_rows, quantization.block_columns)
        check_shape(scales, _blocks(tensor.shape, blocks), tensor)
        joined.append(_with_scales(tensor, name, tensor.shape, scales, "fp8", blocks))
    return joined


def _int4(quantization: Quantization, by_name: Mapping[str, StoredTensor]) -> list[StoredTensor]:
    joined = []
    for name, tensor in by_name.items():
        module, _, last = name.rpartition(".")
        is_part = last in ("weight_scale", "weight_shape") and f"{module}.weight_packed" in by_name
        if is_part:
            continue
        if last in ("weight_zero_point", "weight_g_idx"):
            raise UnsupportedModel(f"{tensor.path}: {name}: asymmetric or reordered weights are not implemented")
        if last != "weight_packed":
            joined.append(tensor)
            continue
        check_not_left(quantization, tensor, module)
        scales = part_of(by_name, f"{module}.weight_scale", tensor, FLOATS)
        check_integers(tensor)
        check_shape(scales, (tensor.shape[0], (*scales.shape, 0)[1]), tensor)
        rows, columns = tensor.shape[0], scales.shape[1] * quantization.block_columns
        check_shape(tensor, (rows, columns // 8), scales)
        blocks = (1, quantization.block_columns)
        joined.append(_with_scales(tensor, f"{module}.weight", (rows, columns), scales, "int4", blocks))
    return joined


def _blocks(shape: tuple[int, ...], size: tuple[int, int]) -> tuple[int, ...]:
    """Borders cut blocks: a rest has a scale of its own."""
    return tuple(-(-length // each) for length, each in zip(shape, size, strict=False))


def _with_scales(
    tensor: StoredTensor, name: str, shape: tuple[int, ...], scales: StoredTensor, method: str, blocks: tuple[int, int]
) -> StoredTensor:
    is_kept = name.endswith(KV_UP)  # absorbed, and never rounded again

    def decode(data: npt.NDArray[np.uint8], dequantised_as: str) -> HostTensor:
        from relevo.engine.loaders.quantized_tensors import dequantise

        return dequantise(data, method, shape, scales, blocks, "float32" if is_kept else dequantised_as)

    def as_raw(data: npt.NDArray[np.uint8]) -> HostTensor:
        from relevo.engine.loaders.quantized_tensors import as_q4_0

        return as_q4_0(data, shape, scales, blocks[1])

    is_raw = method == "int4" and blocks[1] % _Q4_GROUP == 0 and not is_kept
    return replace(
        tensor,
        name=name,
        shape=shape,
        stored_as=method,
        decode=decode,
        raw_format="q4_0" if is_raw else None,
        as_raw=as_raw if is_raw else None,
        beside=(scales,),
    )
