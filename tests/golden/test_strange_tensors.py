"""Every tensor of a file is used, known to be harmless, or named in a refusal; embedding and head as transformers 5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file, save_file
from tiny_decoders import PagedDecoder, hf_logits, hf_model, prompt, row, write_gguf
from transformers import AutoModelForCausalLM

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.loaders.resolve import load_model_files

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def rewritten(folder: Path, changes: dict[str, torch.Tensor | None], family: str = "llama", **config: Any) -> Path:
    """A model whose file has other tensors: None takes one out."""
    hf_model(family, **config).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors") | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def equals_transformers(folder: Path) -> None:
    tokens = prompt(20)
    logits = PagedDecoder(load_model_files(str(folder))).step(row(tokens, 0, list(range(5))))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    np.testing.assert_allclose(logits, hf_logits(model, tokens), atol=1e-4, rtol=1e-4)


STRANGE = {
    "q/k norms in a Llama": "model.layers.0.self_attn.q_norm.weight",
    "a bias while the flag is false": "model.layers.1.self_attn.q_proj.bias",
    "a bias of the head": "lm_head.bias",
    "a layer too many": "model.layers.2.input_layernorm.weight",
    "an adapter": "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
    "a scale of quantised weights": "model.layers.0.mlp.up_proj.weight_scale",
}


@pytest.mark.parametrize("case", STRANGE)
def test_a_tensor_that_nothing_asks_for_is_named_before_weights_are_read(case: str, tmp_path: Path) -> None:
    """Red when the model is computed without it: the text is worse and nothing says so."""
    folder = rewritten(tmp_path, {STRANGE[case]: torch.ones(64)})
    with pytest.raises(ModelFileError, match=rf"1 tensors .*first is {STRANGE[case]}"):
        load_model_files(str(folder))


def test_integers_that_are_no_buffer_are_named(tmp_path: Path) -> None:
    folder = rewritten(tmp_path, {"model.layers.0.mlp.up_proj.qweight": torch.ones(4, dtype=torch.int32)})
    with pytest.raises(UnsupportedModel, match=r"up_proj\.qweight is stored as I32"):
        load_model_files(str(folder))


def test_buffers_that_every_reader_computes_are_left_out(tmp_path: Path) -> None:
    """And do not make another model of it: red if its hash or size counts them."""
    plain, with_buffers = rewritten(tmp_path / "a", {}), tmp_path / "b"
    buffers = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(8) for i in range(2)}
    rewritten(with_buffers, buffers | {"model.position_ids": torch.arange(9)})
    one, other = load_model_files(str(plain)), load_model_files(str(with_buffers))
    assert (one.model_hash, one.num_parameters) == (other.model_hash, other.num_parameters)
    equals_transformers(with_buffers)


@pytest.mark.parametrize("bias", [True, False])
def test_a_gguf_file_is_looked_at_likewise(bias: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strange = "blk.0.attn_k.bias" if bias else "blk.0.ffn_gate_inp.weight"
    write = GGUFWriter.write_header_to_file

    def with_one_more(self: GGUFWriter) -> None:
        self.add_tensor(strange, np.ones(64, dtype=np.float32))
        write(self)

    monkeypatch.setattr(GGUFWriter, "write_header_to_file", with_one_more)
    write_gguf(hf_model("llama"), tmp_path / "model.gguf")
    named = r"model\.layers\.0\.self_attn\.k_proj\.bias" if bias else strange
    with pytest.raises(UnsupportedModel, match=rf"1 tensors .*first is {named}"):
        load_model_files(str(tmp_path / "model.gguf"))


def shards(folder: Path, index: bool) -> Path:
    """A whole model, and a second file with a twin of one tensor, all zeros."""
    rewritten(folder, {})
    names = list(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"model.norm.weight": torch.zeros(64)}, folder / "b.safetensors", metadata={"format": "pt"})
    if index:
        weight_map = dict.fromkeys(names, "a.safetensors")
        save_file({"x.position_ids": torch.zeros(1)}, folder / "c.safetensors")
        content = {"metadata": {}, "weight_map": weight_map | {"x.position_ids": "b.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    return folder


def test_a_tensor_comes_from_the_file_that_the_index_names(tmp_path: Path) -> None:
    files = load_model_files(str(shards(tmp_path / "with", index=True)))
    (norm,) = [tensor for tensor in files.stored if tensor.name == "model.norm.weight"]
    assert norm.path.name == "a.safetensors"
    with pytest.raises(
        ModelFileError, match=r"model\.norm\.weight in a\.safetensors and in b\.safetensors and no index"
    ):
        load_model_files(str(shards(tmp_path / "without", index=False)))


def test_the_makers_own_twin_of_a_model_is_left_alone(tmp_path: Path) -> None:
    """As Mistral's folders have it beside, whole and under other names, here without an index."""
    rewritten(tmp_path, {})
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    save_file({"layers.0.attention.wq.weight": torch.zeros(64, 64)}, tmp_path / "consolidated.safetensors")
    files = load_model_files(str(tmp_path))
    assert {tensor.path.name for tensor in files.stored} == {"model-00001-of-00001.safetensors"}


def test_an_adapter_beside_a_model_is_named(tmp_path: Path) -> None:
    rewritten(tmp_path, {})
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    save_file({STRANGE["an adapter"]: torch.zeros(8, 64)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelFileError, match=rf"1 tensors .*first is {STRANGE['an adapter']}"):
        load_model_files(str(tmp_path))


# ---- embedding and head ----------------------------------------------------------------------------------------------


def test_a_tied_model_whose_file_has_the_head_only_loads(tmp_path: Path) -> None:
    whole = rewritten(tmp_path / "whole", {}, tie_word_embeddings=True)
    matrix = load_file(whole / "model.safetensors")[EMBEDDING]
    only = rewritten(tmp_path / "only", {EMBEDDING: None, HEAD: matrix}, tie_word_embeddings=True)
    files = load_model_files(str(only))
    assert files.model_hash == load_model_files(str(whole)).model_hash and not files.notes
    tokens = prompt(12)
    step = PagedDecoder(files).step(row(tokens, 0, [1, 2, 3]))
    expected = hf_logits(hf_model("llama", tie_word_embeddings=True), tokens)
    np.testing.assert_allclose(step, expected, atol=1e-4, rtol=1e-4)


def test_a_tied_model_with_two_equal_matrices_shares_one(tmp_path: Path) -> None:
    plain = rewritten(tmp_path / "plain", {}, tie_word_embeddings=True)
    matrix = load_file(plain / "model.safetensors")[EMBEDDING]
    twice = rewritten(tmp_path / "twice", {HEAD: matrix.clone()}, tie_word_embeddings=True)
    one, other = load_model_files(str(plain)), load_model_files(str(twice))
    assert other.config.tie_word_embeddings and not other.notes and one.model_hash == other.model_hash
    equals_transformers(twice)


def test_a_head_that_differs_from_its_tied_embedding_is_used_and_said(tmp_path: Path) -> None:
    """Red when it is dropped in silence: every token then differs."""
    torch.manual_seed(5)
    folder = rewritten(tmp_path, {HEAD: torch.randn(96, 64)}, tie_word_embeddings=True)
    files = load_model_files(str(folder))
    assert not files.config.tie_word_embeddings
    assert len(files.notes) == 1 and "differs" in files.notes[0]
    equals_transformers(folder)


def test_a_head_that_is_neither_tied_nor_there_is_never_made_up(tmp_path: Path) -> None:
    folder = rewritten(tmp_path, {HEAD: None})
    with pytest.raises(ModelFileError, match=r"missing, the first is lm_head\.weight"):
        PagedDecoder(load_model_files(str(folder)))
