"""Tiny seeded models of every family, and a plain way to run them through the paged decoder, for the golden tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from k_quants import quantised
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma3TextConfig,
    Glm4MoeConfig,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    MiniMaxM2Config,
    MistralConfig,
    MixtralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from relevo.core.kv import KVLayout
from relevo.core.model import ModelConfig
from relevo.core.plan import ScheduledRow
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.inputs import pack_rows
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.models.dense import one_full_group
from relevo.engine.models.families import spec_of
from relevo.engine.ops.native.ops import NativeOps
from relevo.engine.ops.protocol import Ops
from relevo.engine.ops.torch.ops import TorchOps

torch.set_num_threads(1)

VOCAB = 96
BLOCK_SIZE = 4
_CONFIGS = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "mixtral": MixtralConfig,
    "qwen3_moe": Qwen3MoeConfig,
    "glm4_moe": Glm4MoeConfig,
    "minimax_m2": MiniMaxM2Config,
    "deepseek_v2": DeepseekV2Config,
    "deepseek_v3": DeepseekV3Config,
    "gemma3_text": Gemma3TextConfig,
    "gpt_oss": GptOssConfig,
    "llama4_text": Llama4TextConfig,
}
LOCAL = {  # tiny models whose layers see different parts of the context
    "gemma3_text": {
        "num_hidden_layers": 3,
        "head_dim": 24,
        "sliding_window": 7,
        "query_pre_attn_scalar": 40,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
    "gpt_oss": {
        "num_hidden_layers": 3,
        "head_dim": 16,
        "sliding_window": 7,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "intermediate_size": 32,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "truncate": False,
            "rope_theta": 500.0,
        },
    },
    "llama4_text": {
        "num_hidden_layers": 5,
        "head_dim": 16,
        "attention_chunk_size": 7,
        "floor_scale": 5,
        "num_local_experts": 4,
        "interleave_moe_layer_step": 2,
        "intermediate_size": 40,
        "intermediate_size_mlp": 56,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "bos_token_id": None,
        "eos_token_id": None,
    },
}
_SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}


def hf_model(family: str, **changes: Any) -> PreTrainedModel:
    """Random weights of a size that makes every part of the model matter: norms and biases are not left at 1 and 0."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(_CONFIGS[family](**{**_SMALL, **changes}), attn_implementation="eager")
    neutral = 0.0 if family == "gemma3_text" else 1.0  # of a norm's weights
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(neutral if "norm" in name else 0.0, 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.normal_(0.0, 0.25)
    return model.eval()


# Sizes that all differ, so that no two of them can be taken for each other; the native backend wants multiples of 8.
TINY_LATENT = {
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}


def hf_logits(model: PreTrainedModel, token_ids: list[int]) -> np.ndarray:
    """[T, V]"""
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].float().numpy()


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def row(token_ids: list[int], start: int, block_ids: list[int]) -> ScheduledRow:
    request = EngineRequest(request_id="r", prompt_token_ids=(0,), sampling=SamplingParams(max_tokens=1, seed=0))
    return ScheduledRow(request, token_ids, start, block_ids)


def small_layout(config: ModelConfig, dtype: str = "float32") -> KVLayout:
    """Rows here have one block table: windows and chunks lie in the group of all layers."""
    groups = one_full_group(config) if config.local is not None else spec_of(config).kv_groups(config)
    return KVLayout("tiny", dtype, BLOCK_SIZE, groups)


BACKENDS = ("torch", "native")


def make_ops(backend: str = "torch", dtype: str = "float32") -> Ops:
    return TorchOps(dtype=dtype) if backend == "torch" else NativeOps(dtype=dtype, cores=(0, 1))


class PagedDecoder:
    """A decoder with a small cache of its own. `noise` fills it first: no number may depend on what was there."""

    def __init__(
        self,
        files: ModelFiles,
        num_blocks: int = 64,
        max_model_len: int = 0,
        dtype: str = "float32",
        noise: bool = True,
        backend: str = "torch",
    ) -> None:
        ops = make_ops(backend, dtype)
        load, longest = spec_of(files.config).load, max_model_len or files.config.max_position
        self.decoder = load(files.config, files.tensors(), ops, longest)
        self.layout = layout = small_layout(files.config, dtype)
        self.memory = bytearray(num_blocks * layout.bytes_per_block)
        if noise and dtype == "float32":
            np.frombuffer(self.memory, dtype=np.float32)[:] = np.nan
        self.kv = ops.kv_cache(layout, num_blocks, memoryview(self.memory))

    def step(self, *rows: ScheduledRow) -> np.ndarray:
        """Logits after every token of the step, [T, V]."""
        inputs = pack_rows(rows, BLOCK_SIZE)
        return self.decoder.forward(inputs, self.kv, range(inputs.num_tokens)).values.copy()


_GGUF_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
_GGUF_EXPERTS = {"gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"), "down_proj": ("ffn_down_exps",)}
_GGUF_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GGUF_FAMILY = {"gemma3_text": "gemma3", "mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe"}


def _gguf_tensors(name: str, array: np.ndarray, layer: dict[str, str]) -> list[tuple[str, np.ndarray]]:
    """Stacked experts have no kind in their names, and gate and up in one tensor [experts, 2 * I, E]."""
    *_, index, _, block, stem = ["", "", "", *name.split(".")]
    if block != "experts":
        return [(_gguf_name(name, layer), array)]
    names = _GGUF_EXPERTS[stem]
    parts = np.split(array, len(names), axis=1)
    return [(f"blk.{index}.{each}.weight", np.ascontiguousarray(part)) for each, part in zip(names, parts, strict=True)]


def _gguf_name(name: str, layer: dict[str, str]) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in _GGUF_TOP:
        return f"{_GGUF_TOP[stem]}.{kind}"
    _, _, index, rest = stem.split(".", 3)
    return f"blk.{index}.{layer[rest]}.{kind}"


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    matrices_as: GGMLQuantizationType = GGMLQuantizationType.F32,
    rope_freqs: list[float] | None = None,
    keys: dict[str, Any] | None = None,
) -> None:
    """As llama.cpp's converter does: names, and for llama the order of rows in q and k."""
    config = model.config
    family = _GGUF_FAMILY.get(config.model_type, config.model_type)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = GGUFWriter(path, family)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if family == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    if (num_experts := getattr(config, "num_local_experts", None)) is not None:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        if (inner := getattr(config, "moe_intermediate_size", None)) is not None:
            writer.add_expert_feed_forward_length(inner)
    for key, value in (keys or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{family}.{key}", value)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", np.array(rope_freqs, dtype=np.float32))
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.float().numpy()
        if family == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            halves = array.reshape(heads, 2, len(array) // heads // 2, *array.shape[1:])
            array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        if family == "gemma3" and "norm" in name:
            array = array + 1.0
        for stored, part in _gguf_tensors(name, array, _GGUF_LAYER | (_GGUF_GEMMA if family == "gemma3" else {})):
            if part.ndim == 1 or "ffn_gate_inp" in stored:
                writer.add_tensor(stored, part)
            else:
                writer.add_tensor(stored, quantised(part, matrices_as), raw_dtype=matrices_as)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
