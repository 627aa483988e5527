"""Matrix products on every path against numpy, and the headline: the result for a row depends on that row alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.engine.ops.bfloat16 import bfloat16_bits, bfloat16_values
from relevo.engine.ops.formats import BLOCK_FORMATS as HELD

native = pytest.importorskip("relevo_native._native")

Floats = npt.NDArray[np.float32]

PATHS = native.available_paths()
BLOCK_FORMATS = {
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q5_0": gguf.GGMLQuantizationType.Q5_0,
    "q5_1": gguf.GGMLQuantizationType.Q5_1,
}
SUPER_FORMATS = {
    "q4_k": gguf.GGMLQuantizationType.Q4_K,
    "q5_k": gguf.GGMLQuantizationType.Q5_K,
    "q6_k": gguf.GGMLQuantizationType.Q6_K,
}
HALVES_AT = {"q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}  # in a block of 256
FLOAT_FORMATS = ("float32", "float16", "bfloat16")
STORED_FORMATS = (*FLOAT_FORMATS, *BLOCK_FORMATS, *SUPER_FORMATS, "q8_channel")
WIDE = "_wide"  # the same weights, multiplied with inputs rounded to 16 bits
ROUNDED = "bfloat16_rounded"  # bfloat16 weights, multiplied with inputs rounded to bfloat16
FORMATS = (*STORED_FORMATS, ROUNDED, *(name + WIDE for name in (*BLOCK_FORMATS, *SUPER_FORMATS, "q8_channel")))


@dataclass(frozen=True)
class Weight:
    """A random weight as a file stores it, and the numbers it stands for."""

    format: str
    raw: npt.NDArray[np.uint8]  # [n, bytes]
    values: Floats  # [n, k]

    def packed(self, path: str) -> Any:
        return native.PackedLinear(path, self.format, self.raw, self.values.shape[1])


def make_weight(format: str, n: int, k: int, seed: int) -> Weight:
    if format.endswith(WIDE):
        return replace(make_weight(format.removesuffix(WIDE), n, k, seed), format=format)
    if format == ROUNDED:
        return replace(make_weight("bfloat16", n, k, seed), format=format)
    if format in SUPER_FORMATS:
        return random_super_blocks(format, n, k, seed)
    values = np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32) / np.float32(k**0.5)
    if format in BLOCK_FORMATS:
        raw = gguf.quantize(values, BLOCK_FORMATS[format])
        return Weight(format, raw, gguf.dequantize(raw, BLOCK_FORMATS[format]))
    if format == "q8_channel":
        scales = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
        return Weight(format, values.view(np.uint8), np.rint(values / scales) * scales)
    if format == "float16":
        halves = values.astype(np.float16)
        return Weight(format, halves.view(np.uint8), halves.astype(np.float32))
    if format == "bfloat16":
        high = (values.view(np.uint32) >> 16).astype(np.uint16)
        return Weight(format, high.view(np.uint8), (high.astype(np.uint32) << 16).view(np.float32))
    return Weight(format, values.view(np.uint8), values)


def random_super_blocks(format: str, n: int, k: int, seed: int) -> Weight:
    """Random bytes but for the float16, which are small: the `gguf` package does not write these formats."""
    rng, kind = np.random.default_rng(seed), SUPER_FORMATS[format]
    blocks = rng.integers(0, 256, (n * k // 256, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for at in HALVES_AT[format]:
        halves = (rng.uniform(0.5, 1.5, (len(blocks), 1)) * 1e-3).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8)
    raw = blocks.reshape(n, -1)
    return Weight(format, raw, gguf.dequantize(raw, kind))


def quantised_inputs(x: Floats, format: str) -> Floats:
    """What is multiplied: bfloat16; in integer formats int8 per block, scale = max |x| / 127, rounded half to even, or
    int16 if wide."""
    if format == ROUNDED:
        return bfloat16_values(bfloat16_bits(x.copy()))
    levels = np.float32(32767 if format.endswith(WIDE) else 127)
    block = {"q8_channel": 64, "q6_k": 16}.get(format.removesuffix(WIDE), 32)
    m, k = x.shape
    padded = np.zeros((m, -(-k // block) * block), np.float32)
    padded[:, :k] = x
    blocks = padded.reshape(m, -1, block)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    inverse = np.where(largest > 0, levels / np.where(largest > 0, largest, np.float32(1)), np.float32(0))
    q = np.rint(blocks * inverse.astype(np.float32))
    return (q * (largest / levels)).reshape(m, -1)[:, :k]


def inputs(m: int, k: int, seed: int) -> Floats:
    return np.random.default_rng(seed + 1).standard_normal((m, k)).astype(np.float32)


def multiply(linear: Any, x: Floats, **options: Any) -> Floats:
    y = np.full((len(x), linear.n), np.nan, np.float32)
    linear.multiply(x, y, **options)
    return y


def lengths(format: str) -> st.SearchStrategy[int]:
    stored = format.removesuffix(WIDE)
    if stored in SUPER_FORMATS:
        return st.integers(1, 4).map(lambda n: 256 * n)
    return st.integers(1, 8).map(lambda n: 32 * n) if stored in BLOCK_FORMATS else st.integers(1, 200)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[str, int, int, int, int]:
    format = draw(st.sampled_from(FORMATS))
    return format, draw(st.integers(1, 70)), draw(lengths(format)), draw(st.integers(1, 40)), draw(st.integers(0, 99))


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60, deadline=None)
@given(shape=shapes())
def test_products_equal_numpy_on_the_same_quantised_inputs(path: str, shape: tuple[str, int, int, int, int]) -> None:
    """The integer part is exact, so only float32 rounding of the sum over blocks (or over k) is left."""
    format, n, k, m, seed = shape
    weight, x = make_weight(format, n, k, seed), inputs(m, k, seed)
    seen = x if format in FLOAT_FORMATS else quantised_inputs(x, format)
    expected = seen.astype(np.float64) @ weight.values.T.astype(np.float64)
    np.testing.assert_allclose(multiply(weight.packed(path), x), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=25, deadline=None)
@given(shape=shapes())
def test_unpacking_a_row_gives_its_dequantised_numbers(path: str, shape: tuple[str, int, int, int, int]) -> None:
    format, n, k, _, seed = shape
    weight = make_weight(format, n, k, seed)
    linear = weight.packed(path)
    rows = np.empty((n, k), np.float32)
    for row in range(n):
        linear.unpack_row(row, rows[row])
    np.testing.assert_array_equal(rows, weight.values)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60, deadline=None)
@given(shape=shapes(), data=st.data())
def test_a_row_has_the_same_bits_alone_in_a_batch_and_in_any_part_of_the_panels(
    path: str, shape: tuple[str, int, int, int, int], data: st.DataObject
) -> None:
    """Red when a kernel for many rows accumulates in another order than the one for few."""
    format, n, k, m, seed = shape
    linear, x = make_weight(format, n, k, seed).packed(path), inputs(m, k, seed)
    whole = multiply(linear, x)
    row = data.draw(st.integers(0, m - 1))
    np.testing.assert_array_equal(multiply(linear, x[row : row + 1]), whole[row : row + 1])
    cut = data.draw(st.integers(0, m))
    parts = [multiply(linear, part) for part in (x[:cut], x[cut:]) if len(part)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    panel = data.draw(st.integers(0, linear.num_panels))
    y = np.full((m, n), np.nan, np.float32)
    linear.multiply(x, y, end_panel=panel)
    untouched = y[:, panel * linear.panel_rows :]
    assert np.isnan(untouched).all()
    linear.multiply(x, y, first_panel=panel, prepare_groups=1)
    np.testing.assert_array_equal(y, whole)


@pytest.mark.parametrize("format", FORMATS)
def test_many_rows_and_a_long_k_have_the_bits_of_one_row(path: str, format: str) -> None:
    """Long enough that a fast path works in stretches of k and in several passes over the rows."""
    n, m = (40, 150) if path != "portable" else (24, 30)
    k = 1280 if format.removesuffix(WIDE) in SUPER_FORMATS else 1216
    linear, x = make_weight(format, n, k, 5).packed(path), inputs(m, k, 5)
    alone = np.concatenate([multiply(linear, x[row : row + 1]) for row in range(m)])
    np.testing.assert_array_equal(multiply(linear, x), alone)


@settings(max_examples=40, deadline=None)
@given(shape=shapes())
def test_all_paths_agree_to_the_bit(shape: tuple[str, int, int, int, int]) -> None:
    """A request may move between workers on different processors without a changed token."""
    format, n, k, m, seed = shape
    weight, x = make_weight(format, n, k, seed), inputs(m, k, seed)
    results = [multiply(weight.packed(path), x) for path in PATHS]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("m", [1, 3, 29])
def test_what_is_below_the_least_normal_number_counts_as_zero_alike_on_all_paths(m: int) -> None:
    """Red when a path keeps what AVX512_BF16 flushes, in weights, inputs, sums, a bias or outputs."""
    rng = np.random.default_rng(m)
    n, k = 21, 70
    weights = (rng.integers(1, 1 << 16, (n, k)) & 0x807F | rng.choice([0, 60, 64], (n, k)) << 7).astype(np.uint16)
    bits = rng.integers(0, 1 << 23, (m, k), np.uint32) | (rng.choice([0, 60, 64], (m, k)) << 23).astype(np.uint32)
    x = (bits | rng.integers(0, 2, (m, k), np.uint32) << 31).view(np.float32)
    bias = (rng.integers(0, 1 << 24, n, np.uint32)).view(np.float32)
    results = []
    for path in PATHS:
        linear = native.PackedLinear(path, ROUNDED, weights.view(np.uint8), k)
        y = np.full((m, n), 1e-39, np.float32)
        linear.multiply(x, y, bias=bias, accumulate=True)
        results.append(np.concatenate([y, multiply(linear, x)]).view(np.uint32))
    magnitudes = results[0] & 0x7FFFFFFF
    assert (magnitudes == 0).any() and not ((magnitudes > 0) & (magnitudes < 0x00800000)).any()
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=25, deadline=None)
@given(shape=shapes(), slack=st.integers(0, 9))
def test_bias_accumulation_and_strides(path: str, shape: tuple[str, int, int, int, int], slack: int) -> None:
    format, n, k, m, seed = shape
    linear, rng = make_weight(format, n, k, seed).packed(path), np.random.default_rng(seed)
    wide = rng.standard_normal((m, k + slack)).astype(np.float32)
    bias = rng.standard_normal(n).astype(np.float32)
    before = rng.standard_normal((m, n + slack)).astype(np.float32)
    plain = multiply(linear, np.ascontiguousarray(wide[:, :k]))
    for options, expected in (
        ({}, plain),
        ({"bias": bias}, plain + bias),
        ({"accumulate": True}, before[:, :n] + plain),
        ({"bias": bias, "accumulate": True}, before[:, :n] + (plain + bias)),
    ):
        y = before.copy()
        linear.multiply(wide[:, :k], y[:, :n], **options)
        np.testing.assert_array_equal(y[:, :n], expected)
        np.testing.assert_array_equal(y[:, n:], before[:, n:])


@pytest.mark.parametrize("format", FORMATS)
def test_extreme_inputs(path: str, format: str) -> None:
    """Zeros and tiny blocks give zero, the largest nibbles and inputs do not overflow, and a NaN is not lost."""
    k = 256 if format.removesuffix(WIDE) in SUPER_FORMATS else 64
    linear = make_weight(format, 16, k, 3).packed(path)
    np.testing.assert_array_equal(multiply(linear, np.zeros((1, k), np.float32)), 0)
    assert np.isfinite(multiply(linear, np.full((3, k), 1e-40, np.float32))).all()
    large = Weight(format, *_largest(format, 16, k))
    y = multiply(large.packed(path), np.full((5, k), 3.0, np.float32))
    np.testing.assert_allclose(y, np.broadcast_to(3.0 * large.values.sum(axis=1), (5, 16)), rtol=1e-5)
    for bad in (np.nan, np.inf, -np.inf):
        x = np.ones((2, k), np.float32)
        x[1, 37] = bad
        y = multiply(linear, x)
        assert np.isfinite(y[0]).all()
        assert not np.isfinite(y[1]).any()


def _largest(format: str, n: int, k: int) -> tuple[npt.NDArray[np.uint8], Floats]:
    """Rows whose stored integers all have the largest magnitude, such as 15, -8, -32 and -128 (-127 per channel)."""
    scale = np.float16(0.5).tobytes()
    blocks = {
        "q4_1": scale + np.float16(-1).tobytes() + b"\xff" * 16,
        "q4_0": scale + b"\x00" * 16,
        "q8_0": scale + b"\x80" * 32,
        "q5_0": scale + b"\x00" * 20,
        "q5_1": scale + np.float16(-1).tobytes() + b"\xff" * 20,
        "q4_k": scale + np.float16(-1).tobytes() + b"\xff" * 140,
        "q5_k": scale + np.float16(-1).tobytes() + b"\xff" * 172,
        "q6_k": b"\x00" * 192 + b"\x80" * 16 + scale,
    }
    stored = format.removesuffix(WIDE)
    if stored not in blocks:
        weight = make_weight(format, n, k, 0)
        values = np.full((n, k), -2.0, np.float32)
        if stored in ("float32", "q8_channel"):
            return values.view(np.uint8), values
        return weight.raw, weight.values
    raw = np.tile(np.frombuffer(blocks[stored], np.uint8), (n, k // (256 if stored in SUPER_FORMATS else 32)))
    return raw, gguf.dequantize(raw, (BLOCK_FORMATS | SUPER_FORMATS)[stored])


@pytest.mark.parametrize("format", [*BLOCK_FORMATS, *SUPER_FORMATS])
def test_packed_weights_have_the_size_that_plans_count_with(path: str, format: str) -> None:
    block = HELD[format]
    weight = make_weight(format, 32, 768, 1)
    assert weight.raw.nbytes == 32 * 768 // block.elements * block.stored_bytes
    assert weight.packed(path).packed_bytes == 32 * 768 // block.elements * block.packed_bytes


def test_what_does_not_fit_is_refused(path: str) -> None:
    weight = make_weight("q4_1", 20, 64, 1)
    linear = weight.packed(path)
    x, y = np.ones((2, 64), np.float32), np.ones((2, 20), np.float32)
    for call in (
        lambda: native.PackedLinear(path, "q3_k", weight.raw, 64),
        lambda: native.PackedLinear(path, "q4_1", weight.raw, 96),
        lambda: native.PackedLinear(path, "q4_1", weight.raw, 63),
        lambda: native.PackedLinear("mmx", "q4_1", weight.raw, 64),
        lambda: linear.multiply(x[:, :32], y),
        lambda: linear.multiply(x, y[:1]),
        lambda: linear.multiply(x, np.ones((20, 2), np.float32).T),
        lambda: linear.multiply(x, y, end_panel=3),
        lambda: linear.multiply(x, y, first_panel=2, end_panel=1),
        lambda: linear.multiply(x, y, bias=np.ones(19, np.float32)),
        lambda: linear.unpack_row(20, np.ones(64, np.float32)),
        lambda: linear.unpack_row(0, np.ones(63, np.float32)),
    ):
        with pytest.raises(ValueError):
            call()
