"""A model on disk: its config, an identity, and its tensors under Hugging Face's names.

Owns what is known of a model before its weights are read; `tensor_reader` reads them. It does not know any file format;
a format brings one `StoredTensor` per tensor.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from relevo.core.errors import ModelFileError
from relevo.core.model import ModelConfig

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from relevo.engine.ops.protocol import HostTensor

Progress = Callable[[int, int], None]  # bytes done, bytes in total

_SAMPLE_BYTES = 256  # arbitrary; per tensor, enough to tell fine-tunes of one model apart


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    name: str  # Hugging Face's
    path: Path
    offset: int  # bytes
    num_bytes: int
    shape: tuple[int, ...]
    stored_as: str  # the format's own word for the data type
    decode: Callable[[npt.NDArray[np.uint8], str], HostTensor]  # bytes, what quantised ones become: float32 or bfloat16
    raw_format: str | None = None  # a key of ops.formats.BLOCK_FORMATS, if backends may take the file's own bytes
    as_raw: Callable[[npt.NDArray[np.uint8]], HostTensor] | None = None  # wherever raw_format is set
    beside: tuple[StoredTensor, ...] = ()  # further tensors, which `decode` reads: scales, zero points


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Seconds are summed over reading threads, `total_s` is wall time and includes what the consumer did in between."""

    file_bytes: int
    mapped_bytes: int  # of these, handed out as the file's own pages
    read_s: float
    dequantise_s: float
    total_s: float

    def __str__(self) -> str:
        num_read = self.file_bytes - self.mapped_bytes
        rate = num_read / 1e9 / self.read_s if self.read_s > 0 else 0.0
        mapped = f"{self.mapped_bytes / 1e6:.0f} MB of them mapped as stored, " if self.mapped_bytes else ""
        return (
            f"loaded {self.file_bytes / 1e6:.0f} MB in {self.total_s:.2f} s "
            f"({mapped}bare reads {self.read_s:.2f} s at {rate:.1f} GB/s, decoding {self.dequantise_s:.2f} s of "
            f"thread time)"
        )


@dataclass(slots=True, kw_only=True)
class ModelFiles:
    name: str  # what clients may call the model
    source: str  # "gguf" or "safetensors"
    path: Path  # the GGUF file, or the folder
    config: ModelConfig
    stored: tuple[StoredTensor, ...]
    notes: tuple[str, ...] = ()  # what an operator should hear of the files
    load_report: LoadReport | None = None  # of the last complete pass over `tensors`
    _hash: str = field(default="", init=False, repr=False)

    @property
    def folder(self) -> Path | None:
        return self.path if self.source == "safetensors" else None

    @property
    def file_bytes(self) -> int:
        """Bytes of tensor data, without scales of their own."""
        return sum(tensor.num_bytes for tensor in self.stored)

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.stored)

    @property
    def model_hash(self) -> str:
        """Of names, shapes, types and a sample of each tensor: equal weights agree, however they are cut into files."""
        if not self._hash:
            digest = hashlib.sha256(repr(self.config).encode())
            samples = _samples(self.stored)
            for tensor in sorted(self.stored, key=lambda stored: stored.name):
                digest.update(f"{tensor.name} {tensor.shape} {tensor.stored_as}".encode())
                digest.update(samples[tensor.name])
                for part in tensor.beside:
                    digest.update(samples[part.name])
            self._hash = digest.hexdigest()[:32]
        return self._hash

    def tensors(
        self,
        progress: Progress | None = None,
        raw_formats: frozenset[str] = frozenset(),
        dequantised_as: str = "float32",
        wanted: Collection[str] | None = None,
    ) -> Iterator[tuple[str, HostTensor]]:
        """Every tensor once, in file order, or those of the `wanted` names. Raises ModelFileError, UnsupportedModel.
        Sets `load_report` at the end.

        Matrices stored in one of `raw_formats` come as the file's own bytes, read-only and mapped: they stay valid, and
        are best used before the next tensor is asked for. Other quantised ones come as `dequantised_as`, float32 or
        bfloat16.
        """
        from relevo.engine.loaders.tensor_reader import (
            read_tensors,
        )  # numpy: a process that only opens a model does without

        stored = self.stored if wanted is None else tuple(each for each in self.stored if each.name in wanted)
        return read_tensors(self, stored, progress, raw_formats, dequantised_as)


def ends_before(path: Path, num_bytes: int) -> ModelFileError:
    return ModelFileError(f"{path} ends before byte {num_bytes}; download it again")


def _samples(stored: tuple[StoredTensor, ...]) -> dict[str, bytes]:
    """A few bytes from the middle of each tensor, by its name, and of what lies beside it. Raises ModelFileError."""
    samples = {}
    parts = [*stored, *(part for tensor in stored for part in tensor.beside)]
    for path in {part.path for part in parts}:
        try:
            with path.open("rb", buffering=0) as file:
                for part in parts:
                    if part.path == path:
                        samples[part.name] = _sample(file, part)
        except OSError as error:
            raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from error
    return samples


def _sample(file: BinaryIO, tensor: StoredTensor) -> bytes:
    num_bytes = min(_SAMPLE_BYTES, tensor.num_bytes)
    start = tensor.offset + max(0, (tensor.num_bytes - _SAMPLE_BYTES) // 2)
    file.seek(start)
    sample = file.read(num_bytes)
    if len(sample) < num_bytes:
        raise ends_before(tensor.path, start + num_bytes)
    return sample
