"""A GGUF file of a family with states gives, to the bit, the model of the folder that it was converted from.

Red if heads, rows or columns that llama.cpp's converter has moved are not found again, and if a file that says other
things than it must ends in anything but a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from gguf_converter import Keys, Tensors, convert
from test_gguf_families import comparable
from test_state_ranks import HEADS, on_ranks
from test_states import Stateful, assert_same, tiny
from tiny_decoders import BACKENDS, hf_logits, prompt
from transformers import PreTrainedModel

from kept_folders import kept_folder
from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.model import DeltaFiles, ModelConfig
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.slice_places import check_blocks
from relevo.engine.models.slice_tensors import SliceTensors
from relevo.engine.models.slices import share_of

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-next": ("qwen3_next", {}),
    "qwen3.5": ("qwen3_5_text", {}),
    "qwen3.5, a value head for each key head": ("qwen3_5_text", {"linear_num_value_heads": 2}),
    "qwen3.5-moe": ("qwen3_5_moe_text", {}),
}


@cache
def original(case: str) -> tuple[PreTrainedModel, Path]:
    family, changes = CASES[case]
    model, folder = tiny(family, **changes), kept_folder("gguf-states")
    model.save_pretrained(folder)
    return model, folder


def converted(case: str, path: Path, **options: Any) -> ModelFiles:
    convert(original(case)[1], path / "model.gguf", **options)
    return load_model_files(str(path / "model.gguf"))


def logits(files: ModelFiles, backend: str) -> np.ndarray:
    served = Stateful(files, backend=backend)
    return served.in_parts(prompt(30), [17, 1, 12], 0)


def same_files(config: ModelConfig) -> ModelConfig:
    """Apart from how tensors lie in them."""
    assert config.delta is not None
    return replace(comparable(config), norm_offset=0.0, delta=replace(config.delta, files=DeltaFiles()))


@pytest.mark.parametrize("case", CASES)
def test_the_config_is_the_folders(case: str, tmp_path: Path) -> None:
    stored, folder = converted(case, tmp_path), load_model_files(str(original(case)[1]))
    assert same_files(stored.config) == same_files(folder.config)
    assert stored.num_parameters == folder.num_parameters


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_folders_to_the_bit(case: str, backend: str, tmp_path: Path) -> None:
    """But where heads are tiled: the output's sums run over its columns in the file's order."""
    model, folder = original(case)
    ours, theirs = logits(converted(case, tmp_path), backend), logits(load_model_files(str(folder)), backend)
    delta = converted(case, tmp_path).config.delta
    assert delta is not None
    if delta.output_heads == sorted(delta.output_heads):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4)
    assert_same(ours, hf_logits(model, prompt(30)))


def test_an_interval_does_as_well_as_a_list(tmp_path: Path) -> None:
    """Files of before layers were listed."""

    def older(keys: Keys) -> None:
        del keys["attention.recurrent_layers"]
        keys["full_attention_interval"] = 2

    with pytest.raises(UnsupportedModel, match="does not use"):  # the tiny model's layers are not every second one
        converted("qwen3.5", tmp_path, keys=older)
    config = converted("qwen3.5", tmp_path).config
    assert config.delta is not None and config.delta.layers == (0, 2, 3)


def test_layers_that_draft_are_left_out(tmp_path: Path) -> None:
    """A file counts them among its layers, and lists them."""

    def with_drafts(tensors: Tensors) -> None:
        tensors |= {f"blk.4.{name}.weight": np.ones(64, np.float32) for name in ("nextn.enorm", "attn_norm")}

    def counted(keys: Keys) -> None:
        keys |= {"block_count": 5, "nextn_predict_layers": 1}
        keys["attention.recurrent_layers"] = [*keys["attention.recurrent_layers"], False]

    files = converted("qwen3.5", tmp_path, keys=counted, tensors=with_drafts)
    assert (files.config.num_layers, files.config.num_mtp_layers) == (4, 1)
    np.testing.assert_array_equal(logits(files, "native"), logits(converted("qwen3.5", tmp_path), "native"))


def test_blocks_are_multiplied_as_they_are_stored(tmp_path: Path) -> None:
    """Rows move whole, and no column moves: red when a matrix behind a state had to be dequantised."""
    sizes = {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    tiny("qwen3_5_text", **sizes).save_pretrained(tmp_path / "folder")
    convert(tmp_path / "folder", tmp_path / "model.gguf", matrices_as=GGMLQuantizationType.Q8_0)
    files = load_model_files(str(tmp_path / "model.gguf"))
    raw = dict(files.tensors(raw_formats=frozenset({"q8_0"})))
    stored = {name for name, tensor in raw.items() if tensor.dtype == "q8_0"}
    block = "model.layers.2.linear_attn."
    assert {block + name + ".weight" for name in ("in_proj_qkv", "in_proj_z", "out_proj")} <= stored


# ---- in tensor groups ------------------------------------------------------------------------------------------------

THREE_TO_A_KEY_HEAD = {**HEADS, "linear_num_value_heads": 12}  # tiles and neighbours are not each other's inverse


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"])
def test_groups_have_the_bits_of_the_folders(family: str, tmp_path: Path) -> None:
    """Also where heads are tiled: in a slice they lie as the folder has them. Red when it computes with others'."""
    tiny(family, **THREE_TO_A_KEY_HEAD).save_pretrained(tmp_path / "folder")
    convert(tmp_path / "folder", tmp_path / "model.gguf")
    folder, stored = load_model_files(str(tmp_path / "folder")), load_model_files(str(tmp_path / "model.gguf"))
    expected, memory = on_ranks(folder, "native", 1, 2)
    for num_stages, size in ((1, 1), (1, 2), (1, 4), (2, 2)):
        found, other = on_ranks(stored, "native", num_stages, size)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert other == memory, (num_stages, size)


def test_blocks_of_quantised_weights_move_with_their_heads(tmp_path: Path) -> None:
    """Red when a slice multiplies columns of another head."""
    sizes = {"linear_key_head_dim": 16, "linear_value_head_dim": 32}
    tiny("qwen3_5_text", **THREE_TO_A_KEY_HEAD, **sizes).save_pretrained(tmp_path / "folder")
    convert(tmp_path / "folder", tmp_path / "model.gguf", matrices_as=GGMLQuantizationType.Q8_0)
    files = load_model_files(str(tmp_path / "model.gguf"))
    raw, floats = dict(files.tensors(raw_formats=frozenset({"q8_0"}))), dict(files.tensors())
    for part in share_of(files.config, 0, 1).slices(files.config):
        cutter = SliceTensors(files.config, part)
        for kind in ("in_proj_qkv", "in_proj_z", "out_proj"):
            name = f"model.layers.2.linear_attn.{kind}.weight"
            stored = cutter.part(name, raw[name])
            assert stored.dtype == "q8_0"
            meant = dequantize(stored.array, GGMLQuantizationType.Q8_0)
            np.testing.assert_array_equal(meant, cutter.part(name, floats[name]).floats())


# ---- what is refused ------------------------------------------------------------------------------------------------

KEYS: dict[str, tuple[str, Callable[[Keys], object], str]] = {
    "layers that are not listed": (
        "qwen3.5",
        lambda keys: keys.update({"attention.recurrent_layers": [True, False]}),
        "attention.recurrent_layers is .* for 4 layers",
    ),
    "values that heads do not share": (
        "qwen3.5",
        lambda keys: keys.update({"ssm.inner_size": 71}),
        "6 heads cannot share ssm.inner_size 71",
    ),
    "no convolution": ("qwen3.5", lambda keys: keys.pop("ssm.conv_kernel"), "lacks the key qwen35.ssm.conv_kernel"),
    "no state": ("qwen3-next", lambda keys: keys.pop("ssm.state_size"), "lacks the key qwen3next.ssm.state_size"),
    "a key that is not known": (
        "qwen3-next",
        lambda keys: keys.update({"ssm.dt_b_c_rms": True}),
        "first is qwen3next.ssm.dt_b_c_rms",
    ),
    "sigmoids": ("qwen3.5-moe", lambda keys: keys.update(expert_gating_func=2), "expert_gating_func 2 is not what"),
    "scaled weights": ("qwen3-next", lambda keys: keys.update(expert_weights_scale=2.5), "expert_weights_scale 2.5"),
    "no experts": ("qwen3-next", lambda keys: keys.pop("expert_count"), "without experts is not implemented"),
}


@pytest.mark.parametrize("fault", KEYS)
def test_keys_that_are_strange_or_contradict_are_named(fault: str, tmp_path: Path) -> None:
    case, change, sentence = KEYS[fault]
    with pytest.raises((ModelFileError, UnsupportedModel), match=sentence):
        converted(case, tmp_path, keys=change)


def test_a_file_of_the_first_converters_is_refused(tmp_path: Path) -> None:
    """They had what goes into a state in one tensor, by head."""

    def older(tensors: Tensors) -> None:
        whole = np.concatenate((tensors.pop("blk.0.attn_qkv.weight"), tensors.pop("blk.0.attn_gate.weight")))
        tensors["blk.0.ssm_in.weight"] = whole

    with pytest.raises(UnsupportedModel, match=r"does not use, the first is blk\.0\.ssm_in\.weight"):
        converted("qwen3-next", tmp_path, tensors=older)


def test_a_block_that_spans_heads_is_not_cut(tmp_path: Path) -> None:
    """Of the output's columns, whose heads lie apart in the file: known before anything is read."""
    config = converted("qwen3.5", tmp_path).config
    assert config.delta is not None
    outputs = {f"model.layers.{layer}.linear_attn.out_proj.weight": "q8_0" for layer in config.delta.layers}
    said = f"blocks of 32 do not end at column {config.delta.output_heads[0] + config.delta.value_size}, where a slice"
    with pytest.raises(UnsupportedModel, match=said):
        check_blocks(config, share_of(config, 0, 2), outputs)
