"""What a runner knows of the sequences that it computes, put together from the differences that plans bring.

Owns the state of one rank: tokens and block tables by sequence. Every rank of a group applies the same plans and has
the same replica. It does not know why rows are scheduled, and decides nothing.
"""

from __future__ import annotations

from itertools import islice

from relevo.core.baton import SampleState
from relevo.core.ids import BlockId, SequenceId, TokenId
from relevo.core.plan import NewSequence, ScheduledRow, StepPlan


class ReplicaSequence:
    __slots__ = ("_samples", "num_prompt_tokens", "num_tokens", "output_token_ids", "request", "tables")

    def __init__(self, new: NewSequence) -> None:
        self.request = new.request
        self.num_prompt_tokens = len(new.request.prompt_token_ids)
        self.output_token_ids = list(new.output_token_ids)  # only grows
        self.num_tokens = self.num_prompt_tokens + len(self.output_token_ids)
        self.tables: list[list[BlockId]] = [list(table) for table in new.tables]  # one per KV group
        self._samples: dict[int, SampleState] = {}

    def sample(self, index: int) -> SampleState:
        """Continuation `index`, whose output so far is that of the sequence; the same object in every step."""
        sample = self._samples.get(index)
        if sample is None:
            sample = self._samples[index] = SampleState(index, self.output_token_ids)
        return sample

    def tokens(self, start: int, end: int) -> list[TokenId]:
        prompt, num_prompt = self.request.prompt_token_ids, self.num_prompt_tokens
        return [*prompt[start:end], *self.output_token_ids[max(0, start - num_prompt) : max(0, end - num_prompt)]]


class Replica:
    def __init__(self) -> None:
        self._sequences: dict[SequenceId, ReplicaSequence] = {}

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    def apply(self, plan: StepPlan) -> list[ReplicaSequence]:
        """Take in what a plan says; the sequence of each of its rows."""
        known = self._sequences
        for sequence_id in plan.removed:
            known.pop(sequence_id, None)
        for new in plan.new:
            known[new.sequence_id] = ReplicaSequence(new)
        for sequence_id, group, first_index, block_ids in plan.new_blocks:
            known[sequence_id].tables[group][first_index:] = block_ids
        sequences = []
        rows = zip(plan.sequence_ids, plan.starts, plan.lengths, plan.last_token_ids, strict=True)
        for sequence_id, start, length, token_id in rows:
            sequence = known[sequence_id]
            if start + length > sequence.num_tokens:
                sequence.output_token_ids.append(token_id)
                sequence.num_tokens += 1
            sequences.append(sequence)
        return sequences

    def rows(self, plan: StepPlan) -> list[ScheduledRow]:
        """As `apply`, with everything that a row computes."""
        indices = iter(plan.sample_indices)
        return [
            ScheduledRow(
                request=sequence.request,
                token_ids=sequence.tokens(start, start + length),
                start=start,
                block_ids=sequence.tables[0],
                samples=tuple([sequence.sample(index) for index in islice(indices, num_draws)]),
                more_block_ids=tuple(sequence.tables[1:]),
            )
            for sequence, start, length, num_draws in zip(
                self.apply(plan), plan.starts, plan.lengths, plan.num_draws, strict=True
            )
        ]
