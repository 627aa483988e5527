"""Folders, shards, hub ids and the packaged model: what is read, and what an operator is told when it cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_decoders import PagedDecoder, hf_logits, hf_model, prompt, row
from transformers import AutoModelForCausalLM

from relevo.core.errors import HubUnavailable, ModelFileError, UnsupportedModel
from relevo.engine.loaders.model_files import LoadReport
from relevo.engine.loaders.resolve import load_model_files


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`single`: one file; `sharded`: several with an index; both of the same weights."""
    root = tmp_path_factory.mktemp("saved")
    model = hf_model("llama")
    model.save_pretrained(root / "single")
    model.save_pretrained(root / "sharded", max_shard_size="100KB")
    return root


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(saved / "sharded", tmp_path / "copy"))


def test_shards_are_one_model(saved: Path) -> None:
    """Same logits and same identity as the single file: a peer that loaded it differently may share KV blocks."""
    assert len(list((saved / "sharded").glob("*.safetensors"))) > 2
    single, sharded = load_model_files(str(saved / "single")), load_model_files(str(saved / "sharded"))
    assert sharded.model_hash == single.model_hash
    tokens = prompt(12)
    logits = PagedDecoder(sharded).step(row(tokens, 0, [1, 2, 3]))
    np.testing.assert_allclose(logits, hf_logits(hf_model("llama"), tokens), atol=1e-4, rtol=1e-4)


def test_bfloat16_weights_keep_their_bits(tmp_path: Path) -> None:
    hf_model("qwen2").to(torch.bfloat16).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    files, tokens = load_model_files(str(tmp_path)), prompt(20)
    assert files.config.dtype == "bfloat16"
    assert {tensor.dtype for _, tensor in files.tensors()} == {"bfloat16"}
    logits = PagedDecoder(files).step(row(tokens, 0, list(range(5))))
    np.testing.assert_allclose(logits, hf_logits(model, tokens), atol=1e-4, rtol=1e-4)


def test_other_weights_have_another_hash(saved: Path, tmp_path: Path) -> None:
    """Workers with different weights must never exchange blocks, however alike the models look."""
    model = hf_model("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.01)
    model.save_pretrained(tmp_path)
    assert load_model_files(str(tmp_path)).model_hash != load_model_files(str(saved / "single")).model_hash


def test_loading_reports_what_it_did(saved: Path) -> None:
    files = load_model_files(str(saved / "sharded"))
    seen: list[tuple[int, int]] = []
    names = [name for name, _ in files.tensors(lambda done, total: seen.append((done, total)))]
    assert len(names) == len(set(names)) == len(files.stored) == len(seen)
    assert seen == sorted(seen)
    assert seen[-1] == (files.file_bytes, files.file_bytes)
    report = files.load_report
    assert report is not None
    assert report.file_bytes == files.file_bytes
    assert report.read_s > 0
    assert "MB" in str(LoadReport(file_bytes=10**8, mapped_bytes=0, read_s=0.1, dequantise_s=0.2, total_s=0.3))


def test_a_consumer_that_stops_early_leaves_no_thread_waiting(saved: Path) -> None:
    """Red if closing the iterator deadlocks on the reading threads."""
    tensors = load_model_files(str(saved / "single")).tensors()
    next(tensors)
    tensors.close()


def test_a_missing_shard_is_named(folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelFileError, match=rf"lacks 1 of \d+ shards.*{shard.name}.*complete the download"):
        load_model_files(str(folder))


def test_a_truncated_shard_is_named(folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[0]
    data = shard.read_bytes()
    for size in (4, 30, len(data) - 1):
        shard.write_bytes(data[:size])
        with pytest.raises(ModelFileError, match=rf"{shard.name}.*download it again"):
            load_model_files(str(folder))


def test_a_missing_tensor_and_a_wrong_shape_are_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ModelFileError, match=r"tensors are missing.*model\.layers\.2"):
        PagedDecoder(load_model_files(str(folder)))
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 100}))
    with pytest.raises(ModelFileError, match=r"mlp.*has shape .*config asks for"):
        PagedDecoder(load_model_files(str(folder)))


def test_eight_bit_floats_are_refused_by_name(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "config.json").write_bytes((saved / "single" / "config.json").read_bytes())
    header = json.dumps({"model.norm.weight": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(UnsupportedModel, match="F8_E4M3"):
        load_model_files(str(tmp_path))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"model_type": "llama"}'])
def test_a_broken_config_is_named(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        load_model_files(str(folder))


def test_folders_and_paths_without_a_model(folder: Path, tmp_path: Path) -> None:
    for shard in folder.glob("*.safetensors*"):
        shard.unlink()
    with pytest.raises(ModelFileError, match=r"no \.safetensors file"):
        load_model_files(str(folder))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match=r"neither a config\.json nor a GGUF file"):
        load_model_files(str(tmp_path / "empty"))
    for missing in (str(tmp_path / "nothing"), "models/nothing.gguf", "nothing"):
        with pytest.raises(ModelFileError, match="there is no file or folder"):
            load_model_files(missing)


def test_a_hub_id_without_cache_and_network_says_where_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubUnavailable, match=rf"owner/some-model.*{tmp_path}.*HF_HUB_OFFLINE.*hf download"):
        load_model_files("owner/some-model", download_dir=str(tmp_path))


def test_a_hub_id_is_served_from_the_cache(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache's own layout: refs name a commit, snapshots hold its files."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    root, commit = tmp_path / "models--owner--some-model", "0" * 40
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(commit)
    shutil.copytree(saved / "single", root / "snapshots" / commit)
    files = load_model_files("owner/some-model", download_dir=str(tmp_path))
    assert files.name == "owner/some-model"
    assert files.model_hash == load_model_files(str(saved / "single")).model_hash
