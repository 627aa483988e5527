"""Arrays that are used again in every step hold what arrays made anew would hold."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tiny_decoders import BLOCK_SIZE, row

from relevo.core.plan import ScheduledRow
from relevo.engine.inputs import StepInputs, StepPacker, pack_rows


def assert_same(inputs: StepInputs, rows: Sequence[ScheduledRow]) -> None:
    """Against the way that steps with chunks take; tables as far as their rows' contexts reach."""
    whole = pack_rows([*rows, row([1, 2], 0, [0])], BLOCK_SIZE)
    count = len(rows)
    for name in ("token_ids", "positions", "block_of_token", "offset_of_token", "context_lengths"):
        assert getattr(inputs, name).tolist() == getattr(whole, name).tolist()[:count], name
    assert inputs.row_first_token.tolist() == list(range(count + 1))
    for table, expected, context in zip(inputs.block_tables, whole.block_tables, inputs.context_lengths, strict=False):
        num_blocks = -(-int(context) // BLOCK_SIZE)
        assert table[:num_blocks].tolist() == expected[:num_blocks].tolist()
    assert inputs.fresh_tail_blocks() == whole.fresh_tail_blocks()[:-1]


def test_decodes_alone_are_packed_as_beside_a_chunk() -> None:
    rows = [row([7], 3, [5, 2]), row([4], 8, [1, 3, 6, 99]), row([9], 0, [8])]
    inputs = pack_rows(rows, BLOCK_SIZE)
    assert_same(inputs, rows)
    assert inputs.fresh_tail_blocks() == [6, 8]


def test_arrays_are_used_again_while_they_fit() -> None:
    """Red if every step of a batch pays for new arrays, or if one writes into those of a step that is larger."""
    packer, blocks = StepPacker(BLOCK_SIZE), [5, 2]
    first = packer.pack([row([7], 3, blocks)])
    assert packer.pack([row([8], 4, blocks)]) is first
    assert_same(first, [row([8], 4, blocks)])
    assert packer.pack([row([8], 4, blocks), row([1], 0, [3])]) is not first
    long = list(range(200))
    assert_same(packer.pack([row([7], 3, blocks), row([1], 799, long)]), [row([7], 3, blocks), row([1], 799, long)])


def test_a_table_shorter_than_its_context_is_refused() -> None:
    with pytest.raises(AssertionError, match="1 blocks for 5 tokens"):
        pack_rows([row([7], BLOCK_SIZE, [5])], BLOCK_SIZE)


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_that_comes_and_goes(seed: int) -> None:
    """Rows grow, end, start and change places. Red if a table is kept that is another row's or has grown."""
    rng, packer = random.Random(seed), StepPacker(BLOCK_SIZE)
    batch: list[tuple[int, list[int]]] = []  # (start, blocks)
    for _ in range(60):
        if not batch or (len(batch) < 5 and rng.random() < 0.2):
            start = rng.randrange(30)
            batch.append((start, [rng.randrange(100) for _ in range(start // BLOCK_SIZE + rng.randrange(1, 3))]))
        elif len(batch) > 1 and rng.random() < 0.2:
            batch.pop(rng.randrange(len(batch)))
        if rng.random() < 0.1:
            rng.shuffle(batch)
        rows = [row([rng.randrange(100)], start, blocks) for start, blocks in batch]
        assert_same(packer.pack(rows), rows)
        if rng.random() < 0.1:
            chunk = [row([3, 4, 5], 0, [7])]
            assert packer.pack([*rows, *chunk]).num_tokens == len(rows) + 3
        batch = [(start + 1, grown(blocks, start + 2, rng)) for start, blocks in batch]


def grown(blocks: list[int], num_tokens: int, rng: random.Random) -> list[int]:
    return blocks if len(blocks) * BLOCK_SIZE >= num_tokens else [*blocks, rng.randrange(100)]
