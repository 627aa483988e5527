"""What the heads of a model's files tell is told before any process starts: red when it is found only while weights are
read, or when a model that can be served is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file, save_file
from tiny_decoders import LOCAL, TINY_LATENT, hf_model, write_gguf

from relevo.build.model import check_stored
from relevo.build.serve import plan_serving
from relevo.core.errors import ModelFileError, SettingsError
from relevo.engine.loaders.resolve import load_model_files
from relevo.settings import Settings

HEADS = {"num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 256}

LATENT = {**TINY_LATENT, "num_key_value_heads": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    **{each: {} for each in ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "glm4_moe", "minimax_m2")},
    **LOCAL,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), LATENT),
}


def planned(model: Path, **asked: Any) -> None:
    plan_serving(Settings(model=str(model), topology="unified", device="cpu", num_kv_blocks=64, **asked))


@pytest.mark.parametrize("size", [1, 2, 8])
def test_blocks_that_a_slice_would_cut(tmp_path: Path, size: int) -> None:
    """Columns of the down projection, 48 of each of 8 slices."""
    model = tmp_path / "tiny.gguf"
    write_gguf(hf_model("llama", **HEADS, intermediate_size=384), model, GGMLQuantizationType.Q8_0)
    said = (
        rf"--tensor-parallel-size {size}: tensor model\.layers\.\d\.mlp\.down_proj\.weight is stored as q8_0, whose "
        "blocks of 32 do not end at column 48, where a slice ends at every tensor parallel size; choose --dtype"
    )
    with pytest.raises(SettingsError, match=said):
        planned(model, tensor_parallel_size=size)
    planned(model)
    planned(model, tensor_parallel_size=size, dtype="bfloat16")
    planned(model, tensor_parallel_size=size, quantization="int8")


def test_blocks_that_end_with_slices(tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    write_gguf(hf_model("llama", **HEADS, intermediate_size=512), model, GGMLQuantizationType.Q8_0)
    planned(model, tensor_parallel_size=8)


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_models_pass(family: str, tmp_path: Path) -> None:
    hf_model(family, **FAMILIES[family]).save_pretrained(tmp_path)
    check_stored(load_model_files(str(tmp_path)))


def test_tensors_that_are_missing_or_of_another_model(tmp_path: Path) -> None:
    hf_model("llama").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({other: tensor for other, tensor in tensors.items() if other != name}, file, {"format": "pt"})
    with pytest.raises(ModelFileError, match=rf"1 of \d+ tensors are missing, the first is {name}"):
        planned(tmp_path)
    save_file(tensors, file, {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 104}))
    with pytest.raises(ModelFileError, match=r"has shape \[.*\], the config asks for \[.*\]; weights and config"):
        planned(tmp_path)
