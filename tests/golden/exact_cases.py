"""The models that are held to `transformers` in four rounds: every family, in every kind of file that is read of it,
and quantised ones beside their dequantised twin.

Owns what is compared with what; sizes are tiny, and windows are crossed by prompts of `four_rounds.LENGTHS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf_converter
import test_gguf_families
import test_latent_models
import test_models_transformers
import test_packed_groups
import test_quantised_folders
import test_stacked_experts
import torch
from four_rounds import MAX_MODEL_LEN
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from k_quants import quantised
from test_states import tiny
from tiny_decoders import LOCAL, TINY_LATENT, hf_model, write_gguf
from transformers import AutoModelForCausalLM, PreTrainedModel

Made = tuple[PreTrainedModel, Path]  # the oracle, and what the engine reads
SPAN = 100  # of windows and chunks of layers
_LONG = {"max_position_embeddings": MAX_MODEL_LEN}
_YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0, "original_max_position_embeddings": 128}
_KIMI = {"n_group": 1, "topk_group": 1, "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}


@dataclass(frozen=True)
class Case:
    family: str
    stored: str  # what the engine reads
    make: Callable[[Path], Made]  # in an empty folder

    @property
    def name(self) -> str:
        return f"{self.family} {self.stored}"


def _plain(case: str, **changes: Any) -> Callable[[], PreTrainedModel]:
    family, known = test_models_transformers.CASES[case]
    return lambda: hf_model(family, **{**known, **_LONG, **changes})


def _latent(case: str, **changes: Any) -> Callable[[], PreTrainedModel]:
    family, known = test_latent_models.CASES[case]
    return lambda: hf_model(family, **{**TINY_LATENT, **known, **_LONG, **changes})


def _local(family: str, **changes: Any) -> Callable[[], PreTrainedModel]:
    return lambda: hf_model(family, **{**LOCAL[family], **_LONG, **changes})


def _delta(family: str) -> Callable[[], PreTrainedModel]:
    """Outputs of a state are normed, near zero too: with the eps of 1e-5 and whole projections `transformers` in
    float32 is up to 6e-4 from itself in float64, and can hold nothing to 1e-4."""
    return lambda: _halved(tiny(family, rms_norm_eps=1e-3, **_LONG), "_proj")


def _halved(model: PreTrainedModel, part: str) -> PreTrainedModel:
    """Matrices with `part` in their names."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if part in name and parameter.ndim > 1:
                parameter.mul_(0.5)
    return model


_GPT_OSS_ROPE = LOCAL["gpt_oss"]["rope_parameters"] | {"original_max_position_embeddings": 256}
_HEADS = {"num_attention_heads": 20, "num_key_value_heads": 20}  # two groups that threads share
_GEMMA = {"num_hidden_layers": 7, "layer_types": None, "rope_parameters": None, "query_pre_attn_scalar": 24}

_CHUNKS_OF_FILES = {"attention_chunk_size": 8192, "floor_scale": 8192, "num_local_experts": 16}


def _converted(model: PreTrainedModel, path: Path) -> None:
    model.save_pretrained(path.parent / "folder")
    gguf_converter.convert(path.parent / "folder", path)


@dataclass(frozen=True)
class Family:
    make: Callable[[], PreTrainedModel]
    write: Callable[[PreTrainedModel, Path], None] | None = None  # as a GGUF file; None: none are read
    make_for_gguf: Callable[[], PreTrainedModel] | None = None  # where files cannot say all that folders can


FAMILIES = {
    "Llama": Family(_plain("llama"), write_gguf),
    "Mistral, every layer with a window": Family(_plain("mistral-window", sliding_window=SPAN)),
    "Qwen2": Family(_plain("qwen2"), write_gguf),
    "Qwen3": Family(_plain("qwen3"), write_gguf),
    "Mixtral": Family(_plain("mixtral"), write_gguf),
    "Qwen3-MoE": Family(_plain("qwen3-moe", norm_topk_prob=True), write_gguf),
    "GLM-4.5": Family(_plain("glm4-moe"), _converted),
    "MiniMax-M2": Family(_plain("minimax-m2"), _converted),
    "DeepSeek V2": Family(_latent("v2"), _converted),
    "DeepSeek V3": Family(_latent("v3", **_HEADS, rope_parameters=_KIMI["rope_parameters"]), _converted),
    "Kimi K2": Family(_latent("v3", **_KIMI), _converted),
    "Llama 4, text": Family(
        _local("llama4_text", attention_chunk_size=SPAN, floor_scale=50),
        _converted,
        _local("llama4_text", **_CHUNKS_OF_FILES),
    ),
    "gpt-oss": Family(_local("gpt_oss", sliding_window=SPAN, rope_parameters=_GPT_OSS_ROPE), _converted),
    "Gemma 3": Family(_local("gemma3_text", sliding_window=SPAN, **_GEMMA), write_gguf),
    "Qwen3-Next": Family(_delta("qwen3_next"), _converted),
    "Qwen3.5": Family(_delta("qwen3_5_text"), _converted),
    "Qwen3.5-MoE": Family(_delta("qwen3_5_moe_text"), _converted),
}
_OTHER_TYPES = {"Kimi K2": "kimi_k2"}  # that `transformers` has under another one


def _folder(family: str, folder: Path) -> Made:
    model = FAMILIES[family].make()
    model.save_pretrained(folder)
    if family in _OTHER_TYPES:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"model_type": _OTHER_TYPES[family]}))
    return model, folder


def _gguf(family: str, folder: Path) -> Made:
    known = FAMILIES[family]
    assert known.write is not None
    model = (known.make_for_gguf or known.make)()
    known.write(model, folder / "model.gguf")
    return model, folder / "model.gguf"


def _twin(write: Callable[[Path], tuple[Path, Path]], folder: Path) -> Made:
    stored, twin = write(folder)
    return AutoModelForCausalLM.from_pretrained(twin, attn_implementation="eager", dtype=torch.float32).eval(), stored


def _gguf_twin(kind: GGMLQuantizationType, folder: Path, family: str = "qwen2", **changes: Any) -> Made:
    """Files quantise row by row, and reorder whole rows, so a matrix of the twin is quantised and dequantised as it is;
    routers stay floats. Blocks of 256 want rows four times as long as elsewhere; with weights of half the size, sums
    are as large as there."""
    model = _halved(hf_model(family, hidden_size=256, intermediate_size=256, **changes, **_LONG), "")
    write_gguf(model, folder / "model.gguf", matrices_as=kind)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and not name.endswith("mlp.gate.weight"):
                values = dequantize(quantised(parameter.numpy(), kind), kind).reshape(parameter.shape)
                parameter.copy_(torch.from_numpy(values))
    return model, folder / "model.gguf"


def _gpt_oss_gguf(folder: Path) -> Made:
    """Experts in MXFP4, decoded by the `gguf` package; its twin has gates and values in alternate columns."""
    written: gguf_converter.Tensors = {}

    def change(tensors: gguf_converter.Tensors) -> None:
        test_gguf_families.with_mxfp4(tensors)
        written.update(tensors)

    model = FAMILIES["gpt-oss"].make()
    model.save_pretrained(folder / "folder")
    gguf_converter.convert(folder / "folder", folder / "model.gguf", tensors=change)
    state = model.state_dict()
    with torch.no_grad():
        for layer in range(model.config.num_hidden_layers):
            gate, up, down = (
                torch.from_numpy(dequantize(written[f"blk.{layer}.ffn_{name}_exps.weight"], _Q.MXFP4)).swapaxes(1, 2)
                for name in ("gate", "up", "down")
            )
            block = f"model.layers.{layer}.mlp.experts"
            state[f"{block}.gate_up_proj"].copy_(torch.stack((gate, up), dim=-1).flatten(2))
            state[f"{block}.down_proj"].copy_(down)
    return model, folder / "model.gguf"


_Q = GGMLQuantizationType
_MANY_EXPERTS = {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 256, "norm_topk_prob": True}
_KINDS = (_Q.Q4_0, _Q.Q4_1, _Q.Q5_0, _Q.Q5_1, _Q.Q8_0, _Q.Q4_K, _Q.Q5_K, _Q.Q6_K)


def _quantised() -> list[Case]:
    def packed(method: str) -> Callable[[Path], Made]:
        return partial(_twin, lambda path: test_packed_groups.write(path, test_packed_groups.METHODS[method]))

    def blocks(case: str, family: str, **changes: Any) -> Callable[[Path], Made]:
        return partial(_twin, lambda path: test_quantised_folders.write(path, case, family, **changes, **_LONG))

    return [
        Case("Qwen3", "8-bit floats in blocks", blocks("fp8", "qwen3", head_dim=24)),
        Case("DeepSeek V3", "8-bit floats in blocks", blocks("fp8", "deepseek_v3")),
        Case("DeepSeek V3", "compressed-tensors, 4-bit experts", blocks("int4", "deepseek_v3")),
        Case("gpt-oss", "MXFP4", partial(_twin, test_stacked_experts.write)),
        Case("gpt-oss", "GGUF MXFP4", _gpt_oss_gguf),
        *(Case("Qwen2", name, packed(name)) for name in test_packed_groups.METHODS),
        *(Case("Qwen2", f"GGUF {kind.name}", partial(_gguf_twin, kind)) for kind in _KINDS),
        Case("Llama", "GGUF Q4_K", partial(_gguf_twin, _Q.Q4_K, family="llama")),
        Case("Mixtral", "GGUF Q4_K", partial(_gguf_twin, _Q.Q4_K, family="mixtral", num_local_experts=12)),
        Case("Qwen3-MoE", "GGUF Q6_K", partial(_gguf_twin, _Q.Q6_K, family="qwen3_moe", **_MANY_EXPERTS)),
    ]


WHOLE = [Case(family, "safetensors", partial(_folder, family)) for family in FAMILIES]
WHOLE += [Case(family, "GGUF", partial(_gguf, family)) for family, known in FAMILIES.items() if known.write]
QUANTISED = _quantised()
