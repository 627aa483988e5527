"""Folders of Mixtral models whose experts are copies of a dense model's MLP: with any router they are that model.

The routers are random, and the weights of the chosen experts add up to one, so a wrong expert, weight or sum is seen as
another text than the dense model's. Of one expert the weight is exactly one: then there is nothing to round, and the
bits are the dense model's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.ops.protocol import HostTensor

_IN_EXPERT = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def write_dense(files: ModelFiles, path: Path) -> Path:
    """The model itself, of the Llama kind, with its weights as floats."""
    return _write(path, _config(files, "llama"), _tensors(files))


def write_upcycled(files: ModelFiles, path: Path, num_experts: int = 4, num_active: int = 2) -> Path:
    generator, router_dtype = np.random.default_rng(5), torch.float32
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in _tensors(files).items():
        before, is_mlp, role = name.removesuffix(".weight").partition(".mlp.")
        if not is_mlp:
            tensors[name] = tensor
            continue
        block = f"{before}.block_sparse_moe."
        for expert in range(num_experts):
            tensors[f"{block}experts.{expert}.{_IN_EXPERT[role]}.weight"] = tensor.clone()
        router = generator.normal(0.0, 0.2, (num_experts, files.config.hidden_size))
        tensors[f"{block}gate.weight"] = torch.from_numpy(router).to(router_dtype)
    config = {**_config(files, "mixtral"), "num_local_experts": num_experts, "num_experts_per_tok": num_active}
    return _write(path, config, tensors)


def _tensors(files: ModelFiles) -> dict[str, torch.Tensor]:
    return {name: _as_torch(tensor) for name, tensor in files.tensors(dequantised_as="bfloat16")}


def _as_torch(tensor: HostTensor) -> torch.Tensor:
    array = np.array(tensor.array)
    if tensor.dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _config(files: ModelFiles, model_type: str) -> dict[str, Any]:
    config = files.config
    return {
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "sliding_window": None,
        "torch_dtype": "bfloat16",
    }


def _write(path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    return path
