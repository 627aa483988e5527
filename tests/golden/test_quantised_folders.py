"""Quantised safetensors compute what their dequantised twin computes, bit for bit; what cannot be read is named.

Red if a scale is taken from another block, a rest at a border has none, a nibble changes place, the matrix behind the
latents is rounded twice, or a variant that is not read is computed wrongly.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.torch import load_file, save_file
from tiny_decoders import BACKENDS, TINY_LATENT, PagedDecoder, hf_model, prompt, row

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.loaders.quantized_tensors import E4M3
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.quantization import quantization_of

Tensors = dict[str, torch.Tensor]
FP8: dict[str, Any] = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [20, 28],  # cut at most borders of a tiny model
}
INT4_WEIGHTS: dict[str, Any] = {
    "actorder": None,
    "dynamic": False,
    "group_size": 32,
    "num_bits": 4,
    "strategy": "group",
    "symmetric": True,
    "type": "int",
}
INT4: dict[str, Any] = {
    "config_groups": {"group_0": {"input_activations": None, "targets": ["Linear"], "weights": INT4_WEIGHTS}},
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*"],
    "quant_method": "compressed-tensors",
}


def spread(scales: torch.Tensor, rows: int, columns: int, like: torch.Tensor) -> torch.Tensor:
    return scales.repeat_interleave(rows, 0)[: like.shape[0]].repeat_interleave(columns, 1)[:, : like.shape[1]]


def in_fp8(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Stored tensors, and what they mean."""
    rows, columns = FP8["weight_block_size"]
    shape = [-(-weight.shape[0] // rows), -(-weight.shape[1] // columns)]
    scales = torch.rand(shape, generator=torch.Generator().manual_seed(len(name))) * 0.01 + 0.001
    whole = spread(scales, rows, columns, weight)
    stored = (weight / whole).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {name: stored, f"{name}_scale_inv": scales}, stored.float() * whole


def in_int4(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    rows, columns = weight.shape
    scales = (weight.view(rows, -1, 32).abs().amax(-1) / 7).to(torch.bfloat16)
    whole = scales.float().repeat_interleave(32, 1)
    values = (weight / whole).round().clamp(-8, 7)
    nibbles = (values + 8).to(torch.int64).view(rows, columns // 8, 8)
    packed = (nibbles << (4 * torch.arange(8))).sum(-1)
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    module = name.removesuffix(".weight")
    parts = {
        f"{module}.weight_packed": packed,
        f"{module}.weight_scale": scales,
        f"{module}.weight_shape": torch.tensor([rows, columns]),
    }
    return parts, values * whole


def everything(name: str) -> bool:
    return name.endswith("_proj.weight") or "kv_a_proj_with_mqa" in name


def experts(name: str) -> bool:
    return ".experts." in name


LATENT = {**TINY_LATENT, "moe_intermediate_size": 64}
CASES: dict[str, tuple[dict[str, Any], Callable[..., tuple[Tensors, torch.Tensor]], Callable[[str], bool]]] = {
    "fp8": (FP8, in_fp8, everything),
    "int4": (INT4, in_int4, experts),
}


def write(folder: Path, case: str, family: str = "deepseek_v3", **changes: Any) -> tuple[Path, Path]:
    """The quantised folder and its twin of floats."""
    quantization, store, is_quantised = CASES[case]
    model = hf_model(family, **{**(LATENT if family == "deepseek_v3" else {}), "hidden_size": 64, **changes})
    model.save_pretrained(folder / "twin")
    (folder / "quantised").mkdir()
    tensors = load_file(folder / "twin" / "model.safetensors")
    quantised: Tensors = {}
    for name in sorted(tensors):
        parts = {name: tensors[name]}
        if is_quantised(name):
            parts, tensors[name] = store(name, tensors[name])
        quantised |= parts
    save_file(tensors, folder / "twin" / "model.safetensors", metadata={"format": "pt"})
    save_file(quantised, folder / "quantised" / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "twin" / "config.json").read_text())
    (folder / "quantised" / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    return folder / "quantised", folder / "twin"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_dequantised_twin(case: str, backend: str, tmp_path: Path) -> None:
    folder, twin = write(tmp_path, case)
    tokens = prompt(40)
    logits = [
        PagedDecoder(load_model_files(str(each)), backend=backend).step(row(tokens, 0, list(range(10))))
        for each in (folder, twin)
    ]
    np.testing.assert_array_equal(*logits)


def test_other_families_are_read_likewise(tmp_path: Path) -> None:
    folder, twin = write(tmp_path, "fp8", "qwen3", head_dim=24)
    tokens = prompt(20)
    logits = [PagedDecoder(load_model_files(str(each))).step(row(tokens, 0, list(range(5)))) for each in (folder, twin)]
    np.testing.assert_array_equal(*logits)


def test_every_byte_of_an_8_bit_float_is_torchs() -> None:
    bits = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(E4M3, bits)


def test_integers_become_the_blocks_that_backends_multiply(tmp_path: Path) -> None:
    """The same numbers, in the bytes of a GGUF file."""
    folder, twin = write(tmp_path, "int4")
    raw = dict(load_model_files(str(folder)).tensors(raw_formats=frozenset({"q4_0"})))
    floats = dict(load_model_files(str(twin)).tensors())
    names = [name for name, tensor in raw.items() if tensor.dtype == "q4_0"]
    assert len(names) == 2 * 12 * 3
    for name in names:
        values = dequantize(raw[name].array, GGMLQuantizationType.Q4_0)
        np.testing.assert_array_equal(values, floats[name].array)


def test_the_matrix_behind_the_latents_is_dequantised_once(tmp_path: Path) -> None:
    folder, twin = write(tmp_path, "fp8")
    name = "model.layers.0.self_attn.kv_b_proj.weight"
    rounded = dict(load_model_files(str(folder)).tensors(dequantised_as="bfloat16"))
    assert rounded[name].dtype == "float32"
    assert rounded["model.layers.0.self_attn.o_proj.weight"].dtype == "bfloat16"
    np.testing.assert_array_equal(rounded[name].array, dict(load_model_files(str(twin)).tensors())[name].array)


def test_other_scales_make_another_model(tmp_path: Path) -> None:
    folder, _ = write(tmp_path, "fp8")
    before = load_model_files(str(folder)).model_hash
    edit(folder, "model.layers.0.self_attn.o_proj.weight_scale_inv", lambda scales: scales * 2)
    assert load_model_files(str(folder)).model_hash != before


def edit(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    changed = {**tensors, name: change(tensors.get(name, torch.ones(1)))}
    kept = {key: tensor for key, tensor in changed.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


O_PROJ, UP = "model.layers.0.self_attn.o_proj", "model.layers.1.mlp.experts.0.up_proj"
BROKEN: dict[str, tuple[str, str, Callable[[torch.Tensor], torch.Tensor | None], str]] = {
    "no scale": ("fp8", f"{O_PROJ}.weight_scale_inv", lambda scales: None, "scale_inv is missing"),
    "a scale too few": ("fp8", f"{O_PROJ}.weight_scale_inv", lambda scales: scales[1:], "scale_inv has shape"),
    "a scale of floats": ("fp8", f"{O_PROJ}.weight", lambda weight: weight.float(), "is not quantised"),
    "another's scale": ("fp8", "model.norm.weight_scale", lambda _: torch.ones(1), "first is model.norm.weight_scale"),
    "zero points": ("int4", f"{UP}.weight_zero_point", lambda _: torch.ones(1), "asymmetric or reordered"),
    "an order": ("int4", f"{UP}.weight_g_idx", lambda _: torch.ones(1), "asymmetric or reordered"),
    "no integers": ("int4", f"{UP}.weight_packed", lambda packed: packed.float(), "no matrix of 32-bit integers"),
    "scales in a row": ("int4", f"{UP}.weight_scale", lambda scales: scales[:, 0].clone(), "weight_scale has shape"),
    "columns too few": ("int4", f"{UP}.weight_packed", lambda packed: packed[:, 1:].clone(), "weight_packed has shape"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_parts_that_do_not_belong_together_are_named(fault: str, tmp_path: Path) -> None:
    case, name, change, words = BROKEN[fault]
    folder, _ = write(tmp_path, case)
    edit(folder, name, change)
    with pytest.raises((ModelFileError, UnsupportedModel), match=words):
        load_model_files(str(folder))


def test_what_the_config_leaves_is_not_quantised(tmp_path: Path) -> None:
    folder, _ = write(tmp_path, "int4")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["ignore"].append("re:.*layers\\.2\\.mlp.*")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=r"layers\.2\..* is quantised and config\.json says that it is not"):
        load_model_files(str(folder))
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=r"is stored as I(32|64); one of"):
        load_model_files(str(folder))


def grouped(**changes: Any) -> dict[str, Any]:
    return {**INT4, "config_groups": {"g": {"weights": {**INT4_WEIGHTS, **changes}}}}


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        (FP8 | {"weight_block_size": None}, "one scale for a whole tensor"),
        (FP8 | {"activation_scheme": "static"}, "static scales of activations"),
        (FP8 | {"fmt": "float8_e5m2"}, "'float8_e5m2'"),
        (FP8 | {"weight_block_size": [128, 0]}, "must be two whole numbers"),
        (FP8 | {"modules_to_not_convert": ["re:("]}, "no pattern"),
        (grouped(symmetric=False), "asymmetric"),
        (grouped(actorder="group"), "order of activations"),
        (grouped(num_bits=8), "8 bits of type 'int'"),
        (grouped(num_bits=4, type="float"), "4 bits of type 'float'"),
        (grouped(strategy="channel"), "scale per channel"),
        (grouped(group_size=0), "group_size is 0"),
        (INT4 | {"format": "nvfp4-pack-quantized"}, "nvfp4-pack-quantized"),
        (
            INT4 | {"config_groups": {"g": {"weights": INT4_WEIGHTS, "input_activations": {"num_bits": 8}}}},
            "activations",
        ),
        (INT4 | {"config_groups": {}}, "one group of modules"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt weights"),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes weights"),
    ],
)
def test_ways_that_are_not_read_are_refused_in_a_sentence(stated: dict[str, Any], words: str) -> None:
    with pytest.raises((UnsupportedModel, ModelFileError), match=words) as refused:
        quantization_of({"quantization_config": stated}, "config.json")
    assert str(refused.value).startswith("config.json: ")


def test_one_kind_of_8_bit_floats_has_two_names() -> None:
    named = [quantization_of({"quantization_config": FP8 | {"fmt": fmt}}, "c") for fmt in ("e4m3", "float8_e4m3fn")]
    assert named[0] == named[1] is not None


def test_names_of_what_is_left_are_whole_parts() -> None:
    """Red when "gate" means gate_proj, too."""
    read = quantization_of({"quantization_config": FP8 | {"modules_to_not_convert": ["gate", "lm_head"]}}, "c")
    assert read is not None
    assert [read.leaves(name) for name in ("model.layers.1.mlp.gate", "model.layers.0.mlp.gate_proj", "lm_head")] == [
        True,
        False,
        True,
    ]
