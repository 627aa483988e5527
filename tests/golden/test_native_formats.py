"""Weights that stay in their stored format: close to the same weights in float32, and the same bits however computed.

Red if packing, stacking of parts in different formats, or a prefill-shaped product differs from a decode-shaped one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from tiny_decoders import BLOCK_SIZE, PagedDecoder, hf_model, prompt, row, small_layout, write_gguf

from relevo.core.errors import SettingsError
from relevo.engine.inputs import pack_rows
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import spec_of
from relevo.engine.ops.native.ops import NativeOps

FORMATS = ["Q4_0", "Q4_1", "Q8_0", "BF16", "F16", "Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1"]
WIDE_ROWS = {"hidden_size": 256, "intermediate_size": 512}  # of whole blocks of 256
NUM_BLOCKS = 16


class NativeDecoder:
    """With weights and cache in any format the backend has."""

    def __init__(
        self,
        files: ModelFiles,
        quantization: str | None = None,
        kv_dtype: str = "float16",
        activation_dtype: str = "int8",
    ) -> None:
        ops = NativeOps("auto", (0, 1), quantization, activation_dtype)
        tensors = files.tensors(raw_formats=ops.native_formats)
        self._decoder = spec_of(files.config).load(files.config, tensors, ops, files.config.max_position)
        self._kv = ops.kv_cache(small_layout(files.config, kv_dtype), NUM_BLOCKS, None)

    def step(self, *rows: Any) -> np.ndarray:
        inputs = pack_rows(rows, BLOCK_SIZE)
        return self._decoder.forward(inputs, self._kv, range(inputs.num_tokens)).values.copy()


@pytest.fixture(scope="module", params=FORMATS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    path: Path = tmp_path_factory.mktemp("formats") / f"{request.param}.gguf"
    model = hf_model("llama", **(WIDE_ROWS if request.param.endswith("_K") else {}))
    write_gguf(model, path, GGMLQuantizationType[request.param])
    return load_model_files(str(path))


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(actual - expected).mean() / expected.std())


def test_close_to_the_same_weights_in_float32(files: ModelFiles) -> None:
    """Inputs in int8 cost about a percent here; a misread scale, minimum or nibble costs everything."""
    tokens = prompt(21)
    expected = PagedDecoder(files).step(row(tokens, 0, list(range(6))))
    assert relative_error(NativeDecoder(files).step(row(tokens, 0, list(range(6)))), expected) < 0.05


def test_inputs_in_16_bits_are_as_good_as_float32(files: ModelFiles) -> None:
    """Red if products that should take 16 bits take 8: a hundred times this error."""
    tokens = prompt(21)
    expected = PagedDecoder(files).step(row(tokens, 0, list(range(6))))
    decoder = NativeDecoder(files, kv_dtype="float32", activation_dtype="int16")
    assert relative_error(decoder.step(row(tokens, 0, list(range(6)))), expected) < 2e-4


def test_inputs_are_rounded_to_bfloat16_where_matrices_are_bfloat16(files: ModelFiles) -> None:
    """Red when they are not rounded, are rounded to less, or another format is taken for bfloat16."""
    tokens, blocks = prompt(21), list(range(6))
    is_bfloat16 = any(stored.stored_as == "BF16" for stored in files.stored)
    if not is_bfloat16:
        with pytest.raises(SettingsError, match="no layer of this model has one"):
            NativeDecoder(files, kv_dtype="float32", activation_dtype="bfloat16")
        return
    decoder = NativeDecoder(files, kv_dtype="float32", activation_dtype="bfloat16")
    whole = decoder.step(row(tokens, 0, blocks))
    assert 2e-4 < relative_error(whole, PagedDecoder(files).step(row(tokens, 0, blocks))) < 0.02
    again = NativeDecoder(files, kv_dtype="float32", activation_dtype="bfloat16")
    parts = [again.step(row(tokens[:13], 0, blocks)), again.step(row(tokens[13:14], 13, blocks))]
    parts.append(again.step(row(tokens[14:], 14, blocks)))
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize(
    ("quantization", "kv_dtype", "activation_dtype"),
    [
        (None, "float16", "int16"),
        (None, "int8", "int8"),
        ("int8", "float16", "int8"),
        ("int8", "int8", "int16"),
    ],
)
def test_chunks_batches_and_single_tokens_give_the_same_bits(
    files: ModelFiles, quantization: str | None, kv_dtype: str, activation_dtype: str
) -> None:
    tokens, blocks = prompt(21), [3, 1, 4, 9, 5, 2]
    whole = NativeDecoder(files, quantization, kv_dtype, activation_dtype).step(row(tokens, 0, list(range(6))))
    decoder = NativeDecoder(files, quantization, kv_dtype, activation_dtype)
    chunks = [decoder.step(row(tokens[:13], 0, blocks)), decoder.step(row(tokens[13:14], 13, blocks))]
    other = prompt(7, seed=1)
    mixed = decoder.step(row(other, 0, [10, 11]), row(tokens[14:17], 14, blocks))
    chunks.append(mixed[len(other) :])
    chunks.extend(decoder.step(row(tokens[at : at + 1], at, blocks)) for at in range(17, 21))
    np.testing.assert_array_equal(np.concatenate(chunks), whole)


def test_int8_weights_are_close(files: ModelFiles) -> None:
    tokens = prompt(21)
    expected = PagedDecoder(files).step(row(tokens, 0, list(range(6))))
    actual = NativeDecoder(files, quantization="int8").step(row(tokens, 0, list(range(6))))
    assert relative_error(actual, expected) < 0.08
