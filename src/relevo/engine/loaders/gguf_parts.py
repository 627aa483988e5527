"""A model that llama.cpp's tools have split into several files, as one.

Owns which files belong together, by the names that those tools give them. The first one has the keys.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from relevo.core.errors import ModelFileError
from relevo.engine.loaders.gguf_metadata import GgufHead, GgufTensor, read_head

_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def read_whole(path: Path) -> GgufHead:
    """Keys without those of the tokenizer, and the tensors of all parts. Raises ModelFileError."""
    head = read_head(path, without="tokenizer.")
    count = head.metadata.get("split.count", 0)
    if not isinstance(count, int) or count <= 1:
        return head
    tensors: dict[str, GgufTensor] = dict(head.tensors)
    for number, part in enumerate(_others(path, count), start=2):
        other = read_head(part, without="tokenizer.")
        if (stated := other.metadata.get("split.no")) != number - 1:
            raise ModelFileError(f"{part} says that it is part {stated} and not {number - 1}; download it again")
        if twin := next((name for name in other.tensors if name in tensors), None):
            raise ModelFileError(f"{part} has tensor {twin}, which an earlier part has; download both again")
        tensors |= other.tensors
    if (stated := head.metadata.get("split.tensors.count", len(tensors))) != len(tensors):
        raise ModelFileError(
            f"{path} and its other parts have {len(tensors)} tensors and say that they are {stated}; "
            "download them again"
        )
    return replace(head, tensors=tensors)


def _others(path: Path, count: int) -> list[Path]:
    name = _NAME.fullmatch(path.name)
    if name is None or int(name[3]) != count:
        raise ModelFileError(
            f"{path} is one of {count} parts of a model, which are found by their names; name it as it was, "
            f"NAME-00001-of-{count:05d}.gguf, or join them with llama-gguf-split --merge"
        )
    parts = [path.with_name(f"{name[1]}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    if int(name[2]) != 1:
        raise ModelFileError(f"{path} is part {int(name[2])} of {count} of a model; name the first, {parts[0].name}")
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise ModelFileError(
            f"{path.parent} lacks {len(missing)} of {count} parts of the model, the first is {missing[0]}; "
            "complete the download"
        )
    return parts[1:]
