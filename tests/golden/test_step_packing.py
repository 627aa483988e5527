"""Arrays that are used again in every step hold what arrays made anew would hold."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from tiny_decoders import BLOCK_SIZE, row

from relevo.core.plan import ScheduledRow
from relevo.engine.inputs import StepInputs, StepPacker, pack_rows


def assert_same(inputs: StepInputs, rows: Sequence[ScheduledRow]) -> None:
    """Against the way that steps with chunks take; tables as far as their rows' contexts reach."""
    num_groups = len(rows[0].tables)
    chunk = row([1, 2], 0, [0])._replace(more_block_ids=([0],) * (num_groups - 1))
    whole = pack_rows([*rows, chunk], BLOCK_SIZE)
    count = len(rows)
    for name in ("token_ids", "positions", "offset_of_token", "context_lengths"):
        assert getattr(inputs, name).tolist() == getattr(whole, name).tolist()[:count], name
    assert inputs.block_of_token.tolist() == whole.block_of_token[:, :count].tolist()
    assert inputs.row_first_token.tolist() == list(range(count + 1))
    assert inputs.num_groups == whole.num_groups == num_groups
    for tables, expected in zip(inputs.block_tables, whole.block_tables, strict=True):
        for index, context in enumerate(inputs.context_lengths):
            num_blocks = -(-int(context) // BLOCK_SIZE)
            assert tables[index, :num_blocks].tolist() == expected[index, :num_blocks].tolist()
    fresh = np.array(whole.fresh_tail_blocks()).reshape(num_groups, -1)
    assert np.array(inputs.fresh_tail_blocks()).reshape(num_groups, -1).tolist() == fresh[:, :-1].tolist()


def test_decodes_alone_are_packed_as_beside_a_chunk() -> None:
    rows = [row([7], 3, [5, 2]), row([4], 8, [1, 3, 6, 99]), row([9], 0, [8])]
    inputs = pack_rows(rows, BLOCK_SIZE)
    assert_same(inputs, rows)
    assert inputs.fresh_tail_blocks() == [[6, 8]]


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


def test_every_group_has_tables_of_its_own() -> None:
    """What has slid out of a window stays what it was, and is no block of the arena."""
    whole, window = [5, 2, 9], [-1, 7, 4]
    rows = [row([7], 8, whole)._replace(more_block_ids=(window,)), row([3], 1, [1])._replace(more_block_ids=([6],))]
    inputs = pack_rows(rows, BLOCK_SIZE)
    assert_same(inputs, rows)
    assert inputs.block_of_token.tolist() == [[9, 1], [4, 6]]
    assert inputs.fresh_tail_blocks() == [[9], [4]]
    assert inputs.block_tables[1, 0, :3].tolist() == window
    longer = [row([7, 8], 8, whole)._replace(more_block_ids=(window,))]
    assert pack_rows(longer, BLOCK_SIZE).block_tables.tolist() == [[whole], [window]]


@pytest.mark.parametrize("num_groups", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_a_batch_that_comes_and_goes(seed: int, num_groups: int) -> None:
    """Rows grow, end, start and change places. Red if a table is kept that is another row's or has grown."""
    rng, packer = random.Random(seed), StepPacker(BLOCK_SIZE)
    batch: list[tuple[int, tuple[list[int], ...]]] = []  # (start, tables)
    for _ in range(60):
        if not batch or (len(batch) < 5 and rng.random() < 0.2):
            start = rng.randrange(30)
            lengths = [start // BLOCK_SIZE + rng.randrange(1, 3) for _ in range(num_groups)]
            batch.append((start, tuple([rng.randrange(100) for _ in range(length)] for length in lengths)))
        elif len(batch) > 1 and rng.random() < 0.2:
            batch.pop(rng.randrange(len(batch)))
        if rng.random() < 0.1:
            rng.shuffle(batch)
        rows = [
            row([rng.randrange(100)], start, first)._replace(more_block_ids=tuple(others))
            for start, (first, *others) in batch
        ]
        assert_same(packer.pack(rows), rows)
        if rng.random() < 0.1:
            chunk = [row([3, 4, 5], 0, [7])._replace(more_block_ids=([7],) * (num_groups - 1))]
            assert packer.pack([*rows, *chunk]).num_tokens == len(rows) + 3
        batch = [(start + 1, tuple(grown(each, start + 2, rng) for each in tables)) for start, tables in batch]


def grown(blocks: list[int], num_tokens: int, rng: random.Random) -> list[int]:
    return blocks if len(blocks) * BLOCK_SIZE >= num_tokens else [*blocks, rng.randrange(100)]
