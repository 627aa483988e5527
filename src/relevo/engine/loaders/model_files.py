"""A model on disk: its config, an identity, and its tensors under Hugging Face's names.

Owns the reading: each tensor once, in large reads, on a few threads, a bounded number ahead of the consumer. It does
not know any file format; a format brings one `StoredTensor` per tensor.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relevo.core.errors import ModelFileError
from relevo.core.model import ModelConfig
from relevo.engine.ops.protocol import HostTensor

Progress = Callable[[int, int], None]  # bytes done, bytes in total

_MAX_THREADS = 4  # arbitrary; numpy spends about half of a dequantisation without the interpreter lock
_SAMPLE_BYTES = 256  # arbitrary; per tensor, enough to tell fine-tunes of one model apart


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    name: str  # Hugging Face's
    path: Path
    offset: int  # bytes
    num_bytes: int
    shape: tuple[int, ...]
    stored_as: str  # the format's own word for the data type
    decode: Callable[[npt.NDArray[np.uint8]], HostTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Seconds are summed over reading threads, `total_s` is wall time and includes what the consumer did in between."""

    file_bytes: int
    read_s: float
    dequantise_s: float
    total_s: float

    def __str__(self) -> str:
        rate = self.file_bytes / 1e9 / self.read_s if self.read_s > 0 else 0.0
        return (
            f"loaded {self.file_bytes / 1e6:.0f} MB in {self.total_s:.2f} s "
            f"(bare reads {self.read_s:.2f} s at {rate:.1f} GB/s, decoding {self.dequantise_s:.2f} s of thread time)"
        )


@dataclass(slots=True, kw_only=True)
class ModelFiles:
    """`folder` or `gguf_metadata` (never both) is where the tokenizer, chat template and generation defaults are."""

    name: str  # what clients may call the model
    source: str  # "gguf" or "safetensors"
    path: Path  # the GGUF file, or the folder
    config: ModelConfig
    stored: tuple[StoredTensor, ...]
    gguf_metadata: dict[str, Any] | None = None
    load_report: LoadReport | None = None  # of the last complete pass over `tensors`
    _hash: str = field(default="", init=False, repr=False)

    @property
    def folder(self) -> Path | None:
        return self.path if self.source == "safetensors" else None

    @property
    def file_bytes(self) -> int:
        """Bytes of tensor data."""
        return sum(tensor.num_bytes for tensor in self.stored)

    @property
    def model_hash(self) -> str:
        """Of names, shapes, types and a sample of each tensor: equal weights agree, however they are cut into files."""
        if not self._hash:
            digest = hashlib.sha256(repr(self.config).encode())
            for tensor in sorted(self.stored, key=lambda stored: stored.name):
                digest.update(f"{tensor.name} {tensor.shape} {tensor.stored_as}".encode())
                middle = max(0, (tensor.num_bytes - _SAMPLE_BYTES) // 2)
                sample = _read(tensor.path, tensor.offset + middle, min(_SAMPLE_BYTES, tensor.num_bytes))
                digest.update(sample.tobytes())
            self._hash = digest.hexdigest()[:32]
        return self._hash

    def tensors(self, progress: Progress | None = None) -> Iterator[tuple[str, HostTensor]]:
        """Every tensor once, in file order. Raises ModelFileError, UnsupportedModel. Sets `load_report` at the end."""
        started, total_bytes = time.perf_counter(), self.file_bytes
        num_bytes, read_s, dequantise_s = 0, 0.0, 0.0
        num_threads = min(_MAX_THREADS, _num_cores())
        with ThreadPoolExecutor(num_threads, thread_name_prefix="relevo-load") as pool:
            for tensor, loaded in _ahead(pool, self.stored, 2 * num_threads):
                num_bytes += tensor.num_bytes
                read_s += loaded.read_s
                dequantise_s += loaded.dequantise_s
                if progress is not None:
                    progress(num_bytes, total_bytes)
                yield tensor.name, loaded.tensor
        self.load_report = LoadReport(
            file_bytes=total_bytes,
            read_s=read_s,
            dequantise_s=dequantise_s,
            total_s=time.perf_counter() - started,
        )


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class _Loaded:
    tensor: HostTensor
    read_s: float
    dequantise_s: float


def _load(stored: StoredTensor) -> _Loaded:
    started = time.perf_counter()
    data = _read(stored.path, stored.offset, stored.num_bytes)
    read = time.perf_counter()
    tensor = stored.decode(data)
    return _Loaded(tensor, read - started, time.perf_counter() - read)


def _ahead(
    pool: ThreadPoolExecutor, stored: tuple[StoredTensor, ...], num_ahead: int
) -> Iterator[tuple[StoredTensor, _Loaded]]:
    """Results in order, with at most `num_ahead` tensors in memory that nobody has asked for."""
    remaining = iter(stored)
    waiting: deque[tuple[StoredTensor, Future[_Loaded]]] = deque(
        (tensor, pool.submit(_load, tensor)) for tensor in islice(remaining, num_ahead)
    )
    try:
        while waiting:
            tensor, future = waiting.popleft()
            loaded = future.result()
            waiting.extend((after, pool.submit(_load, after)) for after in islice(remaining, 1))
            yield tensor, loaded
    finally:
        for _, future in waiting:
            future.cancel()


def _read(path: Path, offset: int, num_bytes: int) -> npt.NDArray[np.uint8]:
    try:
        data = np.fromfile(path, dtype=np.uint8, count=num_bytes, offset=offset)
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) < num_bytes:
        raise ModelFileError(f"{path} ends before byte {offset + num_bytes}; download it again")
    return data
