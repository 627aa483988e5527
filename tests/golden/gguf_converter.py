"""Folders of safetensors as GGUF files, as llama.cpp's converter writes them: its names are the `gguf` package's own
tables, its keys that package's writer's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType, quantize
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES, ExpertGatingFuncType
from gguf.tensor_mapping import get_tensor_name_map
from safetensors.numpy import load_file

F32 = GGMLQuantizationType.F32
Tensors = dict[str, np.ndarray]
Config = dict[str, Any]
Keys = dict[str, Any]
_KEPT = ("ffn_gate_inp", "ssm_conv1d", ".bias")  # as floats
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
_ARCHITECTURES = {
    "deepseek_v2": MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": MODEL_ARCH.DEEPSEEK2,
    "glm4_moe": MODEL_ARCH.GLM4_MOE,
    "minimax_m2": MODEL_ARCH.MINIMAXM2,
    "gpt_oss": MODEL_ARCH.GPT_OSS,
    "llama4_text": MODEL_ARCH.LLAMA4,
    "qwen3_moe": MODEL_ARCH.QWEN3MOE,
    "qwen3_next": MODEL_ARCH.QWEN3NEXT,
    "qwen3_5_text": MODEL_ARCH.QWEN35,
    "qwen3_5_moe_text": MODEL_ARCH.QWEN35MOE,
}


def convert(
    folder: Path,
    path: Path,
    *,
    keys: Callable[[Keys], object] = lambda keys: None,
    tensors: Callable[[Tensors], object] = lambda tensors: None,
    whole_latents: bool = False,
    fused: bool = False,
    matrices_as: GGMLQuantizationType = F32,
    max_tensors: int = 0,
) -> None:
    """`keys` and `tensors` change what is written, by the file's own names. `whole_latents`: as before April 2025;
    `fused`: gates and values of experts in one tensor; `max_tensors`: of each part of the model."""
    raw = json.loads((folder / "config.json").read_text())
    architecture = _ARCHITECTURES[raw["model_type"]]
    stated = _keys(raw, whole_latents)
    found = dict(_named(raw, dict(load_file(folder / "model.safetensors")), whole_latents))
    written = _fused(found) if fused else found
    keys(stated)
    tensors(written)
    writer = GGUFWriter(path, MODEL_ARCH_NAMES[architecture], split_max_tensors=max_tensors)
    for key, value in stated.items():
        _add(writer, f"{MODEL_ARCH_NAMES[architecture]}.{key}", value)
    for name, tensor in written.items():
        if tensor.dtype == np.uint8:
            writer.add_tensor(name, tensor, raw_dtype=GGMLQuantizationType.MXFP4)
        elif tensor.ndim > 1 and not any(part in name for part in _KEPT) and matrices_as != F32:
            writer.add_tensor(name, quantize(tensor, matrices_as), raw_dtype=matrices_as)
        else:
            writer.add_tensor(name, np.ascontiguousarray(tensor, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _keys(raw: Config, whole_latents: bool) -> Keys:
    rope = raw.get("rope_parameters") or {}
    experts = next(
        (raw[name] for name in ("num_local_experts", "num_experts", "n_routed_experts") if name in raw), None
    )
    stated: Keys = {
        "block_count": raw["num_hidden_layers"],
        "context_length": raw["max_position_embeddings"],
        "embedding_length": raw["hidden_size"],
        "feed_forward_length": raw.get("intermediate_size_mlp", raw.get("intermediate_size")),
        "attention.head_count": raw["num_attention_heads"],
        "attention.head_count_kv": raw["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(raw["rms_norm_eps"]),
        "rope.freq_base": float(rope["rope_theta"]),
        "expert_count": experts,
        "expert_used_count": raw.get("num_experts_per_tok"),
        "vocab_size": raw["vocab_size"],
        "attention.key_length": raw.get("head_dim"),
        "attention.value_length": raw.get("head_dim"),
        "expert_group_count": raw.get("n_group"),
        "expert_group_used_count": raw.get("topk_group"),
    }
    if rope.get("rope_type") == "yarn":
        stated |= {
            "rope.scaling.type": RopeScalingType.YARN.value,
            "rope.scaling.factor": float(rope["factor"]),
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }
        stated |= {
            f"rope.scaling.yarn_{name}": float(rope[name]) for name in ("beta_fast", "beta_slow") if name in rope
        }
    own = {"deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "glm4_moe": _glm, "minimax_m2": _minimax}
    own |= {"gpt_oss": _gpt_oss, "llama4_text": _llama4, "qwen3_moe": _qwen}
    own |= dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _delta)
    stated |= own[raw["model_type"]](raw)
    if whole_latents:
        query, rope_size = raw["qk_nope_head_dim"] + raw["qk_rope_head_dim"], raw["num_attention_heads"]
        stated |= {"attention.key_length": query, "attention.value_length": raw["v_head_dim"]}
        stated |= {"attention.head_count_kv": rope_size, "attention.key_length_mla": None}
        stated |= {"attention.value_length_mla": None}
    return {key: value for key, value in stated.items() if value is not None}


def _deepseek(raw: Config) -> Keys:
    rank, rope = raw["kv_lora_rank"], raw["qk_rope_head_dim"]
    magnitude = (raw.get("rope_parameters") or {}).get("mscale_all_dim")
    is_sigmoid = raw["model_type"] == "deepseek_v3"
    return {
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": raw["q_lora_rank"],
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": raw["qk_nope_head_dim"] + rope,
        "attention.value_length_mla": raw["v_head_dim"],
        "rope.dimension_count": rope,
        "rope.scaling.yarn_log_multiplier": None if magnitude is None else 0.1 * magnitude,
        "leading_dense_block_count": raw["first_k_dense_replace"],
        "expert_feed_forward_length": raw["moe_intermediate_size"],
        "expert_shared_count": raw["n_shared_experts"],
        "expert_weights_scale": float(raw["routed_scaling_factor"]),
        "expert_weights_norm": bool(raw.get("norm_topk_prob")) or None,
        "expert_gating_func": int(ExpertGatingFuncType.SIGMOID if is_sigmoid else ExpertGatingFuncType.SOFTMAX),
    }


def _glm(raw: Config) -> Keys:
    return {
        "rope.dimension_count": int(raw["head_dim"] * raw["rope_parameters"]["partial_rotary_factor"]),
        "leading_dense_block_count": raw["first_k_dense_replace"],
        "expert_feed_forward_length": raw["moe_intermediate_size"],
        "expert_shared_count": raw["n_shared_experts"],
        "expert_weights_scale": float(raw["routed_scaling_factor"]),
        "expert_weights_norm": raw["norm_topk_prob"],
        "expert_gating_func": int(ExpertGatingFuncType.SIGMOID),
    }


def _minimax(raw: Config) -> Keys:
    rotated = int(raw["head_dim"] * raw["rope_parameters"].get("partial_rotary_factor", 1.0))
    return {
        "rope.dimension_count": rotated,
        "expert_feed_forward_length": raw["intermediate_size"],
        "expert_gating_func": int(ExpertGatingFuncType.SIGMOID),
    }


def _gpt_oss(raw: Config) -> Keys:
    return {
        "attention.sliding_window": raw["sliding_window"],
        "expert_feed_forward_length": raw["intermediate_size"],
    }


def _llama4(raw: Config) -> Keys:
    return {
        "rope.dimension_count": raw["head_dim"],
        "interleave_moe_layer_step": raw["interleave_moe_layer_step"],
        "expert_feed_forward_length": raw["intermediate_size"],
    }


def _qwen(raw: Config) -> Keys:
    return {"expert_feed_forward_length": raw["moe_intermediate_size"]}


def _delta(raw: Config) -> Keys:
    rotated = int(raw["head_dim"] * raw["rope_parameters"]["partial_rotary_factor"])
    third = rotated // 6  # of the pairs that are rotated
    return {
        "rope.dimension_count": rotated,
        "rope.dimension_sections": None if raw["model_type"] == "qwen3_next" else [third, third, third, 0],
        "ssm.conv_kernel": raw["linear_conv_kernel_dim"],
        "ssm.state_size": raw["linear_key_head_dim"],
        "ssm.group_count": raw["linear_num_key_heads"],
        "ssm.time_step_rank": raw["linear_num_value_heads"],
        "ssm.inner_size": raw["linear_value_head_dim"] * raw["linear_num_value_heads"],
        "attention.recurrent_layers": [kind == "linear_attention" for kind in raw["layer_types"]],
        "full_attention_interval": 4,
        "expert_feed_forward_length": raw.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": raw.get("shared_expert_intermediate_size"),
    }


def _of_states(raw: Config, tensors: Tensors) -> Iterator[tuple[str, np.ndarray]]:
    """As files have the layers of a gated delta rule, and norms."""
    num_keys, num_values = raw["linear_num_key_heads"], raw["linear_num_value_heads"]
    key_rows, shared_by = num_keys * raw["linear_key_head_dim"], num_values // num_keys
    is_next = raw["model_type"] == "qwen3_next"

    def tiled(rows: np.ndarray) -> np.ndarray:
        """Value heads that share a key head come apart."""
        heads = rows.reshape(num_keys, shared_by, -1, *rows.shape[1:])
        return rows if is_next else heads.swapaxes(0, 1).reshape(rows.shape)

    for name, tensor in tensors.items():
        match name.rpartition("linear_attn.")[2].removesuffix(".weight"):
            case "in_proj_qkvz":
                heads = tensor.reshape(num_keys, -1, tensor.shape[1])
                ends = np.cumsum([raw["linear_key_head_dim"]] * 2 + [shared_by * raw["linear_value_head_dim"]])
                parts = [part.reshape(-1, tensor.shape[1]) for part in np.split(heads, ends, axis=1)]
                yield name.replace("qkvz", "qkv"), np.concatenate(parts[:3])
                yield name.replace("qkvz", "z"), parts[3]
            case "in_proj_qkv":
                yield name, np.concatenate((tensor[: 2 * key_rows], tiled(tensor[2 * key_rows :])))
            case "conv1d":
                taps = tensor.squeeze(1)
                yield name, np.concatenate((taps[: 2 * key_rows], tiled(taps[2 * key_rows :])))
            case "in_proj_z" | "in_proj_a" | "in_proj_b":
                yield name, tiled(tensor)
            case "dt_bias":
                yield name.replace("dt_bias", "dt_proj.bias"), tiled(tensor)
            case "A_log":
                yield name, -np.exp(tiled(tensor))
            case "out_proj":
                yield name, np.ascontiguousarray(tiled(tensor.T).T)
            case "norm":
                yield name, tensor
            case _:
                yield name, tensor + 1 if name.endswith("norm.weight") else tensor


def _named(raw: Config, tensors: Tensors, whole_latents: bool) -> Iterator[tuple[str, np.ndarray]]:
    table = get_tensor_name_map(_ARCHITECTURES[raw["model_type"]], raw["num_hidden_layers"])
    tensors = dict(_of_states(raw, tensors)) if "linear_num_key_heads" in raw else tensors
    for name, tensor in _merged(raw, tensors, whole_latents):
        stored = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        yield stored, tensor


def _merged(raw: Config, tensors: Tensors, whole_latents: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Under the names that the tables know, with the experts of a layer in one tensor."""
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, tensor in tensors.items():
        if (expert := _EXPERT.fullmatch(name)) is not None:
            stacks.setdefault(f"{expert[1]}.{expert[3]}.weight", {})[int(expert[2])] = tensor
        elif ".experts." in name:
            turned = tensor.swapaxes(1, 2) if "linear_num_key_heads" in raw else tensor
            yield from _stack_apart(name, turned, is_interleaved=raw["model_type"] == "gpt_oss")
        elif name.endswith("kv_b_proj.weight") and not whole_latents:
            heads = tensor.reshape(raw["num_attention_heads"], -1, tensor.shape[1])
            keys, values = np.split(heads, [raw["qk_nope_head_dim"]], axis=1)
            yield name.replace("kv_b_proj", "k_b_proj"), keys.swapaxes(1, 2)
            yield name.replace("kv_b_proj", "v_b_proj"), values
        else:
            yield (
                name.replace("e_score_correction_bias", "e_score_correction.bias").replace("sinks", "sinks.weight"),
                tensor,
            )
    for name, parts in stacks.items():
        yield name, np.stack([parts[number] for number in range(len(parts))])


def _stack_apart(name: str, tensor: np.ndarray, *, is_interleaved: bool) -> Iterator[tuple[str, np.ndarray]]:
    stem, kind = (name.removesuffix("_bias"), "bias") if name.endswith("_bias") else (name, "weight")
    rows = tensor if kind == "bias" else tensor.swapaxes(1, 2)
    if not stem.endswith("gate_up_proj"):
        yield f"{stem}.{kind}", rows
        return
    half = rows.shape[1] // 2
    parts = (rows[:, ::2], rows[:, 1::2]) if is_interleaved else (rows[:, :half], rows[:, half:])
    for part, which in zip(parts, ("gate", "up"), strict=True):
        yield f"{stem.replace('gate_up', which)}.{kind}", part


def _fused(tensors: Tensors) -> Tensors:
    made: Tensors = {}
    for name, tensor in tensors.items():
        if "ffn_gate_exps.weight" in name:
            up = tensors[name.replace("gate", "up")]
            made[name.replace("gate", "gate_up")] = np.concatenate((tensor, up), axis=1)
        elif "ffn_up_exps.weight" not in name:
            made[name] = tensor
    return made
