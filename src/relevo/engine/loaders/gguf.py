"""A GGUF file as a model: keys become a ModelConfig, tensors get Hugging Face's names, order and dtype.

Owns what llama.cpp's converter changed and this side must change back: names and the order of rows as the family's
`GgufNames` say, stacked experts.
The container is `gguf_metadata`'s, what becomes of the bytes `gguf_tensors`', which is imported when weights are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.model import ModelConfig
from relevo.engine.loaders.gguf_config import read_config
from relevo.engine.loaders.gguf_keys import GgufKeys
from relevo.engine.loaders.gguf_latents import joined
from relevo.engine.loaders.gguf_metadata import GGML_TYPES, GgmlType, GgufTensor
from relevo.engine.loaders.gguf_parts import read_whole
from relevo.engine.loaders.model_files import ModelFiles, StoredTensor
from relevo.engine.models.families import spec_of_gguf
from relevo.engine.models.spec import GgufNames
from relevo.engine.models.weight_plan import unasked
from relevo.engine.ops.formats import BLOCK_FORMATS

if TYPE_CHECKING:  # a process that only opens a file does without numpy
    import numpy as np
    import numpy.typing as npt

    from relevo.engine.ops.protocol import HostTensor

_ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def open_gguf(path: Path, name: str) -> ModelFiles:
    """Reads the head of the file, and of its further parts, and the rope factors. Raises ModelFileError,
    UnsupportedModel."""
    head = read_whole(path)
    architecture = str(head.metadata.get("general.architecture", ""))
    keys = GgufKeys(path, architecture, head)
    spec = spec_of_gguf(architecture, keys)
    assert spec.gguf is not None
    config = read_config(spec, spec.gguf, keys)
    weights = [each for each in head.tensors.values() if not _is_left_out(config, each.name)]
    names = {each.name: hf_name for each in weights if (hf_name := _hf_name(spec.gguf, each.name)) is not None}
    asked = {name: shape for group in spec.weights(config) for name, shape in group.items()}
    stored = [
        _stored(_with_ones(part, asked.get(part_name)), part_name, _permuted_heads(spec.gguf, hf_name, config))
        for tensor_name, hf_name in names.items()
        for part_name, part in _experts_apart(head.tensors[tensor_name], hf_name, config)
    ]
    stored = joined(config, stored)
    told = [each.name for each in stored] + [each.name for each in weights if each.name not in names]
    if strange := unasked(spec.weights(config), told):
        raise UnsupportedModel(
            f"{path} has {len(strange)} tensors that a {config.architecture} model like this one does not use, the "
            f"first is {strange[0]}; computing without them would give other answers"
        )
    _refuse_twins(path, stored)
    stored.sort(key=lambda tensor: (tensor.path, tensor.offset))
    return ModelFiles(name=name, source="gguf", path=path, config=config, stored=tuple(stored))


def _with_ones(tensor: GgufTensor, asked: tuple[int, ...] | None) -> GgufTensor:
    """With the dimensions of one that the converter has left out or added."""
    if asked is None or [size for size in tensor.shape if size > 1] != [size for size in asked if size > 1]:
        return tensor
    return replace(tensor, shape=asked)


def _is_left_out(config: ModelConfig, name: str) -> bool:
    """Of factors that the keys' reading has, and of layers that draft more tokens (MTP)."""
    match name.split("."):
        case ["blk", index, *_] if index.isdigit():
            return int(index) in range(config.num_layers, config.num_layers + config.num_mtp_layers)
    return name in _ROPE_FACTORS


def _refuse_twins(path: Path, stored: list[StoredTensor]) -> None:
    """Gates and values may come in one tensor or two, and so may keys and values of latents: not in both ways."""
    seen: set[str] = set()
    for tensor in stored:
        if tensor.name in seen:
            raise ModelFileError(f"{path} has the weights of {tensor.name} twice, in other tensors; convert it anew")
        seen.add(tensor.name)


def _hf_name(names: GgufNames, name: str) -> str | None:
    """None for tensors that are not weights."""
    match name.split("."):
        case ["blk", index, stem, "weight" | "bias" as kind]:
            if (whole := names.in_layer.get(f"{stem}.{kind}")) is not None:
                return f"model.layers.{index}.{whole}"
            if stem in names.in_layer:
                return f"model.layers.{index}.{names.in_layer[stem]}.{kind}"
        case ["blk", index, stem] if stem in names.in_layer:
            return f"model.layers.{index}.{names.in_layer[stem]}"
    return names.top.get(name)


def _experts_apart(tensor: GgufTensor, hf_name: str, config: ModelConfig) -> Iterator[tuple[str, GgufTensor]]:
    """Files stack the matrices of a layer's experts in one tensor [experts, rows, k], and their biases [experts, rows];
    a star in a name stands for their numbers, a plus between names for rows of one after those of the other."""
    if "*" not in hf_name:
        yield hf_name, tensor
        return
    count = config.experts.num_experts if config.experts else 0
    block, together, kind = hf_name.rsplit(".", 2)
    names = together.split("+")
    if len(tensor.shape) != (2 if kind == "bias" else 3) or tensor.shape[0] != count or tensor.shape[1] % len(names):
        raise ModelFileError(
            f"{tensor.path}: tensor {tensor.name} has shape {list(tensor.shape)} for {count} experts; convert it anew"
        )
    ggml_type = _type_of(tensor)
    shape = (tensor.shape[1] // len(names), *tensor.shape[2:])
    num_elements = tensor.num_elements // count // len(names)
    num_bytes = num_elements // ggml_type.block_elements * ggml_type.block_bytes
    for number in range(count):
        for place, name in enumerate(names):
            part = replace(tensor, shape=shape, offset=tensor.offset + (number * len(names) + place) * num_bytes)
            yield f"{block.replace('*', str(number))}.{name}.{kind}", part


def _stored(tensor: GgufTensor, name: str, num_heads: int | None) -> StoredTensor:
    """`num_heads`: whose rows the converter has reordered; None: it kept the order."""
    ggml_type = _type_of(tensor)

    def decode(data: npt.NDArray[np.uint8], dequantised_as: str) -> HostTensor:
        from relevo.engine.loaders.gguf_tensors import decode as decode_bytes

        what = f"{tensor.path}: tensor {tensor.name}"
        return decode_bytes(data, ggml_type, tensor.shape, num_heads, dequantised_as, what)

    def as_raw(data: npt.NDArray[np.uint8]) -> HostTensor:
        from relevo.engine.loaders.gguf_tensors import as_stored

        return as_stored(data, ggml_type, tensor.shape[0], num_heads)

    raw_format = ggml_type.name.lower()
    is_raw = len(tensor.shape) == 2 and raw_format in BLOCK_FORMATS
    return StoredTensor(
        name=name,
        path=tensor.path,
        offset=tensor.offset,
        num_bytes=tensor.num_elements // ggml_type.block_elements * ggml_type.block_bytes,
        shape=tensor.shape,
        stored_as=ggml_type.name,
        decode=decode,
        raw_format=raw_format if is_raw else None,
        as_raw=as_raw if is_raw else None,
    )


def _type_of(tensor: GgufTensor) -> GgmlType:
    """Those that only the `gguf` package lists have not been looked at yet. Raises ModelFileError, UnsupportedModel."""
    if (known := GGML_TYPES.get(tensor.ggml_type)) is not None:
        return known
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        found = GGMLQuantizationType(tensor.ggml_type)
    except ValueError:
        raise UnsupportedModel(f"{tensor.path}: tensor {tensor.name} has the unknown type {tensor.ggml_type}") from None
    kind = GgmlType(found.name, *GGML_QUANT_SIZES[found])
    num_bytes = tensor.num_elements // kind.block_elements * kind.block_bytes
    if math.prod(tensor.shape[-1:]) % kind.block_elements or tensor.offset + num_bytes > tensor.path.stat().st_size:
        raise ModelFileError(f"{tensor.path}: tensor {tensor.name} does not fit the file; download it again")
    return kind


def _permuted_heads(names: GgufNames, name: str, config: ModelConfig) -> int | None:
    """Heads whose rows the converter has reordered in this tensor; None: it kept the order."""
    if not names.permutes_heads:
        return None
    if ".q_proj." in name:
        return config.num_heads
    return config.num_kv_heads if ".k_proj." in name else None
