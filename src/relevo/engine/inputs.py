"""A step plan as arrays: what a model needs to compute the rows of one step, in numpy.

Owns the packing of rows into flat arrays. It does not know the model, the backend or why a row was scheduled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relevo.core.ids import BlockId
from relevo.core.plan import ScheduledRow

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """T tokens in the step, B rows, M blocks of the longest row. Tokens of one row are consecutive, rows in order."""

    token_ids: Int64Array  # [T]
    positions: Int64Array  # [T], of each token in its own row's context
    block_of_token: Int64Array  # [T], block that receives the token's KV
    offset_of_token: Int64Array  # [T], place in that block
    row_first_token: Int64Array  # [B + 1], row b owns tokens [row_first_token[b], row_first_token[b + 1])
    context_lengths: Int64Array  # [B], tokens a row attends to, those of this step included
    block_tables: Int64Array  # [B, M], padded with block 0 beyond a row's context
    block_size: int  # S

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        return len(self.context_lengths)

    def fresh_tail_blocks(self) -> list[BlockId]:
        """Last blocks of rows that this step enters at their first slot and does not fill."""
        last_tokens = self.row_first_token[1:] - 1
        used = self.offset_of_token[last_tokens] + 1  # slots of the last block in use after this step
        is_fresh = (used < self.block_size) & (used <= np.diff(self.row_first_token))
        blocks: list[BlockId] = self.block_of_token[last_tokens[is_fresh]].tolist()
        return blocks


def pack_rows(rows: Sequence[ScheduledRow], block_size: int) -> StepInputs:
    """Flatten at least one row. A row whose block table is shorter than its context is a scheduler's mistake."""
    if all(len(row.token_ids) == 1 for row in rows):
        return _pack_single_tokens(rows, block_size)
    lengths = np.array([len(row.token_ids) for row in rows], dtype=np.int64)
    starts = np.array([row.start for row in rows], dtype=np.int64)
    context_lengths = starts + lengths
    num_blocks = -(-context_lengths // block_size)
    block_tables = np.zeros((len(rows), int(num_blocks.max())), dtype=np.int64)
    for index, row in enumerate(rows):
        count = int(num_blocks[index])
        assert len(row.block_ids) >= count, f"{row.request_id}: {len(row.block_ids)} blocks for {count} needed"
        block_tables[index, :count] = row.block_ids[:count]
    row_first_token = np.concatenate(([0], np.cumsum(lengths)))
    row_of_token = np.repeat(np.arange(len(rows)), lengths)
    positions = np.arange(row_first_token[-1]) - (row_first_token[:-1] - starts)[row_of_token]
    return StepInputs(
        token_ids=np.concatenate([np.asarray(row.token_ids, dtype=np.int64) for row in rows]),
        positions=positions,
        block_of_token=block_tables[row_of_token, positions // block_size],
        offset_of_token=positions % block_size,
        row_first_token=row_first_token,
        context_lengths=context_lengths,
        block_tables=block_tables,
        block_size=block_size,
    )


def _pack_single_tokens(rows: Sequence[ScheduledRow], block_size: int) -> StepInputs:
    """A step of decodes only: nothing is repeated or summed, so one array is filled from plain integers."""
    counts = [row.start // block_size + 1 for row in rows]
    for row, count in zip(rows, counts, strict=True):
        assert len(row.block_ids) >= count, f"{row.request_id}: {len(row.block_ids)} blocks for {count} needed"
    block_tables = np.zeros((len(rows), max(counts)), dtype=np.int64)
    for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
        block_tables[index, :count] = row.block_ids[:count]
    columns = np.array(
        [
            [row.token_ids[0] for row in rows],
            [row.start for row in rows],
            [row.block_ids[row.start // block_size] for row in rows],
            [row.start % block_size for row in rows],
            [row.start + 1 for row in rows],
        ],
        dtype=np.int64,
    )
    return StepInputs(
        token_ids=columns[0],
        positions=columns[1],
        block_of_token=columns[2],
        offset_of_token=columns[3],
        row_first_token=np.arange(len(rows) + 1),
        context_lengths=columns[4],
        block_tables=block_tables,
        block_size=block_size,
    )
