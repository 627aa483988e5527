"""The operations between matrix products against numpy in double precision, on every path of this machine.

Red when: a tail shorter than a vector is dropped or overrun, a stride is ignored, a row's result depends on the other
rows, the vector exponential loses its range or its precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

native = pytest.importorskip("relevo_native._native")

PATHS = native.available_paths()
Floats = npt.NDArray[np.float32]

each_path = pytest.mark.parametrize("path", PATHS)
quick = settings(max_examples=40, deadline=None)
shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "num_rows": st.integers(1, 7),
        "size": st.integers(1, 150),
        "extra": st.integers(0, 9),
    }
)


def _normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _some_rows(num_rows: int, seed: int) -> tuple[int, int]:
    first = seed % num_rows
    return first, first + 1 + (seed // 7) % (num_rows - first)


def _only(changed: Floats, original: Floats, rows: slice, columns: slice) -> bool:
    """Whether nothing outside [rows, columns] differs."""
    restored = changed.copy()
    restored[rows, columns] = original[rows, columns]
    return np.array_equal(restored, original)


@each_path
@quick
@given(shape=shapes)
def test_rms_norm(path: str, shape: dict[str, int]) -> None:
    seed, num_rows, size = shape["seed"], shape["num_rows"], shape["size"]
    x, weight = _normal(seed, num_rows, size + shape["extra"]), _normal(seed + 1, size)
    out = _normal(seed + 2, num_rows, size + 3)
    before, (first, end) = out.copy(), _some_rows(num_rows, seed)
    native.rms_norm(path, x, weight, 1e-5, out, first, end)
    wide = x[first:end, :size].astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(out[first:end, :size], expected, rtol=2e-6, atol=1e-7)
    assert _only(out, before, slice(first, end), slice(0, size))
    in_place = x.copy()
    native.rms_norm(path, in_place, weight, 1e-5, in_place, first, end)
    assert np.array_equal(in_place[first:end, :size], out[first:end, :size])
    alone = np.zeros((1, size), dtype=np.float32)
    native.rms_norm(path, x[first : first + 1].copy(), weight, 1e-5, alone, 0, 1)
    assert np.array_equal(alone[0], out[first, :size])


@each_path
@quick
@given(shape=shapes)
def test_add(path: str, shape: dict[str, int]) -> None:
    seed, num_rows, size = shape["seed"], shape["num_rows"], shape["size"]
    x, y = _normal(seed, num_rows, size + shape["extra"]), _normal(seed + 1, num_rows, size + 2)
    before, (first, end) = x.copy(), _some_rows(num_rows, seed)
    native.add(path, x, y, size, first, end)
    assert np.array_equal(x[first:end, :size], before[first:end, :size] + y[first:end, :size])
    assert _only(x, before, slice(first, end), slice(0, size))


@each_path
@quick
@given(shape=shapes)
def test_silu_mul(path: str, shape: dict[str, int]) -> None:
    seed, num_rows, size = shape["seed"], shape["num_rows"], shape["size"]
    x = _normal(seed, num_rows, 2 * size + shape["extra"]) * 8
    out = _normal(seed + 1, num_rows, size + 1)
    before, (first, end) = out.copy(), _some_rows(num_rows, seed)
    native.silu_mul(path, x, size, out, first, end)
    gate, up = x[first:end, :size].astype(np.float64), x[first:end, size : 2 * size].astype(np.float64)
    np.testing.assert_allclose(out[first:end, :size], gate / (1 + np.exp(-gate)) * up, rtol=6e-7, atol=1e-37)
    assert _only(out, before, slice(first, end), slice(0, size))


@each_path
@quick
@given(shape=shapes, is_silu=st.booleans(), has_one_score=st.booleans())
def test_gate(path: str, shape: dict[str, int], is_silu: bool, has_one_score: bool) -> None:
    seed, num_rows, size = shape["seed"], shape["num_rows"], shape["size"]
    x = _normal(seed, num_rows, size + shape["extra"])
    scores = _normal(seed + 1, num_rows, 1 if has_one_score else size + 2) * 8
    out = _normal(seed + 2, num_rows, size + 3)
    before, (first, end) = out.copy(), _some_rows(num_rows, seed)
    native.gate(path, x, scores, is_silu, size, out, first, end)
    score = scores[first:end, : 1 if has_one_score else size].astype(np.float64)
    expected = x[first:end, :size] / (1 + np.exp(-score)) * (score if is_silu else 1.0)
    np.testing.assert_allclose(out[first:end, :size], expected, rtol=6e-7, atol=1e-37)
    assert _only(out, before, slice(first, end), slice(0, size))


@each_path
def test_silu_of_extremes(path: str) -> None:
    """Where exp(-x) is infinite or 0 the result is -0 or x itself; what is not a number stays so."""
    gate = np.array([-np.inf, -3e38, -104.0, -89.0, -1e-38, 0.0, 1e-38, 89.0, 3e38, np.inf, np.nan], dtype=np.float32)
    out = np.empty((1, len(gate)), dtype=np.float32)
    native.silu_mul(path, np.concatenate([gate, np.ones_like(gate)])[None], len(gate), out, 0, 1)
    assert np.array_equal(out[0, [1, 2, 5, 7, 8, 9]], np.array([-0.0, -0.0, 0.0, 89.0, 3e38, np.inf], np.float32))
    assert np.isnan(out[0, [0, 10]]).all()  # -inf * 0 is not a number either
    np.testing.assert_allclose(out[0, 3], -89 * np.exp(np.float64(-89)), rtol=1e-6, atol=3e-37)


@each_path
def test_exponential_is_within_two_units_in_the_last_place(path: str) -> None:
    """silu(x) / x = 1 / (1 + exp(-x)) cannot show it, but for x -> -inf silu(x) -> x * exp(x)."""
    x = -np.linspace(20, 86, 40_000, dtype=np.float32)
    out = np.empty((1, len(x)), dtype=np.float32)
    native.silu_mul(path, np.concatenate([x, np.ones_like(x)])[None], len(x), out, 0, 1)
    exact = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    units = np.abs(out[0] - exact) / np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert units.max() <= 3.0  # of exp 2, and half of one each for the sum and the quotient


@each_path
@quick
@given(
    seed=st.integers(0, 2**32 - 1),
    num_rows=st.integers(1, 5),
    num_heads=st.integers(0, 4),
    half=st.integers(1, 40),
    extra=st.integers(0, 5),
)
def test_rope(path: str, seed: int, num_rows: int, num_heads: int, half: int, extra: int) -> None:
    x = _normal(seed, num_rows, num_heads * 2 * half + extra)
    angle = _normal(seed + 1, num_rows, half).astype(np.float64) * 3
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    before, (first, end) = x.copy(), _some_rows(num_rows, seed)
    native.rope(path, x, num_heads, cos, sin, first, end)
    heads = before[first:end, : num_heads * 2 * half].reshape(end - first, num_heads, 2, half).astype(np.float64)
    c, s = cos[first:end, None].astype(np.float64), sin[first:end, None].astype(np.float64)
    low, high = heads[:, :, 0], heads[:, :, 1]
    expected = np.stack([low * c - high * s, high * c + low * s], axis=2).reshape(end - first, -1)
    np.testing.assert_allclose(x[first:end, : num_heads * 2 * half], expected, rtol=0, atol=1e-6)
    assert _only(x, before, slice(first, end), slice(0, num_heads * 2 * half))


def test_rope_angles_are_float32_products() -> None:
    positions = np.array([0, 1, 7, 2047, 8191, 131071], dtype=np.int64)
    inv_freq = (10000.0 ** (-np.arange(32) / 32)).astype(np.float32)
    cos, sin = (np.empty((len(positions), 32), dtype=np.float32) for _ in range(2))
    native.rope_angles(positions, inv_freq, 1.25, cos, sin)
    angle = (positions[:, None].astype(np.float32) * inv_freq).astype(np.float64)
    assert np.array_equal(cos, (np.cos(angle) * 1.25).astype(np.float32))
    assert np.array_equal(sin, (np.sin(angle) * 1.25).astype(np.float32))


def _zeros(*shape: int) -> Floats:
    return np.zeros(shape, dtype=np.float32)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("rms_norm", (_zeros(2, 4), _zeros(5), 1e-5, _zeros(2, 5), 0, 2)),
        ("rms_norm", (_zeros(2, 4), _zeros(4), 1e-5, _zeros(1, 4), 0, 2)),
        ("rms_norm", (_zeros(2, 4), _zeros(4), 1e-5, _zeros(2, 4), 1, 3)),
        ("add", (_zeros(2, 4), _zeros(2, 3), 4, 0, 2)),
        ("silu_mul", (_zeros(2, 7), 4, _zeros(2, 4), 0, 2)),
        ("gate", (_zeros(2, 4), _zeros(2, 3), False, 4, _zeros(2, 4), 0, 2)),
        ("gate", (_zeros(2, 4), _zeros(1, 4), False, 4, _zeros(2, 4), 0, 2)),
        ("gate", (_zeros(2, 4), _zeros(2, 4), False, 4, _zeros(2, 3), 0, 2)),
        ("rope", (_zeros(2, 7), 2, _zeros(2, 2), _zeros(2, 2), 0, 2)),
        ("rope", (_zeros(2, 8), 2, _zeros(2, 2), _zeros(2, 1), 0, 2)),
    ],
)
def test_what_does_not_fit_is_refused(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError):
        getattr(native, name)(PATHS[0], *arguments)


def test_an_unknown_path_is_refused() -> None:
    with pytest.raises(ValueError, match="warp"):
        native.add("warp", _zeros(1, 1), _zeros(1, 1), 1, 0, 1)
