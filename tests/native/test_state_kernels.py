"""The gated delta rule on every path of this machine against numpy in double precision.

Red when: a rest of columns or keys is dropped or overrun, a head takes another's numbers, a state is read that is not
the row's, or the bits of a token depend on how its row is cut into steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plain_states import PlainRule
from relevo.core.kv import DTYPE_BYTES
from relevo.core.model import GatedDelta

native = pytest.importorskip("relevo_native._native")

PATHS = native.available_paths()
Floats = npt.NDArray[np.float32]
GUARD = 64  # bytes around a state that nothing may touch

each_path = pytest.mark.parametrize("path", PATHS)


@dataclass
class Sequence:
    """On one path, with a state that begins as noise."""

    path: str
    rule: PlainRule
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._guarded = np.full(self.rule.sizes.state_bytes(DTYPE_BYTES[self.dtype]) + 2 * GUARD, 0xFF, dtype=np.uint8)
        self.state = self._guarded[GUARD:-GUARD]
        self._num_tokens = 0

    def passed(self, x: Floats, gates: Floats) -> Floats:
        """The next tokens of it."""
        sizes = self.rule.sizes
        out = np.full((len(x), sizes.num_values), np.nan, dtype=np.float32)
        taps, decay = np.ascontiguousarray(self.rule.convolution.T), -np.exp(self.rule.decay)
        by_head = (sizes.num_key_heads, sizes.key_size, sizes.value_size, taps, decay, self.rule.decay_bias)
        is_fresh = self._num_tokens == 0
        native.gated_delta(self.path, self.dtype, *by_head, x, gates, self.state, is_fresh, out)
        self._num_tokens += len(x)
        assert (self._guarded[:GUARD] == 0xFF).all() and (self._guarded[-GUARD:] == 0xFF).all()
        return out

    def in_rows(self, x: Floats, gates: Floats, lengths: list[int]) -> Floats:
        ends = np.cumsum(lengths).tolist()
        parts = [self.passed(x[first:end], gates[first:end]) for first, end in zip([0, *ends], ends, strict=False)]
        return np.concatenate(parts)


def drawn(sizes: GatedDelta, num_tokens: int, seed: int = 1) -> tuple[Floats, Floats]:
    numbers = np.random.default_rng(seed)
    shapes = ((num_tokens, sizes.width), (num_tokens, 2 * sizes.num_value_heads))
    x, gates = (numbers.normal(size=shape).astype(np.float32) for shape in shapes)
    return x, gates


def sizes_of(num_key_heads: int, shared_by: int, key_size: int, value_size: int, kernel_size: int) -> GatedDelta:
    return GatedDelta(
        layers=(0,),
        num_key_heads=num_key_heads,
        num_value_heads=num_key_heads * shared_by,
        key_size=key_size,
        value_size=value_size,
        kernel_size=kernel_size,
    )


LIKE_A_MODEL = sizes_of(2, 2, 128, 128, 4)


@each_path
@settings(max_examples=40, deadline=None)
@given(
    sizes=st.builds(sizes_of, st.integers(1, 3), st.integers(1, 3), *[st.integers(1, 70)] * 2, st.integers(2, 5)),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_of_any_length_give_the_numbers_of_the_whole(
    path: str, sizes: GatedDelta, lengths: list[int], seed: int
) -> None:
    rule, (x, gates) = PlainRule.random(sizes, seed), drawn(sizes, sum(lengths), seed)
    found = Sequence(path, rule).in_rows(x, gates, lengths)
    expected = rule.values(x, gates)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4 * max(1.0, float(np.abs(expected).max())))


@each_path
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("sizes", [LIKE_A_MODEL, sizes_of(2, 3, 21, 45, 3)])
def test_the_cut_of_a_row_changes_no_bit(path: str, dtype: str, sizes: GatedDelta) -> None:
    rule, (x, gates) = PlainRule.random(sizes), drawn(sizes, 100)
    whole = Sequence(path, rule, dtype)
    expected = whole.passed(x, gates)
    assert np.isfinite(expected).all()
    for lengths in ([1] * 100, [2, 3, 31, 1, 32, 1, 30], [33, 67]):
        cut = Sequence(path, rule, dtype)
        assert np.array_equal(cut.in_rows(x, gates, lengths), expected)
        assert np.array_equal(cut.state, whole.state)


@each_path
def test_heads_of_a_model_s_size(path: str) -> None:
    rule, (x, gates) = PlainRule.random(LIKE_A_MODEL), drawn(LIKE_A_MODEL, 20)
    expected = rule.values(x, gates)
    np.testing.assert_allclose(Sequence(path, rule).passed(x, gates), expected, rtol=0, atol=1e-5)


@each_path
def test_inputs_are_rounded_to_what_is_stored(path: str) -> None:
    """Of a row's own tokens, too: else what a step before has stored would be another number than what this one has."""
    rule, (x, gates) = PlainRule.random(LIKE_A_MODEL), drawn(LIKE_A_MODEL, 9)
    rounded = x.astype(np.float16).astype(np.float32)
    assert np.array_equal(Sequence(path, rule, "float16").passed(x, gates), Sequence(path, rule).passed(rounded, gates))


@each_path
def test_a_gate_at_its_ends_keeps_all_or_nothing(path: str) -> None:
    rule, (x, gates) = PlainRule.random(LIKE_A_MODEL), drawn(LIKE_A_MODEL, 6)
    heads = LIKE_A_MODEL.num_value_heads
    gates[2, heads:], gates[3, heads:], gates[4, :heads], gates[5, :heads] = 600, -600, 600, -600
    np.testing.assert_allclose(Sequence(path, rule).passed(x, gates), rule.values(x, gates), rtol=0, atol=1e-5)


def _arguments(**changes: Any) -> list[Any]:
    sizes = sizes_of(2, 2, 8, 8, 4)
    x, gates = drawn(sizes, 3)
    known = {
        "path": PATHS[0],
        "dtype": "float32",
        "num_key_heads": 2,
        "key_size": 8,
        "value_size": 8,
        "convolution": np.zeros((4, sizes.width), np.float32),
        "decay": np.zeros(4, np.float32),
        "decay_bias": np.zeros(4, np.float32),
        "x": x,
        "gates": gates,
        "state": np.zeros(sizes.state_bytes(4), np.uint8),
        "is_fresh": True,
        "out": np.zeros((3, sizes.num_values), np.float32),
    }
    return list((known | changes).values())


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_heads": 3},
        {"key_size": 9},
        {"value_size": 0},
        {"dtype": "int8"},
        {"convolution": np.zeros((4, 63), np.float32)},
        {"convolution": np.zeros((1, 64), np.float32)},
        {"decay_bias": np.zeros(3, np.float32)},
        {"gates": np.zeros((3, 7), np.float32)},
        {"gates": np.zeros((2, 8), np.float32)},
        {"state": np.zeros(8, np.uint8)},
        {"out": np.zeros((3, 31), np.float32)},
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    native.gated_delta(*_arguments())
    with pytest.raises(ValueError):
        native.gated_delta(*_arguments(**changes))
