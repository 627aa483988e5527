"""What one engine step does, and its result. `policy.worker.scheduler` produces it, a `ModelRunner` executes it.

A plan is plain numbers and differences: of a sequence it says once what does not change, afterwards only what was
added. A runner keeps the rest (`core.replica`), so a plan can be encoded and sent to every rank of a group of runners.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from relevo.core.baton import SampledToken, SampleState
from relevo.core.ids import BlockId, RequestId, SequenceId, TokenId
from relevo.core.prompt_scores import PromptScores
from relevo.core.request import EngineRequest


class ScheduledRow(NamedTuple):
    """A run of consecutive tokens of one sequence, as a runner computes it. It attends only to its own blocks."""

    request: EngineRequest
    token_ids: list[TokenId]  # the tokens computed in this step, at least one
    start: int  # position of token_ids[0]; KV of [0, start) is already in the blocks
    block_ids: list[BlockId]  # covers at least start + len(token_ids) tokens
    samples: tuple[SampleState, ...] = ()  # continuations to draw from the last position; empty in mid-prompt
    more_block_ids: tuple[list[BlockId], ...] = ()  # of the KV groups after the first

    @property
    def tables(self) -> tuple[list[BlockId], ...]:
        """One per KV group."""
        return (self.block_ids, *self.more_block_ids)

    @property
    def request_id(self) -> RequestId:
        return self.request.request_id


class NewSequence(NamedTuple):
    """What does not change of a sequence, and where it stands before its first row."""

    sequence_id: SequenceId
    request: EngineRequest
    output_token_ids: list[TokenId]
    tables: list[list[BlockId]]  # one per KV group


class NewBlocks(NamedTuple):
    """The end of a block table; the whole of one whose state goes on in other blocks."""

    sequence_id: SequenceId
    group: int  # place among the layout's KV groups
    first_index: int  # of these in the table
    block_ids: list[BlockId]


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """B rows, each of another sequence. Applied twice, a plan leaves what it leaves when applied once."""

    step_id: int
    new: list[NewSequence] = field(default_factory=list)
    removed: list[SequenceId] = field(default_factory=list)  # since the last plan; some may never have been told of
    new_blocks: list[NewBlocks] = field(default_factory=list)  # of sequences told of before
    block_copies: list[tuple[BlockId, BlockId]] = field(default_factory=list)  # (source, target), before the rows
    sequence_ids: list[SequenceId] = field(default_factory=list)  # [B]
    starts: list[int] = field(default_factory=list)  # [B], position of the first token; KV before it is in the blocks
    lengths: list[int] = field(default_factory=list)  # [B], tokens computed, at least one
    last_token_ids: list[TokenId] = field(default_factory=list)  # [B], the only one of a row that may be news
    num_draws: list[int] = field(default_factory=list)  # [B], continuations drawn from the last position
    sample_indices: list[int] = field(default_factory=list)  # [sum(num_draws)], which
    scored: list[int] = field(default_factory=list)  # places of rows whose prompt tokens' log probabilities are told
    num_decodes: int = 0  # the first rows: one token each; the others compute prompts, or what was preempted

    @property
    def num_rows(self) -> int:
        return len(self.sequence_ids)

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    @property
    def num_prefill_tokens(self) -> int:
        return sum(self.lengths[self.num_decodes :])

    @property
    def num_kv_tokens(self) -> int:
        """Tokens of context read by attention, summed over rows."""
        return sum(self.starts) + sum(self.lengths)

    def part(self, places: list[int]) -> StepPlan:
        """The rows at these places, as a step of their own."""
        ids = {self.sequence_ids[place] for place in places}
        new = [each for each in self.new if each.sequence_id in ids]
        new_blocks = [each for each in self.new_blocks if each.sequence_id in ids]
        blocks = {block_id for each in new for table in each.tables for block_id in table}
        blocks |= {block_id for each in new_blocks for block_id in each.block_ids}
        firsts = [sum(self.num_draws[:place]) for place in places]
        counts = [self.num_draws[place] for place in places]
        return StepPlan(
            step_id=self.step_id,
            new=new,
            removed=self.removed,
            new_blocks=new_blocks,
            block_copies=[copy for copy in self.block_copies if copy[1] in blocks],
            sequence_ids=[self.sequence_ids[place] for place in places],
            starts=[self.starts[place] for place in places],
            lengths=[self.lengths[place] for place in places],
            last_token_ids=[self.last_token_ids[place] for place in places],
            num_draws=counts,
            sample_indices=[
                index
                for first, count in zip(firsts, counts, strict=True)
                for index in self.sample_indices[first : first + count]
            ],
            scored=[index for index, place in enumerate(places) if place in self.scored],
            num_decodes=sum(place < self.num_decodes for place in places),
        )


@dataclass(frozen=True, slots=True)
class StepClocks:
    """Where the time of a step went, in seconds. What is missing to `step_s` is the interpreter between the parts."""

    inputs_s: float  # packing rows into arrays
    kernels_s: float  # the backend's operations
    sampling_s: float


class StepFailure(NamedTuple):
    """Why a step brought nothing for a request, and would not if it were tried again."""

    code: str  # of core.errors
    reason: str


@dataclass(frozen=True, slots=True)
class StepResult:
    step_id: int
    sampled: tuple[tuple[SampledToken, ...], ...]  # per row, one per draw; none in rows of `failures`
    step_s: float  # wall time of the step, sampling included
    clocks: StepClocks | None = None  # None: the runner does not tell them apart
    failures: Mapping[RequestId, StepFailure] = field(default_factory=dict)  # the other requests are as they should be
    prompt_scores: Mapping[int, PromptScores] = field(default_factory=dict)  # of each scored row, by its place
