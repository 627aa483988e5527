"""The keys of a GGUF file that belong to its architecture, with the file's name in every error.

Owns what a missing or strange key comes to, and which keys were read: one that changes what weights mean must not be
passed over. Which keys there are is the families'.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.loaders.gguf_metadata import GgufHead
from relevo.engine.models.config_fields import ConfigFields

# Written for every architecture, and nothing that is computed depends on them.
_HARMLESS = frozenset({"vocab_size", "rope.scaling.finetuned"})
_MAX_FLOAT32 = 3.4e38


class GgufKeys:
    """Names are without the architecture before them."""

    def __init__(self, path: Path, architecture: str, head: GgufHead) -> None:
        self.origin = str(path)
        self._path, self._architecture, self._head = path, architecture, head
        self._read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        return self._head.metadata.get(f"{self._architecture}.{key}", default)

    def need(self, key: str) -> Any:
        """Raises ModelFileError if it is missing."""
        value = self._one(key)
        if value is None:
            raise ModelFileError(f"{self.origin} lacks the key {self._architecture}.{key}; convert it anew")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """At least 1. Raises ModelFileError, UnsupportedModel."""
        return (
            self.fields(key).integer(key, default) if default is not None else self.fields(key, self.need).integer(key)
        )

    def number(self, key: str, default: float | None = None, *, zero: bool = False) -> float:
        """Above 0, or 0 too. Raises ModelFileError, UnsupportedModel."""
        if default is not None:
            return self.fields(key).number(key, default, zero=zero)
        return self.fields(key, self.need).number(key, zero=zero)

    def decimal(self, key: str, default: float | None = None, *, zero: bool = False) -> float:
        """A number as it was written before it was stored in 32 bits: 0.1, not 0.10000000149."""
        return _shortest(self.number(key, default, zero=zero))

    def fields(self, key: str, read: Callable[[str], Any] | None = None) -> ConfigFields:
        """With that one key, under its name."""
        return ConfigFields({key: (read or self._one)(key)}, self.origin)

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """Of a tensor of the file; None: it has none of this name."""
        found = self._head.tensors.get(tensor)
        return None if found is None else found.shape

    def floats(self, tensor: str) -> list[float] | None:
        """The numbers of a small tensor of float32. Raises UnsupportedModel."""
        found = self._head.tensors.get(tensor)
        if found is None:
            return None
        if found.type_name != "F32":
            raise UnsupportedModel(f"{self.origin}: tensor {tensor} is stored as {found.type_name}; F32 is implemented")
        with self._path.open("rb") as file:
            file.seek(found.offset)
            return list(struct.unpack(f"<{found.num_elements}f", file.read(found.num_elements * 4)))

    def refuse_unread(self) -> None:
        """Raises UnsupportedModel for a key that says something and that nothing has asked for."""
        prefix, known = f"{self._architecture}.", self._read | _HARMLESS
        strange = [
            name
            for name, value in self._head.metadata.items()
            if name.startswith(prefix) and value not in (False, "", []) and name.removeprefix(prefix) not in known
        ]
        if strange:
            raise UnsupportedModel(
                f"{self.origin}: {len(strange)} keys are not known for this architecture, the first is {strange[0]}; "
                "computing without them could give other answers"
            )

    def _one(self, key: str) -> Any:
        """Of a key that some files give layer by layer. None if it is absent."""
        value = self.get(key)
        if not isinstance(value, list):
            return value
        if len(set(value)) != 1:
            raise UnsupportedModel(f"{self.origin}: {key} differs between layers, which is not implemented")
        return value[0]


def _shortest(value: float) -> float:
    """The decimal of fewest digits that is the same in float32; a number that is none in float32 stays."""
    if not abs(value) < _MAX_FLOAT32 or struct.unpack("<f", stored := struct.pack("<f", value))[0] != value:
        return value
    decimals = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((each for each in decimals if abs(each) < _MAX_FLOAT32 and struct.pack("<f", each) == stored), value)
