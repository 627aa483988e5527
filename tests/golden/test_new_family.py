"""A family that differs in its config only is one entry of a table.

Red when a loader, the planner of memory, a worker or a benchmark begins to know families by name: then the family that
is registered here, and nowhere else, can no longer be opened, planned, loaded or computed.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_decoders import BLOCK_SIZE, PagedDecoder, hf_logits, hf_model, prompt, row, write_gguf
from transformers import PreTrainedModel

from relevo.build.model import kv_layout
from relevo.core.errors import UnsupportedModel
from relevo.core.kv import KVGroup
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.dense import DenseTraits, dense
from relevo.engine.models.families import MODELS


@pytest.fixture
def model() -> PreTrainedModel:
    return hf_model("qwen2")


@pytest.fixture
def files(model: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelFiles:
    """Of a family that is Llama with biases on q, k and v, under a name of its own."""
    monkeypatch.setitem(MODELS, "orchid", dense("orchid", DenseTraits(qkv_bias=True), gguf="qwen2"))
    monkeypatch.delitem(MODELS, "qwen2")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "orchid"}))
    return load_model_files(str(tmp_path))


def test_its_folder_is_opened_planned_and_computed(files: ModelFiles, model: PreTrainedModel) -> None:
    assert files.config.architecture == "orchid"
    layout = kv_layout(files.config, files.model_hash, "float32", BLOCK_SIZE)
    assert layout.groups == (KVGroup.full(range(2), 2, 16),)
    tokens = prompt(20)
    logits = PagedDecoder(files).step(row(tokens, 0, list(range(8))))
    np.testing.assert_allclose(logits, hf_logits(model, tokens), atol=1e-4, rtol=1e-4)


def test_its_gguf_file_too(files: ModelFiles, model: PreTrainedModel, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "orchid.gguf")
    stored = load_model_files(str(tmp_path / "orchid.gguf"))
    assert stored.config.architecture == "orchid"
    tokens = prompt(20)
    logits = PagedDecoder(stored).step(row(tokens, 0, list(range(8))))
    np.testing.assert_allclose(logits, hf_logits(model, tokens), atol=1e-4, rtol=1e-4)


def test_what_the_table_does_not_have_is_refused(files: ModelFiles, tmp_path: Path) -> None:
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "qwen2"}))
    with pytest.raises(UnsupportedModel, match=r"'qwen2' is not implemented; one of .*, orchid is"):
        load_model_files(str(tmp_path))
