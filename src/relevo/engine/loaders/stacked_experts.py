"""Experts that a folder stacks in one tensor, each as a weight of its own.

Owns the three forms of such stacks: floats [experts, out, in], gates before the values beside them; floats [experts,
in, out], transposed; and MXFP4, blocks of 32 values in 4 bits with a power of two each. Of the last two, rows of gates
and of the values beside them are put one after the other. The family says which of the first two it is: shapes can be
alike. Source of MXFP4: the OCP Microscaling Formats specification; its values are floats of 16 bits exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.model import ExpertsConfig
from relevo.engine.loaders.model_files import StoredTensor
from relevo.engine.loaders.plain_tensor import FLOATS, plain_tensor

if TYPE_CHECKING:  # a process that only opens a folder does without numpy
    import numpy as np
    import numpy.typing as npt

    from relevo.engine.ops.protocol import HostTensor

_BLOCKS, _SCALES, _BIAS = "_blocks", "_scales", "_bias"
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of 3 bits; the fourth is the sign
_NO_SCALE = 255  # not a number
_EXPONENT_BIAS = 127


def experts_apart(experts: ExpertsConfig, stored: Sequence[StoredTensor]) -> list[StoredTensor]:
    """What is no stack stays. Raises ModelFileError for a stack of another number of experts."""
    if experts.stacked_gate_up:
        return [part for tensor in stored for part in _rows_apart(experts, tensor)]
    stacks = {f"{experts.block}.experts.{name}" for name in experts.projections}
    by_name = {tensor.name: tensor for tensor in stored}
    apart: list[StoredTensor] = []
    for tensor in stored:
        stem = tensor.name.removesuffix(_BLOCKS).removesuffix(_BIAS)
        if not any(stem.endswith(f".{stack}") for stack in stacks):
            if not (tensor.name.endswith(_SCALES) and tensor.name.removesuffix(_SCALES) + _BLOCKS in by_name):
                apart.append(tensor)  # scales are read with their blocks
            continue
        apart += _parts(experts, tensor, by_name)
    return apart


def _rows_apart(experts: ExpertsConfig, tensor: StoredTensor) -> Iterator[StoredTensor]:
    """Of a stack [experts, out, in]."""
    *gate_up, down = experts.projections
    block, _, name = tensor.name.rpartition(".")
    projections = {experts.stacked_gate_up: gate_up, down: [down]}.get(name, [])
    if not projections or not block.endswith(f".{experts.block}.experts"):
        yield tensor
        return
    _check_stack(experts, tensor, 3, FLOATS)
    rows, rest = divmod(tensor.shape[1], len(projections))
    if rest:
        raise ModelFileError(f"{tensor.path}: {tensor.shape[1]} rows of {tensor.name} are no halves; mend the file")
    num_bytes = tensor.num_bytes // (tensor.shape[0] * len(projections))
    parts = ((number, projection) for number in range(tensor.shape[0]) for projection in projections)
    for place, (number, projection) in enumerate(parts):
        part_name, offset = f"{block}.{number}.{projection}.weight", tensor.offset + place * num_bytes
        yield plain_tensor(tensor.path, part_name, offset, tensor.stored_as, (rows, tensor.shape[2]))


def _check_stack(experts: ExpertsConfig, tensor: StoredTensor, num_dims: int, formats: Collection[str]) -> None:
    if len(tensor.shape) != num_dims or tensor.shape[0] != experts.num_experts:
        raise ModelFileError(
            f"{tensor.path}: tensor {tensor.name} has shape {list(tensor.shape)} for {experts.num_experts} experts; "
            "the config is another model's"
        )
    if tensor.stored_as not in formats:
        raise UnsupportedModel(
            f"{tensor.path}: experts stacked in {tensor.name} are stored as {tensor.stored_as}, which is not "
            f"implemented; floats and MXFP4 are"
        )


def _parts(experts: ExpertsConfig, tensor: StoredTensor, by_name: dict[str, StoredTensor]) -> Iterator[StoredTensor]:
    is_quantised, is_bias = tensor.name.endswith(_BLOCKS), tensor.name.endswith(_BIAS)
    _check_stack(experts, tensor, 4 if is_quantised else 2 if is_bias else 3, ("U8",) if is_quantised else FLOATS)
    stem = tensor.name.removesuffix(_BLOCKS).removesuffix(_BIAS)
    block, projection = stem.rsplit(".", 1)
    is_interleaved = experts.is_interleaved and projection != experts.projections[-1]
    scales = by_name.get(f"{stem}{_SCALES}") if is_quantised else None
    if is_quantised and (scales is None or scales.shape != tensor.shape[:-1] or scales.stored_as != "U8"):
        raise ModelFileError(f"{tensor.path}: tensor {tensor.name} has no scales that fit it; download it again")
    for number in range(experts.num_experts):
        name = f"{block}.{number}.{projection}.{'bias' if is_bias else 'weight'}"
        part = _part(tensor, number, name)
        if scales is not None:
            yield _mxfp4(part, _part(scales, number, f"{name}{_SCALES}"), is_interleaved)
        else:
            yield _turned(part, is_interleaved, is_matrix=not is_bias)


def _part(tensor: StoredTensor, number: int, name: str) -> StoredTensor:
    shape = tensor.shape[1:]
    num_bytes = tensor.num_bytes // tensor.shape[0]
    return plain_tensor(tensor.path, name, tensor.offset + number * num_bytes, tensor.stored_as, shape)


def _turned(part: StoredTensor, is_interleaved: bool, is_matrix: bool) -> StoredTensor:
    def decode(data: npt.NDArray[np.uint8], dequantised_as: str) -> HostTensor:
        import numpy as np

        from relevo.engine.ops.protocol import HostTensor

        plain = part.decode(data, dequantised_as)
        array = plain.array.T if is_matrix else plain.array
        return HostTensor(np.ascontiguousarray(_gates_first(array) if is_interleaved else array), plain.dtype)

    return replace(part, shape=part.shape[::-1], decode=decode)


def _mxfp4(blocks: StoredTensor, scales: StoredTensor, is_interleaved: bool) -> StoredTensor:
    rows, num_blocks, half = blocks.shape

    def decode(data: npt.NDArray[np.uint8], _: str) -> HostTensor:
        import numpy as np

        from relevo.engine.ops.protocol import HostTensor

        with scales.path.open("rb") as file:
            file.seek(scales.offset)
            exponents = np.frombuffer(file.read(scales.num_bytes), np.uint8)
        if len(exponents) != scales.num_bytes or (exponents == _NO_SCALE).any():
            raise ModelFileError(f"{scales.path}: the scales of {blocks.name} are no numbers; download it again")
        packed = data.reshape(rows, num_blocks, half)
        table = np.array([*_VALUES, *(-value for value in _VALUES)], np.float32)
        values = np.empty((rows, num_blocks, half, 2), np.float32)
        values[..., 0], values[..., 1] = table[packed & 15], table[packed >> 4]
        powers = exponents.astype(np.int32).reshape(rows, num_blocks, 1, 1) - _EXPONENT_BIAS
        bits = np.ldexp(values, powers).view(np.uint32) >> np.uint32(16)
        array = bits.astype(np.uint16).reshape(rows, num_blocks * half * 2)
        return HostTensor(np.ascontiguousarray(_gates_first(array) if is_interleaved else array), "bfloat16")

    return replace(blocks, shape=(rows, num_blocks * half * 2), stored_as="MXFP4", decode=decode, beside=(scales,))


def _gates_first(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    import numpy as np

    return np.concatenate((array[::2], array[1::2]))
