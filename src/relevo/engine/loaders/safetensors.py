"""A Hugging Face folder: config.json and one or many safetensors files.

Owns the safetensors container and the index of a sharded model. It does not know families (models.families does).
Source: the safetensors format (8 bytes of header length, a JSON header, raw little-endian data).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.loaders.model_files import ModelFiles, StoredTensor
from relevo.engine.loaders.plain_tensor import FLOATS, ITEM_BYTES, biases_of_zeros, plain_tensor
from relevo.engine.loaders.quantized import whole_weights
from relevo.engine.loaders.stacked_experts import experts_apart
from relevo.engine.loaders.text_files import parse_object, read_text
from relevo.engine.loaders.text_tensors import text_tensors
from relevo.engine.loaders.tied_head import with_head
from relevo.engine.models.families import config_from_hf, quantization_of_model, spec_of, wrapper_of
from relevo.engine.models.weight_plan import is_harmless, unasked

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_MAX_HEADER_BYTES = 100_000_000  # required by the format


def open_folder(folder: Path, name: str) -> ModelFiles:
    """Reads the headers only. Raises ModelFileError, UnsupportedModel."""
    config_path = folder / "config.json"
    raw = _json(config_path)
    config, wrapper = config_from_hf(raw, str(config_path)), wrapper_of(raw)
    weight_map = _weight_map(folder)
    stored = _one_of_each(folder, weight_map, [t for shard in _shards(folder, weight_map) for t in _read_header(shard)])
    stored = whole_weights(quantization_of_model(raw, str(config_path)), stored, folder)
    stored = text_tensors(config, wrapper, stored)
    if config.experts is not None:
        stored = experts_apart(config.experts, stored)
    config, stored, notes = with_head(config, stored, str(folder))
    strange = unasked(spec_of(config).weights(config), (tensor.name for tensor in stored))
    empty = biases_of_zeros(stored, strange)
    stored = [tensor for tensor in stored if tensor.name not in empty]
    if strange := [name for name in strange if name not in empty]:
        raise ModelFileError(
            f"{folder} has {len(strange)} tensors that a {config.architecture} model of its config.json does not use, "
            f"the first is {strange[0]}; config and weights do not belong together, or a field of the config is missing"
        )
    return ModelFiles(name=name, source="safetensors", path=folder, config=config, stored=tuple(stored), notes=notes)


def _json(path: Path) -> dict[str, Any]:
    text = read_text(path)
    if text is None:
        raise ModelFileError(f"cannot read {path}: there is no such file; download it again")
    return parse_object(text, path)


def _weight_map(folder: Path) -> dict[str, str]:
    """Which file each tensor is in; empty: there is no index."""
    if not (folder / _INDEX).exists():
        return {}
    weight_map = _json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{folder / _INDEX} has no weight_map; download it again")
    return {name: str(shard) for name, shard in weight_map.items()}


def _one_of_each(folder: Path, weight_map: Mapping[str, str], found: list[StoredTensor]) -> list[StoredTensor]:
    """A tensor is the one in the file that the index names: others are left from an earlier writing."""
    stored = [tensor for tensor in found if weight_map.get(tensor.name, tensor.path.name) == tensor.path.name]
    paths: dict[str, Path] = {}
    for tensor in stored:
        if tensor.name in paths:
            raise ModelFileError(
                f"{folder} has tensor {tensor.name} in {paths[tensor.name].name} and in {tensor.path.name} and no "
                f"index that says which counts; keep the files of one model"
            )
        paths[tensor.name] = tensor.path
    return stored


def _shards(folder: Path, weight_map: Mapping[str, str]) -> list[Path]:
    if weight_map:
        shards = [folder / name for name in sorted(set(weight_map.values()))]
        missing = [shard.name for shard in shards if not shard.exists()]
        if missing:
            raise ModelFileError(
                f"{folder} lacks {len(missing)} of {len(shards)} shards, the first is {missing[0]}; "
                "complete the download"
            )
        return shards
    if (folder / _SINGLE).exists():
        return [folder / _SINGLE]
    every = sorted(folder.glob("*.safetensors"))
    shards = [shard for shard in every if not shard.name.startswith("consolidated")] or every  # the makers' own twin
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
            _stored(path, 8 + header_bytes, name, entry) for name, entry in header.items() if not is_harmless(name)
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path} has a broken safetensors header ({error!r}); download it again") from error
    for tensor in tensors:
        if tensor.offset + tensor.num_bytes > file_bytes:
            raise ModelFileError(f"{path} ends inside tensor {tensor.name}; download it again")
    return sorted(tensors, key=lambda tensor: tensor.offset)


def _stored(path: Path, data_start: int, name: str, entry: dict[str, Any]) -> StoredTensor:
    stored_as, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
    if stored_as not in ITEM_BYTES:
        known = ", ".join(FLOATS)
        raise UnsupportedModel(f"{path}: tensor {name} is stored as {stored_as}; one of {known} is implemented")
    first, last = entry["data_offsets"]
    if last - first != math.prod(shape) * ITEM_BYTES[stored_as]:
        raise ValueError(f"tensor {name} has {last - first} bytes for shape {list(shape)} of {stored_as}")

    return plain_tensor(path, name, data_start + first, stored_as, shape)
