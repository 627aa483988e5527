"""A GGUF file gives the numbers of the model it was converted from.

Red if a name, the order of rows in q and k, a rope factor, a quantisation or the reading in runs goes wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from tiny_decoders import PagedDecoder, hf_logits, hf_model, prompt, row, write_gguf

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.loaders import gguf_tensors, tensor_reader
from relevo.engine.loaders.gguf_metadata import GGML_TYPES, GgmlType
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.rope import rope_frequencies

Q = GGMLQuantizationType
_THETA = {"rope_theta": 500.0}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}, {}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "mistral": ("mistral", {"sliding_window": None}, {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {"head_dim": 24}, {}),
    "mixtral": ("mixtral", {"num_local_experts": 12}, {}),
    "qwen3-moe": (
        "qwen3_moe",
        {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True},
        {},
    ),
    "llama-linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, **_THETA}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
    ),
    "gemma3": (
        "gemma3_text",
        {"num_hidden_layers": 7, "head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 7},
        {},
    ),
    "qwen2-yarn": (
        "qwen2",
        {"rope_parameters": _YARN | _THETA},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32.0},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_original_model(case: str, tmp_path: Path) -> None:
    family, changes, keys = CASES[case]
    model, path, tokens = hf_model(family, **changes), tmp_path / "model.gguf", prompt(50)
    write_gguf(model, path, keys=keys)
    logits = PagedDecoder(load_model_files(str(path))).step(row(tokens, 0, list(range(20))))
    np.testing.assert_allclose(logits, hf_logits(model, tokens), atol=1e-4, rtol=1e-4)


def test_rope_factors_stored_as_a_tensor_are_llama3_scaling(tmp_path: Path) -> None:
    model, path, tokens = hf_model("llama", rope_parameters=_LLAMA3 | _THETA), tmp_path / "model.gguf", prompt(60)
    model.save_pretrained(tmp_path / "folder")
    config = load_model_files(str(tmp_path / "folder")).config
    scaled, _ = rope_frequencies(config, 128)
    plain = 500.0 ** -(np.arange(8) / 8)
    write_gguf(model, path, rope_freqs=(plain / scaled).tolist())
    logits = PagedDecoder(load_model_files(str(path))).step(row(tokens, 0, list(range(20))))
    np.testing.assert_allclose(logits, hf_logits(model, tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("stored_as", [Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0], ids=lambda q: q.name)
def test_quantised_weights_are_what_the_file_says(stored_as: GGMLQuantizationType, tmp_path: Path) -> None:
    """qwen2 keeps its row order, so each matrix must be exactly quantise-then-dequantise of the original."""
    model, path = hf_model("qwen2"), tmp_path / "model.gguf"
    write_gguf(model, path, matrices_as=stored_as)
    loaded = dict(load_model_files(str(path)).tensors())
    original = model.state_dict()
    assert loaded.keys() == original.keys()
    for name, tensor in loaded.items():
        array = original[name].numpy()
        expected = array if array.ndim == 1 else dequantize(quantize(array, stored_as), stored_as).reshape(array.shape)
        bits = tensor.array
        values = (bits.astype(np.uint32) << 16).view(np.float32) if tensor.dtype == "bfloat16" else bits
        np.testing.assert_array_equal(values.astype(np.float32), expected, err_msg=name)


@pytest.mark.parametrize(
    "stored_as", [Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_NL, Q.IQ4_XS, Q.IQ2_XS, Q.TQ1_0], ids=lambda q: q.name
)
def test_every_quantisation_is_read_in_runs(stored_as: GGMLQuantizationType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random bytes, several runs and a shorter last one, against the whole tensor at once."""
    monkeypatch.setattr(gguf_tensors, "_RUN_ELEMENTS", 1024)
    block_elements, block_bytes = GGML_QUANT_SIZES[stored_as]
    data = np.random.default_rng(0).integers(0, 256, (11, 768 // block_elements * block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        kind = GgmlType(stored_as.name, block_elements, block_bytes)
        runs = gguf_tensors.decode(data.reshape(-1), kind, (11, 768), None, "float32", "x").array
        np.testing.assert_array_equal(runs, dequantize(data, stored_as))


RAW = frozenset({"q4_0", "q4_1", "q5_0", "q5_1", "q8_0"})


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("stored_as", [Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0], ids=lambda q: q.name)
def test_raw_rows_are_the_dequantised_rows(family: str, stored_as: GGMLQuantizationType, tmp_path: Path) -> None:
    """The bytes of a file in the rows' right order (llama's q and k are stored in another). Norms stay floats."""
    model, path = hf_model(family, hidden_size=96, num_attention_heads=6), tmp_path / "model.gguf"
    write_gguf(model, path, matrices_as=stored_as)
    files = load_model_files(str(path))
    expected, raw = dict(files.tensors()), dict(files.tensors(raw_formats=RAW))
    assert expected.keys() == raw.keys()
    for name, tensor in raw.items():
        assert tensor.shape == expected[name].shape, name
        assert tensor.dtype == ("float32" if len(tensor.shape) == 1 else stored_as.name.lower()), name
        values = tensor.array if tensor.dtype == "float32" else dequantize(tensor.array, stored_as)
        np.testing.assert_array_equal(values, expected[name].array, err_msg=name)
    assert files.load_report is not None and 0 < files.load_report.mapped_bytes < files.load_report.file_bytes


def test_only_the_formats_asked_for_stay_raw(tmp_path: Path) -> None:
    write_gguf(hf_model("qwen2"), tmp_path / "model.gguf", matrices_as=Q.Q4_1)
    tensors = load_model_files(str(tmp_path / "model.gguf")).tensors(raw_formats=frozenset({"q8_0"}))
    assert {tensor.dtype for _, tensor in tensors} == {"float32"}


def test_mapped_pages_are_given_back_and_stay_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the file's name is gone. Red if a pass gives back what it does not own, such as written pages."""
    monkeypatch.setattr(tensor_reader, "_KEPT_MAPPED_BYTES", 0)
    path = tmp_path / "model.gguf"
    write_gguf(hf_model("llama"), path, matrices_as=Q.Q8_0)
    files = load_model_files(str(path))
    expected = {name: tensor.array.copy() for name, tensor in files.tensors(raw_formats=RAW)}
    kept = dict(files.tensors(raw_formats=RAW))
    path.unlink()
    for name, tensor in kept.items():
        np.testing.assert_array_equal(tensor.array, expected[name], err_msg=name)


def test_what_a_backend_cannot_multiply_may_come_as_bfloat16(tmp_path: Path) -> None:
    """Rounded to nearest even, as torch does. Tensors stored as floats stay what they are."""
    write_gguf(hf_model("llama"), tmp_path / "model.gguf", matrices_as=Q.Q5_1)
    files = load_model_files(str(tmp_path / "model.gguf"))
    for (name, exact), (_, rounded) in zip(files.tensors(), files.tensors(dequantised_as="bfloat16"), strict=True):
        if exact.array.ndim == 1:
            assert rounded.dtype == "float32"
            continue
        assert rounded.dtype == "bfloat16"
        expected = torch.from_numpy(exact.array).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        np.testing.assert_array_equal(rounded.array, expected, err_msg=name)


def test_the_block_sizes_are_those_of_the_format() -> None:
    for number, kind in GGML_TYPES.items():
        assert (kind.block_elements, kind.block_bytes) == GGML_QUANT_SIZES[Q(number)] and kind.name == Q(number).name


def test_a_half_precision_file_is_computed_in_single_precision(tmp_path: Path) -> None:
    model, path, tokens = hf_model("llama"), tmp_path / "model.gguf", prompt(30)
    write_gguf(model, path, matrices_as=Q.F16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(parameter.half())
    logits = PagedDecoder(load_model_files(str(path))).step(row(tokens, 0, list(range(20))))
    np.testing.assert_allclose(logits, hf_logits(model, tokens), atol=1e-4, rtol=1e-4)


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    write_gguf(hf_model("llama"), path, matrices_as=Q.Q8_0)
    return path


def test_a_file_that_ends_early_is_named(gguf_path: Path) -> None:
    data = gguf_path.read_bytes()
    for size in (0, 3, 40, len(data) // 8, len(data) - 1):
        gguf_path.write_bytes(data[:size])
        with pytest.raises(ModelFileError, match=r"model\.gguf.*download it again"):
            load_model_files(str(gguf_path))


def test_a_file_that_shrinks_after_it_was_opened_is_named(gguf_path: Path) -> None:
    files = load_model_files(str(gguf_path))
    gguf_path.write_bytes(gguf_path.read_bytes()[:-100])
    for raw_formats in (frozenset(), frozenset({"q8_0"})):
        with pytest.raises(ModelFileError, match=r"model\.gguf ends before"):
            list(files.tensors(raw_formats=raw_formats))


def test_another_kind_of_file_is_refused(gguf_path: Path) -> None:
    gguf_path.write_bytes(b"PK\x03\x04" + gguf_path.read_bytes()[4:])
    with pytest.raises(ModelFileError, match="GGUF"):
        load_model_files(str(gguf_path))


def _gguf_with(path: Path, architecture: str, **strings: str) -> None:
    writer = GGUFWriter(path, architecture)
    for key, value in strings.items():
        writer.add_string(key, value)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_an_unknown_architecture_and_a_missing_key_are_named(tmp_path: Path) -> None:
    _gguf_with(tmp_path / "other.gguf", "mamba")
    with pytest.raises(UnsupportedModel, match="mamba"):
        load_model_files(str(tmp_path / "other.gguf"))
    _gguf_with(tmp_path / "bare.gguf", "llama")
    with pytest.raises(ModelFileError, match=r"lacks the key llama\.embedding_length"):
        load_model_files(str(tmp_path / "bare.gguf"))


def test_a_missing_tensor_is_named(gguf_path: Path) -> None:
    files = load_model_files(str(gguf_path))
    files.stored = tuple(tensor for tensor in files.stored if "layers.1.mlp.up_proj" not in tensor.name)
    with pytest.raises(ModelFileError, match=r"1 of \d+ tensors are missing.*layers\.1\.mlp\.up_proj"):
        PagedDecoder(files)
