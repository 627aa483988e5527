"""A tensor of a safetensors file as it lies there: an array of floats, or bytes that are part of a quantised weight."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.loaders.model_files import StoredTensor

if TYPE_CHECKING:  # a process that only opens a folder does without numpy
    import numpy as np
    import numpy.typing as npt

    from relevo.engine.ops.protocol import HostTensor

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "U8": 1, "F8_E4M3": 1, "I32": 4, "I64": 8}
FLOATS = ("F64", "F32", "F16", "BF16")


def plain_tensor(path: Path, name: str, offset: int, stored_as: str, shape: tuple[int, ...]) -> StoredTensor:
    def decode(data: npt.NDArray[np.uint8], _: str) -> HostTensor:
        return decode_plain(data, stored_as, shape, f"{path}: tensor {name}")

    return StoredTensor(
        name=name,
        path=path,
        offset=offset,
        num_bytes=math.prod(shape) * ITEM_BYTES[stored_as],
        shape=shape,
        stored_as=stored_as,
        decode=decode,
    )


def decode_plain(data: npt.NDArray[np.uint8], stored_as: str, shape: tuple[int, ...], what: str) -> HostTensor:
    from relevo.engine.ops.protocol import HostTensor

    if stored_as not in FLOATS:
        raise UnsupportedModel(f"{what} is stored as {stored_as}, which is no weight by itself")
    if stored_as == "F32":
        return HostTensor(data.view("<f4").reshape(shape), "float32")
    if stored_as == "F16":
        return HostTensor(data.view("<f2").reshape(shape), "float16")
    if stored_as == "BF16":
        return HostTensor(data.view("<u2").reshape(shape), "bfloat16")
    return HostTensor(data.view("<f8").astype("float32").reshape(shape), "float32")


def biases_of_zeros(stored: Iterable[StoredTensor], names: Collection[str]) -> frozenset[str]:
    """Of these names, the biases that add nothing: quantisers write one beside every matrix. Raises ModelFileError."""
    biases = [tensor for tensor in stored if tensor.name in names and tensor.name.endswith(".bias")]
    return frozenset(tensor.name for tensor in biases if tensor.stored_as in FLOATS and not any(_bytes(tensor)))


def _bytes(tensor: StoredTensor) -> bytes:
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            return file.read(tensor.num_bytes)
    except OSError as error:
        raise ModelFileError(f"cannot read {tensor.path}: {error.strerror or error}") from error
