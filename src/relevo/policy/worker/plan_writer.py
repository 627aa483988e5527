"""Writes the rows of a step into a plan: of each sequence only what the runner does not know yet.

Owns which sequences the runner was told of, and how much of their block tables. Decides nothing about what is computed.
"""

from __future__ import annotations

from relevo.core.ids import SequenceId
from relevo.core.plan import NewBlocks, NewSequence, StepPlan
from relevo.policy.worker.worker_requests import Sequence


class PlanWriter:
    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._last_id: SequenceId = 0

    def add(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> None:
        """A row of the next `num_tokens` tokens; the sequence holds blocks for them."""
        if not sequence.sequence_id:
            self._introduce(plan, sequence)
        elif len(sequence.block_ids) != sequence.num_told_blocks:
            _tell_blocks(plan, sequence)
        sequence.is_in_step = True
        start, token_ids = sequence.num_computed, sequence.token_ids
        end = start + num_tokens
        plan.sequence_ids.append(sequence.sequence_id)
        plan.starts.append(start)
        plan.lengths.append(num_tokens)
        plan.last_token_ids.append(token_ids[end - 1])
        if end == len(token_ids):
            samples = sequence.samples
            plan.num_draws.append(len(samples))
            plan.sample_indices += [sample.sample_index for sample in samples]
        else:
            plan.num_draws.append(0)

    def _introduce(self, plan: StepPlan, sequence: Sequence) -> None:
        self._last_id += 1
        sequence.sequence_id = self._last_id
        sequence.num_told_blocks = len(sequence.block_ids)
        request, outputs = sequence.parent.request, sequence.token_ids[sequence.parent.num_prompt_tokens :]
        plan.new.append(NewSequence(sequence.sequence_id, request, outputs, [sequence.block_ids]))
        if sequence.copy_source is not None:
            target = sequence.block_ids[sequence.num_computed // self._block_size]
            plan.block_copies.append((sequence.copy_source, target))


def _tell_blocks(plan: StepPlan, sequence: Sequence) -> None:
    first = sequence.num_told_blocks
    plan.new_blocks.append(NewBlocks(sequence.sequence_id, 0, first, sequence.block_ids[first:]))
    sequence.num_told_blocks = len(sequence.block_ids)
