"""Writes the rows of a step into a plan: of each sequence only what the runner does not know yet.

Owns which sequences the runner was told of, and how much of their block tables. Decides nothing about what is computed.
"""

from __future__ import annotations

from relevo.core.ids import SequenceId
from relevo.core.plan import NewBlocks, NewSequence, StepPlan
from relevo.policy.worker.worker_requests import Sequence


class PlanWriter:
    def __init__(self) -> None:
        self._last_id: SequenceId = 0

    def add(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> None:
        """A row of the next `num_tokens` tokens; the sequence holds blocks for them."""
        if not sequence.sequence_id:
            self._introduce(plan, sequence)
        elif sequence.has_new_blocks:
            _tell_blocks(plan, sequence)
        plan.block_copies += sequence.copies
        sequence.is_in_step = True
        start, token_ids = sequence.num_computed, sequence.token_ids
        end = start + num_tokens
        plan.sequence_ids.append(sequence.sequence_id)
        plan.starts.append(start)
        plan.lengths.append(num_tokens)
        plan.last_token_ids.append(token_ids[end - 1])
        samples = sequence.samples if end == len(token_ids) else ()
        plan.num_draws.append(len(samples))
        if len(samples) == 1:
            plan.sample_indices.append(samples[0].sample_index)
        else:
            plan.sample_indices += [sample.sample_index for sample in samples]

    def _introduce(self, plan: StepPlan, sequence: Sequence) -> None:
        self._last_id += 1
        sequence.sequence_id = self._last_id
        sequence.num_told_blocks, sequence.has_new_blocks = len(sequence.block_ids), False
        request, outputs = sequence.parent.request, sequence.token_ids[sequence.parent.num_prompt_tokens :]
        tables = [sequence.block_ids, *(table.block_ids for table in sequence.more)]
        for table in sequence.more:
            table.num_told = len(table.block_ids)
        plan.new.append(NewSequence(sequence.sequence_id, request, outputs, tables))


def _tell_blocks(plan: StepPlan, sequence: Sequence) -> None:
    sequence.has_new_blocks = False
    first = sequence.num_told_blocks
    if first < len(sequence.block_ids):
        plan.new_blocks.append(NewBlocks(sequence.sequence_id, 0, first, sequence.block_ids[first:]))
        sequence.num_told_blocks = len(sequence.block_ids)
    for group, table in enumerate(sequence.more, start=1):
        if table.num_told < len(table.block_ids):
            added = table.block_ids[table.num_told :]
            plan.new_blocks.append(NewBlocks(sequence.sequence_id, group, table.num_told, added))
            table.num_told = len(table.block_ids)
