"""What one engine step does, and its result. `policy.worker.scheduler` produces it, a `ModelRunner` executes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from relevo.core.baton import SampledToken, SampleState
from relevo.core.ids import BlockId, RequestId, TokenId
from relevo.core.request import EngineRequest


class ScheduledRow(NamedTuple):
    """A run of consecutive tokens of one continuation. One row attends only to its own block table."""

    request: EngineRequest
    token_ids: list[TokenId]  # the tokens computed in this step, at least one
    start: int  # position of token_ids[0]; KV of [0, start) is already in the blocks
    block_ids: list[BlockId]  # covers at least start + len(token_ids) tokens; never changed, another list replaces it
    samples: tuple[SampleState, ...]  # continuations to draw from the last position; empty in mid-prompt
    is_prefill: bool

    @property
    def request_id(self) -> RequestId:
        return self.request.request_id


@dataclass(frozen=True, slots=True)
class StepPlan:
    step_id: int
    rows: tuple[ScheduledRow, ...]
    block_copies: tuple[tuple[BlockId, BlockId], ...] = ()  # (source, target), carried out before the rows

    @property
    def num_tokens(self) -> int:
        return sum([len(row.token_ids) for row in self.rows])

    @property
    def num_prefill_tokens(self) -> int:
        return sum([len(row.token_ids) for row in self.rows if row.is_prefill])

    @property
    def num_kv_tokens(self) -> int:
        """Tokens of context read by attention, summed over rows."""
        return sum([row.start + len(row.token_ids) for row in self.rows])


@dataclass(frozen=True, slots=True)
class StepClocks:
    """Where the time of a step went, in seconds. What is missing to `step_s` is the interpreter between the parts."""

    inputs_s: float  # packing rows into arrays
    kernels_s: float  # the backend's operations
    sampling_s: float


@dataclass(frozen=True, slots=True)
class StepResult:
    step_id: int
    sampled: tuple[tuple[SampledToken, ...], ...]  # per row, one per entry of row.samples
    step_s: float  # wall time of the step, sampling included
    clocks: StepClocks | None = None  # None: the runner does not tell them apart
