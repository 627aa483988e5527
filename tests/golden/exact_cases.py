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

from relevo.build.states import check_states
from relevo.core.errors import SettingsError
from relevo.core.model import ModelConfig
from relevo.settings import Settings

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


def is_computed(backend: str, config: ModelConfig) -> bool:
    """Whether a server of this family starts with that backend."""
    try:
        check_states(Settings(model="folder", backend=backend), config)
    except SettingsError:
        return False
    return True


def _plain(case: str, **changes: Any) -> Callable[[], PreTrainedModel]:
    family, known = test_models_transformers.CASES[case]
    return lambda: hf_model(family, **{**known, **_LONG, **changes})


def _latent(case: str, **changes: Any) -> Callable[[], PreTrainedModel]:
    family, known = test_latent_models.CASES[case]
    return lambda: hf_model(family, **{**TINY_LATENT, **known, **_LONG, **changes})


def _local(family: str, **changes: Any) -> Callable[[], PreTrainedModel]:
    return lambda: hf_model(family, **{**LOCAL[family], **_LONG, **changes})


def _delta(family: str) -> Callable[[], PreTrainedModel]:
    return lambda: tiny(family, **_LONG)


_GPT_OSS_ROPE = LOCAL["gpt_oss"]["rope_parameters"] | {"original_max_position_embeddings": 256}
_HEADS = {"num_attention_heads": 20, "num_key_value_heads": 20}  # two groups that threads share
_GEMMA = {"num_hidden_layers": 7, "layer_types": None, "rope_parameters": None, "query_pre_attn_scalar": 24}

FAMILIES: dict[str, tuple[Callable[[], PreTrainedModel], bool]] = {  # and whether it is read from GGUF files too
    "Llama": (_plain("llama"), True),
    "Mistral, every layer with a window": (_plain("mistral-window", sliding_window=SPAN), False),
    "Qwen2": (_plain("qwen2"), True),
    "Qwen3": (_plain("qwen3"), True),
    "Mixtral": (_plain("mixtral"), True),
    "Qwen3-MoE": (_plain("qwen3-moe", norm_topk_prob=True), True),
    "GLM-4.5": (_plain("glm4-moe"), False),
    "MiniMax-M2": (_plain("minimax-m2"), False),
    "DeepSeek V2": (_latent("v2"), False),
    "DeepSeek V3": (_latent("v3", **_HEADS, rope_parameters=_KIMI["rope_parameters"]), False),
    "Kimi K2": (_latent("v3", **_KIMI), False),
    "Llama 4, text": (_local("llama4_text", attention_chunk_size=SPAN, floor_scale=50), False),
    "gpt-oss": (_local("gpt_oss", sliding_window=SPAN, rope_parameters=_GPT_OSS_ROPE), False),
    "Gemma 3": (_local("gemma3_text", sliding_window=SPAN, **_GEMMA), True),
    "Qwen3-Next": (_delta("qwen3_next"), False),
    "Qwen3.5": (_delta("qwen3_5_text"), False),
    "Qwen3.5-MoE": (_delta("qwen3_5_moe_text"), False),
}
_OTHER_TYPES = {"Kimi K2": "kimi_k2"}  # that `transformers` has under another one


def _folder(family: str, folder: Path) -> Made:
    model = FAMILIES[family][0]()
    model.save_pretrained(folder)
    if family in _OTHER_TYPES:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"model_type": _OTHER_TYPES[family]}))
    return model, folder


def _gguf(family: str, folder: Path) -> Made:
    model = FAMILIES[family][0]()
    write_gguf(model, folder / "model.gguf")
    return model, folder / "model.gguf"


def _twin(write: Callable[[Path], tuple[Path, Path]], folder: Path) -> Made:
    stored, twin = write(folder)
    return AutoModelForCausalLM.from_pretrained(twin, attn_implementation="eager", dtype=torch.float32).eval(), stored


def _gguf_twin(kind: GGMLQuantizationType, folder: Path) -> Made:
    """qwen2 keeps its row order, so a matrix is quantise-then-dequantise of the original."""
    model = hf_model("qwen2", hidden_size=256, intermediate_size=256, **_LONG)
    write_gguf(model, folder / "model.gguf", matrices_as=kind)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                values = dequantize(quantised(parameter.numpy(), kind), kind).reshape(parameter.shape)
                parameter.copy_(torch.from_numpy(values))
    return model, folder / "model.gguf"


_Q = GGMLQuantizationType
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
        *(Case("Qwen2", name, packed(name)) for name in test_packed_groups.METHODS),
        *(Case("Qwen2", f"GGUF {kind.name}", partial(_gguf_twin, kind)) for kind in _KINDS),
    ]


WHOLE = [Case(family, "safetensors", partial(_folder, family)) for family in FAMILIES]
WHOLE += [Case(family, "GGUF", partial(_gguf, family)) for family, (_, has_gguf) in FAMILIES.items() if has_gguf]
QUANTISED = _quantised()
