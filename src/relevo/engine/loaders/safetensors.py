"""A Hugging Face folder: config.json and one or many safetensors files.

Owns the safetensors container and the index of a sharded model. It does not know families (models.families does).
Source: the safetensors format (8 bytes of header length, a JSON header, raw little-endian data).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.loaders.model_files import ModelFiles, StoredTensor
from relevo.engine.models.families import config_from_hf

if TYPE_CHECKING:  # who only opens a folder does without numpy
    import numpy as np
    import numpy.typing as npt

    from relevo.engine.ops.protocol import HostTensor

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_MAX_HEADER_BYTES = 100_000_000  # required by the format
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_NO_WEIGHTS = {"BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64"}  # buffers: masks, position ids


def open_folder(folder: Path, name: str) -> ModelFiles:
    """Reads the headers only. Raises ModelFileError, UnsupportedModel."""
    config_path = folder / "config.json"
    config = config_from_hf(_json(config_path), str(config_path))
    stored = [tensor for shard in _shards(folder) for tensor in _read_header(shard)]
    return ModelFiles(name=name, source="safetensors", path=folder, config=config, stored=tuple(stored))


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelFileError(f"{path} is not JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} is not a JSON object; download it again")
    return content


def _shards(folder: Path) -> list[Path]:
    if (folder / _INDEX).exists():
        weight_map = _json(folder / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelFileError(f"{folder / _INDEX} has no weight_map; download it again")
        shards = [folder / name for name in sorted(set(map(str, weight_map.values())))]
        missing = [shard.name for shard in shards if not shard.exists()]
        if missing:
            raise ModelFileError(
                f"{folder} lacks {len(missing)} of {len(shards)} shards, the first is {missing[0]}; "
                "complete the download"
            )
        return shards
    if (folder / _SINGLE).exists():
        return [folder / _SINGLE]
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise ModelFileError(
            f"{folder} has no .safetensors file; save the model as safetensors, or give the path of a GGUF file"
        )
    return shards


def _read_header(path: Path) -> list[StoredTensor]:
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if file_bytes < 8 or header_bytes > min(file_bytes - 8, _MAX_HEADER_BYTES):
            raise ModelFileError(f"{path} is not a complete safetensors file; download it again")
        raw = file.read(header_bytes)
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        tensors = [
            _stored(path, 8 + header_bytes, name, entry)
            for name, entry in header.items()
            if entry["dtype"] not in _NO_WEIGHTS
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path} has a broken safetensors header ({error!r}); download it again") from error
    for tensor in tensors:
        if tensor.offset + tensor.num_bytes > file_bytes:
            raise ModelFileError(f"{path} ends inside tensor {tensor.name}; download it again")
    return sorted(tensors, key=lambda tensor: tensor.offset)


def _stored(path: Path, data_start: int, name: str, entry: dict[str, Any]) -> StoredTensor:
    stored_as, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
    if stored_as not in _ITEM_BYTES:
        known = ", ".join(_ITEM_BYTES)
        raise UnsupportedModel(f"{path}: tensor {name} is stored as {stored_as}; one of {known} is implemented")
    first, last = entry["data_offsets"]
    if last - first != math.prod(shape) * _ITEM_BYTES[stored_as]:
        raise ValueError(f"tensor {name} has {last - first} bytes for shape {list(shape)} of {stored_as}")

    def decode(data: npt.NDArray[np.uint8], _: str) -> HostTensor:
        return _decode(data, stored_as, shape)

    return StoredTensor(
        name=name,
        path=path,
        offset=data_start + first,
        num_bytes=last - first,
        shape=shape,
        stored_as=stored_as,
        decode=decode,
    )


def _decode(data: npt.NDArray[np.uint8], stored_as: str, shape: tuple[int, ...]) -> HostTensor:
    from relevo.engine.ops.protocol import HostTensor

    if stored_as == "F32":
        return HostTensor(data.view("<f4").reshape(shape), "float32")
    if stored_as == "F16":
        return HostTensor(data.view("<f2").reshape(shape), "float16")
    if stored_as == "BF16":
        return HostTensor(data.view("<u2").reshape(shape), "bfloat16")
    return HostTensor(data.view("<f8").astype("float32").reshape(shape), "float32")
