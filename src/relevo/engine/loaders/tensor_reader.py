"""Reads an opened model's tensors.

Owns the reading: each tensor once, in large reads, on a few threads, a bounded number ahead of the consumer; tensors
that a backend multiplies as they are stored are mapped, not read.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from relevo.core.errors import ModelFileError
from relevo.engine.loaders.model_files import LoadReport, ModelFiles, Progress, StoredTensor, ends_before
from relevo.engine.ops.protocol import HostTensor

_MAX_THREADS = 4  # arbitrary; numpy spends about half of a dequantisation without the interpreter lock
_KEPT_MAPPED_BYTES = (
    8 * 2**20
)  # arbitrary; pages of a mapped file that count as ours although the consumer is past them


def read_tensors(
    files: ModelFiles,
    stored: tuple[StoredTensor, ...],
    progress: Progress | None,
    raw_formats: frozenset[str],
    dequantised_as: str,
) -> Iterator[tuple[str, HostTensor]]:
    """See `ModelFiles.tensors`; `stored`: of these."""
    started, total_bytes = time.perf_counter(), sum(tensor.num_bytes for tensor in stored)
    num_bytes, mapped_bytes, read_s, dequantise_s = 0, 0, 0.0, 0.0
    num_threads = min(_MAX_THREADS, _num_cores())
    mapped = _MappedFiles()

    def load(one: StoredTensor) -> _Loaded:
        if one.as_raw is not None and one.raw_format in raw_formats:
            return _Loaded(one.as_raw(mapped.view(one)), 0.0, 0.0, is_mapped=True)
        return _load(one, dequantised_as)

    with ThreadPoolExecutor(num_threads, thread_name_prefix="relevo-load") as pool:
        for tensor, loaded in _ahead(pool, load, stored, 2 * num_threads):
            num_bytes += tensor.num_bytes
            mapped_bytes += tensor.num_bytes if loaded.is_mapped else 0
            read_s += loaded.read_s
            dequantise_s += loaded.dequantise_s
            if progress is not None:
                progress(num_bytes, total_bytes)
            yield tensor.name, loaded.tensor
            if loaded.is_mapped:
                mapped.used(tensor)
    files.load_report = LoadReport(
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
    tensor = stored.decode(data, dequantised_as)
    return _Loaded(tensor, read - started, time.perf_counter() - read)


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
            raise ends_before(stored.path, stored.offset + stored.num_bytes)
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
    """Results in order, with at most `num_ahead` tensors in memory that were not asked for yet."""
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
        raise ends_before(path, offset + num_bytes)
    return data
