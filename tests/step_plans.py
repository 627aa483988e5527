"""Plans written by hand, as rows that stand for themselves: each of a sequence that the runner does not know yet."""

from __future__ import annotations

from collections.abc import Sequence

from relevo.core.ids import BlockId
from relevo.core.plan import NewSequence, ScheduledRow, StepPlan


def plan_of(*rows: ScheduledRow, step_id: int = 5, copies: Sequence[tuple[BlockId, BlockId]] = ()) -> StepPlan:
    """The tokens of a row are what its prompt and the outputs of its first continuation say at these positions."""
    return StepPlan(
        step_id=step_id,
        new=[
            NewSequence(sequence_id, row.request, _outputs(row), [*row.tables])
            for sequence_id, row in enumerate(rows, start=1)
        ],
        block_copies=list(copies),
        sequence_ids=list(range(1, len(rows) + 1)),
        starts=[row.start for row in rows],
        lengths=[len(row.token_ids) for row in rows],
        last_token_ids=[row.token_ids[-1] for row in rows],
        num_draws=[len(row.samples) for row in rows],
        sample_indices=[sample.sample_index for row in rows for sample in row.samples],
    )


def _outputs(row: ScheduledRow) -> list[int]:
    """What was drawn up to the end of the row, which is not always told by samples: a row may draw nothing."""
    prompt, end = row.request.prompt_token_ids, row.start + len(row.token_ids)
    drawn = [*(row.samples[0].output_token_ids if row.samples else ())]
    beyond = max(0, end - len(prompt))
    return drawn[:beyond] if len(drawn) >= beyond else row.token_ids[-beyond:]
