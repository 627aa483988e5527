"""Folders of models of images give the numbers of the text model in them, in both ways in which they are written.

Red when a prefix, a part that is skipped, `text_config` or the refusal of what is left over goes wrong.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_decoders import LOCAL, PagedDecoder, hf_logits, hf_model, prompt, row

from relevo.core.errors import ModelFileError
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import config_from_hf

WRAPPERS = {"gemma3_text": "gemma3", "llama4_text": "llama4"}
OLD = {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."}
NEW = {"model.": "model.language_model.", "lm_head.": "lm_head."}


def wrapped(folder: Path, family: str, prefixes: dict[str, str], **beside: torch.Tensor) -> np.ndarray:
    """A folder with tensors beside the text model's; the text model's logits."""
    model = hf_model(family, **LOCAL[family])
    model.save_pretrained(folder)
    text = json.loads((folder / "config.json").read_text())
    whole = {"model_type": WRAPPERS[family], "architectures": ["X"], "text_config": text, "vision_config": {"a": 1}}
    (folder / "config.json").write_text(json.dumps(whole))
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        own = next(prefix for prefix in prefixes if name.startswith(prefix))
        tensors[prefixes[own] + name.removeprefix(own)] = tensor
    save_file(tensors | beside, folder / "model.safetensors", metadata={"format": "pt"})
    return hf_logits(model, prompt(20))


@pytest.mark.parametrize("prefixes", [OLD, NEW], ids=["old", "new"])
@pytest.mark.parametrize("family", WRAPPERS)
def test_the_text_model_of_a_wrapper(family: str, prefixes: dict[str, str], tmp_path: Path) -> None:
    before = "model." if prefixes is NEW else ""
    vision = f"{before}{'vision_tower' if family == 'gemma3_text' else 'vision_model'}.layers.0.weight"
    beside = {vision: torch.ones(3), f"{before}multi_modal_projector.linear_1.weight": torch.ones(2, 2)}
    expected = wrapped(tmp_path, family, prefixes, **beside)
    logits = PagedDecoder(load_model_files(str(tmp_path))).step(row(prompt(20), 0, list(range(5))))
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=1e-4)


def test_what_belongs_to_neither_is_named(tmp_path: Path) -> None:
    wrapped(tmp_path, "gemma3_text", OLD, **{"audio_tower.layers.0.weight": torch.ones(3)})
    with pytest.raises(ModelFileError, match=r"audio_tower\.layers\.0\.weight"):
        load_model_files(str(tmp_path))


def test_a_wrapper_without_its_text_model_is_refused(tmp_path: Path) -> None:
    wrapped(tmp_path, "gemma3_text", OLD)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3"}))
    with pytest.raises(ModelFileError, match="text_config is missing"):
        load_model_files(str(tmp_path))


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_text_model_says_whether_its_head_is_tied(is_tied: bool, tmp_path: Path) -> None:
    """What the model around it says is the default of another class."""
    wrapped(tmp_path, "llama4_text", OLD)
    raw = json.loads((tmp_path / "config.json").read_text())
    raw |= {"tie_word_embeddings": not is_tied, "text_config": raw["text_config"] | {"tie_word_embeddings": is_tied}}
    assert config_from_hf(raw, "config.json").tie_word_embeddings == is_tied
