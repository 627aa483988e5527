"""A model on disk: its config, an identity, and its tensors under Hugging Face's names.

Owns the reading: each tensor once, in large reads, on a few threads, a bounded number ahead of the consumer; tensors
that a backend multiplies as they are stored are mapped, not read. It does not know any file format; a format brings one
`StoredTensor` per tensor.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import threading
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
_KEPT_MAPPED_BYTES = (
    8 * 2**20
)  # arbitrary; pages of a mapped file that count as ours although the consumer is past them


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    name: str  # Hugging Face's
    path: Path
    offset: int  # bytes
    num_bytes: int
    shape: tuple[int, ...]
    stored_as: str  # the format's own word for the data type
    decode: Callable[[npt.NDArray[np.uint8]], HostTensor]
    is_quantised: bool = False  # `decode` computes float32 from something smaller
    raw_format: str | None = None  # a key of ops.protocol.BLOCK_BYTES, if backends may take the file's own bytes
    as_raw: Callable[[npt.NDArray[np.uint8]], HostTensor] | None = None  # wherever raw_format is set


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
    def num_parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.stored)

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

    def tensors(
        self,
        progress: Progress | None = None,
        raw_formats: frozenset[str] = frozenset(),
        dequantised_as: str = "float32",
    ) -> Iterator[tuple[str, HostTensor]]:
        """Every tensor once, in file order. Raises ModelFileError, UnsupportedModel. Sets `load_report` at the end.

        Matrices stored in one of `raw_formats` come as the file's own bytes, read-only and mapped: they stay valid, and
        are best used before the next tensor is asked for. Other quantised ones come as `dequantised_as`, float32 or
        bfloat16.
        """
        started, total_bytes = time.perf_counter(), self.file_bytes
        num_bytes, mapped_bytes, read_s, dequantise_s = 0, 0, 0.0, 0.0
        num_threads = min(_MAX_THREADS, _num_cores())
        mapped = _MappedFiles()

        def load(stored: StoredTensor) -> _Loaded:
            if stored.as_raw is not None and stored.raw_format in raw_formats:
                return _Loaded(stored.as_raw(mapped.view(stored)), 0.0, 0.0, is_mapped=True)
            return _load(stored, dequantised_as)

        with ThreadPoolExecutor(num_threads, thread_name_prefix="relevo-load") as pool:
            for tensor, loaded in _ahead(pool, load, self.stored, 2 * num_threads):
                num_bytes += tensor.num_bytes
                mapped_bytes += tensor.num_bytes if loaded.is_mapped else 0
                read_s += loaded.read_s
                dequantise_s += loaded.dequantise_s
                if progress is not None:
                    progress(num_bytes, total_bytes)
                yield tensor.name, loaded.tensor
                if loaded.is_mapped:
                    mapped.used(tensor)
        self.load_report = LoadReport(
            file_bytes=total_bytes,
            mapped_bytes=mapped_bytes,
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
    is_mapped: bool = False


def _load(stored: StoredTensor, dequantised_as: str) -> _Loaded:
    started = time.perf_counter()
    data = _read(stored.path, stored.offset, stored.num_bytes)
    read = time.perf_counter()
    tensor = stored.decode(data)
    if stored.is_quantised and dequantised_as == "bfloat16":
        tensor = HostTensor(_bfloat16_bits(tensor.array), "bfloat16")
    return _Loaded(tensor, read - started, time.perf_counter() - read)


def _bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Rounded to nearest, ties to even. Finite values only. Writes into `values`."""
    bits = values.view(np.uint32)
    bits += (bits >> np.uint32(16) & np.uint32(1)) + np.uint32(0x7FFF)
    return (bits >> np.uint32(16)).astype(np.uint16)


class _MappedFiles:
    """Files of one pass as read-only memory. Pages that were used are given back, so that they do not add up.

    A file's size is checked when it is mapped. Memory lives as long as an array over it does.
    """

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap] = {}
        self._lock = threading.Lock()
        self._given_back: dict[Path, int] = {}  # bytes from the start of each file

    def view(self, stored: StoredTensor) -> npt.NDArray[np.uint8]:
        """[num_bytes]. Raises ModelFileError."""
        with self._lock:
            data = self._maps.get(stored.path) or self._maps.setdefault(stored.path, _map(stored.path))
        if stored.offset + stored.num_bytes > len(data):
            raise _ends_before(stored.path, stored.offset + stored.num_bytes)
        return np.frombuffer(data, dtype=np.uint8, count=stored.num_bytes, offset=stored.offset)

    def used(self, stored: StoredTensor) -> None:
        """The consumer is done with this tensor and those before it; if it is not, pages come back by themselves."""
        end = (stored.offset + stored.num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end - self._given_back.get(stored.path, 0) > _KEPT_MAPPED_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            self._maps[stored.path].madvise(mmap.MADV_DONTNEED, 0, end)
            self._given_back[stored.path] = end


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise ModelFileError(f"cannot read {path}: {error}; download it again") from error


def _ahead(
    pool: ThreadPoolExecutor,
    load: Callable[[StoredTensor], _Loaded],
    stored: tuple[StoredTensor, ...],
    num_ahead: int,
) -> Iterator[tuple[StoredTensor, _Loaded]]:
    """Results in order, with at most `num_ahead` tensors in memory that nobody has asked for."""
    remaining = iter(stored)
    waiting: deque[tuple[StoredTensor, Future[_Loaded]]] = deque(
        (tensor, pool.submit(load, tensor)) for tensor in islice(remaining, num_ahead)
    )
    try:
        while waiting:
            tensor, future = waiting.popleft()
            loaded = future.result()
            waiting.extend((after, pool.submit(load, after)) for after in islice(remaining, 1))
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
        raise _ends_before(path, offset + num_bytes)
    return data


def _ends_before(path: Path, num_bytes: int) -> ModelFileError:
    return ModelFileError(f"{path} ends before byte {num_bytes}; download it again")
