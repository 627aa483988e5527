"""What layers keep of a full pool: red when a window is counted as long as its sequence, once for all sequences, or a
state not at all, and when layers come to more than the pool has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.core.kv import KVGroup, KVLayout
from relevo.policy.perf.layer_cache import layer_cache_bytes

SIZE, STEP = 16, 64
FULL, WINDOW = KVGroup.full((0, 2), 2, 8), KVGroup.window((1, 3), 2, 8, 128)
TOKEN_BYTES = 2 * 2 * 8 * 2  # of a layer


def layout(*groups: KVGroup) -> KVLayout:
    return KVLayout("hash", "bfloat16", SIZE, groups)


@pytest.mark.parametrize(
    ("length", "num_sequences", "num_kept"),
    [
        (64, 10, 64),  # shorter than the window
        (1024, 10, 128),
        (16 * 1024, 1, 128),
    ],
)
def test_windows_keep_their_span_of_every_sequence(length: int, num_sequences: int, num_kept: int) -> None:
    most_of_window = min(length // SIZE, (128 - 1 + STEP) // SIZE + 2)
    num_blocks = num_sequences * (length // SIZE + most_of_window)
    found = layer_cache_bytes(layout(FULL, WINDOW), num_blocks, length, STEP)
    assert found[0] == found[2] == num_sequences * length * TOKEN_BYTES
    assert found[1] == found[3] == num_sequences * num_kept * TOKEN_BYTES


def test_states_have_their_size_once_for_each_sequence() -> None:
    state = KVGroup.state((1,), 1000)
    found = layer_cache_bytes(layout(FULL, state), 4 * (8 + 1), 8 * SIZE, STEP)
    assert found == {0: 4 * 128 * TOKEN_BYTES, 2: 4 * 128 * TOKEN_BYTES, 1: 4 * 1000}


@given(st.integers(1, 5000), st.integers(1, 500), st.integers(1, 300))
def test_layers_keep_no_more_than_the_pool_has(length: int, num_blocks: int, span: int) -> None:
    made = layout(FULL, KVGroup.chunk((1,), 2, 8, span), KVGroup.window((3,), 2, 8, span))
    found = layer_cache_bytes(made, num_blocks, length, STEP)
    assert sorted(found) == [0, 1, 2, 3]
    assert 0 < sum(found.values()) <= num_blocks * made.bytes_per_block * (1 + 1e-9)
    assert found[0] >= found[1] > 0
