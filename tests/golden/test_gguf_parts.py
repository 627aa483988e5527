"""A model in several GGUF files, as llama.cpp's tools split large ones, is the model of one file.

Red if a tensor is looked for in another part, or if a part that is missing, renamed, or another model's goes unsaid.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf_converter import convert
from tiny_decoders import hf_model

from kept_folders import kept_folder
from relevo.core.errors import ModelFileError
from relevo.engine.loaders.resolve import load_model_files


@pytest.fixture(scope="module")
def folder() -> Path:
    """With a model of one file, and the same in parts."""
    path = kept_folder("parts")
    hf_model("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=40).save_pretrained(path / "hf")
    convert(path / "hf", path / "whole.gguf")
    convert(path / "hf", path / "model.gguf", max_tensors=9)
    assert len(list(path.glob("model-*-of-00003.gguf"))) == 3
    return path


def first(folder: Path) -> Path:
    return folder / "model-00001-of-00003.gguf"


def test_the_parts_are_the_whole(folder: Path) -> None:
    whole, parts = load_model_files(str(folder / "whole.gguf")), load_model_files(str(first(folder)))
    assert parts.config == whole.config and parts.model_hash == whole.model_hash
    assert len({tensor.path for tensor in parts.stored}) == 3
    expected = dict(whole.tensors())
    found = dict(parts.tensors())
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.array, expected[name].array, err_msg=name)


def _swapped(folder: Path) -> None:
    shutil.copy(folder / "model-00003-of-00003.gguf", folder / "model-00002-of-00003.gguf")


def _renamed(folder: Path) -> None:
    first(folder).rename(folder / "big.gguf")


FAULTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a part is missing": (
        lambda folder: (folder / "model-00002-of-00003.gguf").unlink(),
        "model-00001-of-00003.gguf",
        r"lacks 1 of 3 parts of the model, the first is model-00002-of-00003\.gguf; complete the download",
    ),
    "another part is named": (
        lambda folder: None,
        "model-00002-of-00003.gguf",
        r"is part 2 of 3 of a model; name the first, model-00001-of-00003\.gguf",
    ),
    "a part in another's place": (_swapped, "model-00001-of-00003.gguf", "says that it is part 2 and not 1"),
    "a part that ends early": (
        lambda folder: (folder / "model-00003-of-00003.gguf").write_bytes(b"GGUF"),
        "model-00001-of-00003.gguf",
        r"model-00003-of-00003\.gguf is not a complete GGUF file",
    ),
    "another name": (_renamed, "big.gguf", "is one of 3 parts of a model, which are found by their names"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_parts_that_are_not_as_written_are_named(fault: str, folder: Path, tmp_path: Path) -> None:
    change, named, sentence = FAULTS[fault]
    for part in folder.glob("model-*.gguf"):
        shutil.copy(part, tmp_path)
    change(tmp_path)
    with pytest.raises(ModelFileError, match=sentence):
        load_model_files(str(tmp_path / named))
