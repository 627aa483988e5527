"""Reads the head of a GGUF file: its key/value metadata and where each tensor lies.

Owns the container format only. It does not know what the keys mean, and it never touches tensor data.
Source: the GGUF specification, versions 2 and 3, little-endian (ggml, docs/gguf.md).
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relevo.core.errors import ModelFileError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32  # required by the specification when general.alignment is absent
_MAX_NESTING = 4  # arbitrary; nested arrays are legal, real files have none
_MAX_DIMENSIONS = 4  # required by ggml

_STRING, _ARRAY, _BOOL = 8, 9, 7
_read_length = struct.Struct("<Q").unpack_from
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A run of `block_elements` weights is stored in `block_bytes` bytes."""

    name: str
    block_elements: int
    block_bytes: int


GGML_TYPES = {
    0: GgmlType("F32", 1, 4),
    1: GgmlType("F16", 1, 2),
    2: GgmlType("Q4_0", 32, 18),
    3: GgmlType("Q4_1", 32, 20),
    6: GgmlType("Q5_0", 32, 22),
    7: GgmlType("Q5_1", 32, 24),
    8: GgmlType("Q8_0", 32, 34),
    10: GgmlType("Q2_K", 256, 84),
    11: GgmlType("Q3_K", 256, 110),
    12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176),
    14: GgmlType("Q6_K", 256, 210),
    24: GgmlType("I8", 1, 1),
    25: GgmlType("I16", 1, 2),
    26: GgmlType("I32", 1, 4),
    27: GgmlType("I64", 1, 8),
    28: GgmlType("F64", 1, 8),
    30: GgmlType("BF16", 1, 2),
    39: GgmlType("MXFP4", 32, 17),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies. `shape` is row-major (outermost first), the reverse of GGUF's own order."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int  # a key of GGML_TYPES, or a type that is not listed there
    offset: int  # bytes from the start of the file
    path: Path

    @property
    def type_name(self) -> str:
        known = GGML_TYPES.get(self.ggml_type)
        return known.name if known else f"type {self.ggml_type}"

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int | None:
        """Size of the stored data; None for a type that is not in GGML_TYPES."""
        known = GGML_TYPES.get(self.ggml_type)
        return None if known is None else self.num_elements // known.block_elements * known.block_bytes


@dataclass(frozen=True, slots=True)
class GgufHead:
    """Everything before the tensor data."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_metadata(path: Path | str) -> dict[str, Any]:
    """Key/values of the file as int, float, bool, str and (nested) lists of these. Raises ModelFileError."""
    return read_head(path).metadata


def read_head(path: Path | str, *, without: str | None = None) -> GgufHead:
    """Metadata and tensor places. Raises ModelFileError if the file is missing, broken or shorter than it says.

    Keys that begin with `without` are passed over: a vocabulary takes ten times as long to read as all the rest.
    """
    path = Path(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Cursor(data), path, len(data), without)
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, struct.error) as error:  # ValueError: an empty file, or _parse's own finding
        raise ModelFileError(f"{path} is not a complete GGUF file: {error}; download it again") from error


class _Cursor:
    """A position in the bytes. Raises ValueError when asked to read past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def take(self, num_bytes: int) -> int:
        """Move on by `num_bytes`; returns where they start."""
        start = self.position
        if num_bytes > len(self.data) - start:
            raise ValueError(f"it ends at byte {len(self.data)}, inside a value that starts at byte {start}")
        self.position = start + num_bytes
        return start

    def scalar(self, code: str) -> Any:
        fmt = "<" + code
        return struct.unpack_from(fmt, self.data, self.take(struct.calcsize(fmt)))[0]

    def string(self) -> str:
        num_bytes = self.scalar("Q")
        start = self.take(num_bytes)
        return str(self.data[start : start + num_bytes], "utf-8")

    def strings(self, count: int) -> list[str]:
        """`string`, `count` times; unrolled because vocabularies have 10^5 entries."""
        first = self.position
        self.skip_strings(count)
        data, position = self.data[first : self.position], 0  # cutting bytes is twice as fast as cutting a mapped file
        values = []
        for _ in range(count):
            start = position + 8
            position = start + _read_length(data, position)[0]
            values.append(data[start:position].decode())
        return values

    def skip_strings(self, count: int) -> None:
        data, position, size = self.data, self.position, len(self.data)
        for _ in range(count):
            start = position + 8
            position = start + _read_length(data, position)[0]
            if position > size:
                raise ValueError(f"it ends at byte {size}, inside a string that starts at byte {start}")
        self.position = position

    def value(self, kind: int, nesting: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(nesting + 1)
        return self.scalar(_scalar_code(kind))

    def skip(self, kind: int, nesting: int = 0) -> None:
        """Over a `value`."""
        if kind == _STRING:
            self.skip_strings(1)
        elif kind != _ARRAY:
            self.take(struct.calcsize("<" + _scalar_code(kind)))
        else:
            kind, count = self.array_head(nesting + 1)
            if kind == _STRING:
                self.skip_strings(count)
            elif kind != _ARRAY:
                self.take(count * struct.calcsize("<" + _scalar_code(kind)))
            else:
                for _ in range(count):
                    self.skip(kind, nesting + 1)

    def array_head(self, nesting: int) -> tuple[int, int]:
        """The elements' kind and number."""
        if nesting > _MAX_NESTING:
            raise ValueError(f"arrays are nested deeper than {_MAX_NESTING}")
        kind, count = self.scalar("I"), self.scalar("Q")
        if count > len(self.data) - self.position:  # every element takes at least one byte
            raise ValueError(f"an array of {count} elements does not fit the file")
        return kind, count

    def array(self, nesting: int) -> list[Any]:
        kind, count = self.array_head(nesting)
        if kind == _STRING:
            return self.strings(count)
        if kind == _ARRAY:
            return [self.array(nesting + 1) for _ in range(count)]
        fmt = f"<{count}{_scalar_code(kind)}"
        return list(struct.unpack_from(fmt, self.data, self.take(struct.calcsize(fmt))))


def _scalar_code(kind: int) -> str:
    code = _SCALARS.get(kind)
    if code is None:
        raise ValueError(f"value type {kind} does not exist")
    return code


def _parse(cursor: _Cursor, path: Path, file_bytes: int, without: str | None) -> GgufHead:
    start = cursor.take(len(_MAGIC))
    if cursor.data[start : cursor.position] != _MAGIC:
        raise ValueError("it does not start with 'GGUF'")
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        raise ValueError(f"version {version} is not one of {_VERSIONS} (little-endian); convert it anew")
    num_tensors, num_values = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key, kind = cursor.string(), cursor.scalar("I")
        if without is not None and key.startswith(without):
            cursor.skip(kind)
        else:
            metadata[key] = cursor.value(kind)
    raw = [_tensor(cursor, path) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ValueError(f"general.alignment is {alignment!r}, not a positive number")
    data_start = -(-cursor.position // alignment) * alignment
    tensors = {t.name: replace(t, offset=data_start + t.offset) for t in raw}
    for tensor in tensors.values():
        _check_place(tensor, file_bytes)
    return GgufHead(version, metadata, tensors)


def _tensor(cursor: _Cursor, path: Path) -> GgufTensor:
    """One tensor info; its `offset` still counts from the start of the tensor data."""
    name, num_dimensions = cursor.string(), cursor.scalar("I")
    if num_dimensions > _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name} has {num_dimensions} dimensions")
    innermost_first = [cursor.scalar("Q") for _ in range(num_dimensions)]
    return GgufTensor(name, tuple(reversed(innermost_first)), cursor.scalar("I"), cursor.scalar("Q"), path)


def _check_place(tensor: GgufTensor, file_bytes: int) -> None:
    known = GGML_TYPES.get(tensor.ggml_type)
    if known and tensor.shape and tensor.shape[-1] % known.block_elements:
        raise ValueError(f"rows of tensor {tensor.name} are no multiple of {known.block_elements} ({known.name})")
    if tensor.offset + (tensor.num_bytes or 0) > file_bytes:
        raise ValueError(f"tensor {tensor.name} ends past the end of the file")
