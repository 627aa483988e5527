"""A GGUF file as a model: keys become a ModelConfig, tensors get Hugging Face's names, order and dtype.

Owns what llama.cpp's converter changed and this side must change back: names and the order of rows as the family's
`GgufNames` say, rope factors as a tensor.
The container is `gguf_metadata`'s, what becomes of the bytes `gguf_tensors`', which is imported when weights are read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.model import ExpertsConfig, ModelConfig
from relevo.engine.loaders.gguf_metadata import GGML_TYPES, GgmlType, GgufHead, GgufTensor, read_head
from relevo.engine.loaders.model_files import ModelFiles, StoredTensor
from relevo.engine.models.config_fields import ConfigFields, check_shape
from relevo.engine.models.experts_config import EXPERTS
from relevo.engine.models.families import spec_of_gguf
from relevo.engine.models.rope_config import checked_scaling
from relevo.engine.models.spec import GgufNames
from relevo.engine.models.weight_plan import unasked
from relevo.engine.ops.formats import BLOCK_FORMATS

if TYPE_CHECKING:  # a process that only opens a file does without numpy
    import numpy as np
    import numpy.typing as npt

    from relevo.engine.ops.protocol import HostTensor

_ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def open_gguf(path: Path, name: str) -> ModelFiles:
    """Reads the head of the file and the rope factors. Raises ModelFileError, UnsupportedModel."""
    head = read_head(path, without="tokenizer.")
    if head.metadata.get("split.count", 1) > 1:
        raise UnsupportedModel(f"{path} is one part of a split model; join the parts with llama-gguf-split --merge")
    architecture = str(head.metadata.get("general.architecture", ""))
    has_experts = bool(head.metadata.get(f"{architecture}.expert_count", 0))
    spec = spec_of_gguf(architecture, str(path), has_experts=has_experts)
    assert spec.gguf is not None
    config = _config(path, head, spec.name, architecture)
    config = spec.gguf.complete(config, _Keys(path, architecture, head.metadata))
    names = {name: hf_name for name in head.tensors if (hf_name := _hf_name(spec.gguf, name)) is not None}
    stored = [
        _stored(path, part, part_name, _permuted_heads(spec.gguf, hf_name, config))
        for name, hf_name in names.items()
        for part_name, part in _experts_apart(path, head.tensors[name], hf_name, config)
    ]
    told = [each.name for each in stored]
    told += [name for name in head.tensors if name not in names and name not in _ROPE_FACTORS]
    if strange := unasked(spec.weights(config), told):
        raise UnsupportedModel(
            f"{path} has {len(strange)} tensors that a {config.architecture} model like this one does not use, the "
            f"first is {strange[0]}; computing without them would give other answers"
        )
    stored.sort(key=lambda tensor: tensor.offset)
    return ModelFiles(name=name, source="gguf", path=path, config=config, stored=tuple(stored))


def _hf_name(names: GgufNames, name: str) -> str | None:
    """None for tensors that are not weights."""
    match name.split("."):
        case ["blk", index, stem, "weight" | "bias" as kind] if stem in names.in_layer:
            return f"model.layers.{index}.{names.in_layer[stem]}.{kind}"
    return names.top.get(name)


def _experts_apart(
    path: Path, tensor: GgufTensor, hf_name: str, config: ModelConfig
) -> Iterator[tuple[str, GgufTensor]]:
    """Files stack the matrices of a layer's experts in one tensor [experts, rows, k], named with a star here."""
    if "*" not in hf_name:
        yield hf_name, tensor
        return
    count = config.experts.num_experts if config.experts else 0
    if len(tensor.shape) != 3 or tensor.shape[0] != count:
        raise ModelFileError(
            f"{path}: tensor {tensor.name} has shape {list(tensor.shape)} for {count} experts; convert it anew"
        )
    ggml_type = GGML_TYPES.get(tensor.ggml_type) or _rare_type(path, tensor)
    num_elements = tensor.num_elements // count
    num_bytes = num_elements // ggml_type.block_elements * ggml_type.block_bytes
    for number in range(count):
        part = replace(tensor, shape=tensor.shape[1:], offset=tensor.offset + number * num_bytes)
        yield hf_name.replace("*", str(number)), part


def _experts(path: Path, keys: _Keys, family: str) -> ExpertsConfig | None:
    """What the file says of experts; the rest is the family's."""
    if not keys.get("expert_count", 0):
        return None
    for key in ("expert_shared_count", "expert_shared_feed_forward_length"):
        if keys.get(key, 0):
            raise UnsupportedModel(f"{path}: {key} {keys.get(key)} is not implemented for this architecture")
    stated = {
        "num_hidden_layers": keys.count("block_count"),
        "num_local_experts": keys.count("expert_count"),
        "num_experts_per_tok": keys.count("expert_used_count"),
        "intermediate_size": keys.count("feed_forward_length"),
        "moe_intermediate_size": keys.count("expert_feed_forward_length", keys.count("feed_forward_length")),
        "norm_topk_prob": True,  # as llama.cpp computes every file of these architectures
    }
    experts = EXPERTS[family](ConfigFields(stated, str(path)))
    if (scale := keys.get("expert_weights_scale", 0)) not in (0, 1):
        raise UnsupportedModel(f"{path}: expert_weights_scale {scale} is not implemented for this architecture")
    gating = keys.get("expert_gating_func", 0)
    if experts is not None and gating not in (0, {"softmax": 1, "sigmoid": 2}[experts.routing.scoring]):
        raise UnsupportedModel(f"{path}: expert_gating_func {gating} is not what a {family} model has")
    return experts


class _Keys:
    """The keys of one architecture, with the file's name in the error."""

    def __init__(self, path: Path, architecture: str, metadata: Mapping[str, Any]) -> None:
        self._path, self._architecture, self._metadata = path, architecture, metadata

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"{self._architecture}.{key}", default)

    def need(self, key: str) -> Any:
        value = self._one(key)
        if value is None:
            raise ModelFileError(f"{self._path} lacks the key {self._architecture}.{key}; convert it anew")
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

    def fields(self, key: str, read: Callable[[str], Any] | None = None) -> ConfigFields:
        return ConfigFields({key: (read or self._one)(key)}, str(self._path))

    def _one(self, key: str) -> Any:
        """Of a key that some files give layer by layer. None if it is absent."""
        value = self.get(key)
        if not isinstance(value, list):
            return value
        if len(set(value)) != 1:
            raise UnsupportedModel(f"{self._path}: {key} differs between layers, which is not implemented")
        return value[0]


def _config(path: Path, head: GgufHead, family: str, architecture: str) -> ModelConfig:
    keys, tensors = _Keys(path, architecture, head.metadata), head.tensors
    if "token_embd.weight" not in tensors:
        raise ModelFileError(f"{path} lacks the tensor token_embd.weight; it is not a language model")
    hidden_size, num_heads = keys.count("embedding_length"), keys.count("attention.head_count")
    head_size = keys.count("attention.key_length", hidden_size // num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.get(key, head_size) != head_size:
            raise UnsupportedModel(f"{path}: {key} {keys.get(key)} differs from the head size {head_size}")
    config = ModelConfig(
        architecture=family,
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=hidden_size,
        intermediate_size=keys.count("feed_forward_length"),
        num_layers=keys.count("block_count"),
        num_heads=num_heads,
        num_kv_heads=keys.count("attention.head_count_kv", num_heads),
        head_size=head_size,
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon", zero=True),
        rope_theta=keys.number("rope.freq_base", 10000.0),
        max_position=keys.count("context_length"),
        rope_scaling=checked_scaling(_rope_scaling(path, keys, tensors), str(path)),
        tie_word_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        attention_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        experts=_experts(path, keys, family),
        sliding_window=keys.fields("attention.sliding_window").optional_integer("attention.sliding_window"),
    )
    return check_shape(config, str(path))


def _rope_scaling(path: Path, keys: _Keys, tensors: Mapping[str, GgufTensor]) -> dict[str, Any]:
    """In config.json's words. Llama 3 scaling is stored as one factor per frequency, which is what longrope means."""
    factors = {name: _small(path, tensors[name]) for name in _ROPE_FACTORS if name in tensors}
    kind = keys.get("rope.scaling.type", "none")
    stated = [keys.get(key) for key in ("rope.scaling.factor", "rope.scale_linear")]
    factor = next((value for value in stated if value is not None), None)
    original = keys.count("rope.scaling.original_context_length", keys.count("context_length"))
    if "rope_freqs.weight" in factors:
        same = factors["rope_freqs.weight"]
        return {"rope_type": "longrope", "short_factor": same, "long_factor": same, "attention_factor": 1.0}
    if len(factors) == 2:
        return {
            "rope_type": "longrope",
            "long_factor": factors["rope_factors_long.weight"],
            "short_factor": factors["rope_factors_short.weight"],
            "original_max_position_embeddings": original,
            "attention_factor": keys.get("rope.scaling.attn_factor"),
        }
    if kind == "linear" or (kind == "none" and factor not in (None, 0, 1.0) and not keys.get("rope.scaling.type")):
        return {} if factor is None else {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        factor = keys.number("rope.scaling.factor")
        magnitude = keys.number("rope.scaling.attn_factor", 1.0) * (1.0 + 0.1 * math.log(factor))
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": magnitude,
            "beta_fast": keys.get("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": keys.get("rope.scaling.yarn_beta_slow", 1.0),
        }
    if kind != "none":
        raise UnsupportedModel(f"{path}: rope scaling {kind!r} is not implemented; none, linear, yarn and longrope are")
    return {}


def _small(path: Path, tensor: GgufTensor) -> list[float]:
    with path.open("rb") as file:
        file.seek(tensor.offset)
        return list(struct.unpack(f"<{tensor.num_elements}f", file.read(tensor.num_elements * 4)))


def _stored(path: Path, tensor: GgufTensor, name: str, num_heads: int | None) -> StoredTensor:
    """`num_heads`: whose rows the converter has reordered; None: it kept the order."""
    ggml_type = GGML_TYPES.get(tensor.ggml_type) or _rare_type(path, tensor)

    def decode(data: npt.NDArray[np.uint8], dequantised_as: str) -> HostTensor:
        from relevo.engine.loaders.gguf_tensors import decode as decode_bytes

        what = f"{path}: tensor {tensor.name}"
        return decode_bytes(data, ggml_type, tensor.shape, num_heads, dequantised_as, what)

    def as_raw(data: npt.NDArray[np.uint8]) -> HostTensor:
        from relevo.engine.loaders.gguf_tensors import as_stored

        return as_stored(data, ggml_type, tensor.shape[0], num_heads)

    raw_format = ggml_type.name.lower()
    is_raw = len(tensor.shape) == 2 and raw_format in BLOCK_FORMATS
    return StoredTensor(
        name=name,
        path=path,
        offset=tensor.offset,
        num_bytes=tensor.num_elements // ggml_type.block_elements * ggml_type.block_bytes,
        shape=tensor.shape,
        stored_as=ggml_type.name,
        decode=decode,
        raw_format=raw_format if is_raw else None,
        as_raw=as_raw if is_raw else None,
    )


def _rare_type(path: Path, tensor: GgufTensor) -> GgmlType:
    """Types that only the `gguf` package lists."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        found = GGMLQuantizationType(tensor.ggml_type)
    except ValueError:
        raise UnsupportedModel(f"{path}: tensor {tensor.name} has the unknown type {tensor.ggml_type}") from None
    return GgmlType(found.name, *GGML_QUANT_SIZES[found])


def _permuted_heads(names: GgufNames, name: str, config: ModelConfig) -> int | None:
    """Heads whose rows the converter has reordered in this tensor; None: it kept the order."""
    if not names.permutes_heads:
        return None
    if ".q_proj." in name:
        return config.num_heads
    return config.num_kv_heads if ".k_proj." in name else None
