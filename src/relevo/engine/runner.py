"""Executes step plans with a real model, in this process.

Owns the order of a step: copies, packing, the forward pass, sampling, the clock around them. It does not know why rows
were scheduled, what else uses the arena, or which model and backend compute.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

from relevo.core.baton import SampledToken
from relevo.core.ids import BlockId, RequestId
from relevo.core.kv import KVLayout
from relevo.core.plan import ScheduledRow, StepClocks, StepPlan, StepResult
from relevo.core.replica import Replica, ReplicaSequence
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.grammar_masks import NOTHING_HELD, GrammarMasks, HeldDraws, SampleSpec
from relevo.engine.inputs import StepPacker
from relevo.engine.models.spec import Model
from relevo.engine.ops.cache_groups import num_state_groups
from relevo.engine.prompt_scores import logit_rows, scores_of
from relevo.engine.row_math import RowSummaries
from relevo.policy.worker.table_rules import table_rules


class KVArena(Protocol):
    """Memory of all KV blocks of the box."""

    @property
    def layout(self) -> KVLayout: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def buffer(self) -> memoryview: ...


class TokenSampler(Protocol):
    def sample(
        self,
        logits: npt.NDArray[np.float32],
        specs: Sequence[SampleSpec],
        summaries: RowSummaries | None,
        held: HeldDraws,
    ) -> list[SampledToken]: ...


class LocalRunner:
    """Implements core.ports.ModelRunner. Block ids are places in the whole arena."""

    def __init__(
        self,
        model: Model,
        arena: KVArena,
        sampler: TokenSampler,
        scratch_block_ids: Sequence[BlockId],
        grammar_masks: GrammarMasks | None = None,
    ) -> None:
        """`scratch_block_ids`: at least one block that no request ever holds; warm-up and calibration write there.
        `grammar_masks`: None if no request has a grammar."""
        self.layout = arena.layout
        self.vocab_size = model.config.vocab_size
        self.max_model_len = model.max_model_len
        self._model = model
        self._sampler = sampler
        self._grammar_masks = grammar_masks
        self._scratch_block_ids = tuple(scratch_block_ids)
        self._replica = Replica()
        self._packer = StepPacker(arena.layout.block_size, num_state_groups(arena.layout))
        self._kv = model.ops.kv_cache(arena.layout, arena.num_blocks, arena.buffer)

    def execute(self, plan: StepPlan) -> StepResult:
        started = time.perf_counter()
        if plan.block_copies:
            self._model.ops.copy_blocks(self._kv, plan.block_copies)
        result = self._run(plan) if plan.num_rows else StepResult(plan.step_id, (), 0.0)
        return replace(result, step_s=time.perf_counter() - started)

    def _run(self, plan: StepPlan) -> StepResult:
        started = time.perf_counter()
        sequences = self._replica.apply(plan)
        inputs = self._packer.pack_plan(plan, sequences)
        packed = time.perf_counter()
        rows = logit_rows(plan, inputs.row_first_token[1:].tolist(), sequences)
        logits = self._model.forward(inputs, self._kv, rows.tokens)
        computed = time.perf_counter()
        scores = scores_of(plan, rows, sequences, logits.values, self.vocab_size)
        specs = _draws(plan, sequences, rows.of_draws)
        held = NOTHING_HELD if self._grammar_masks is None else self._grammar_masks.of(specs)
        tokens = iter(self._sampler.sample(logits.values, specs, logits.summaries, held) if specs else ())
        sampled = tuple([tuple(islice(tokens, num_draws)) for num_draws in plan.num_draws])
        if held.failures:
            sampled = tuple(
                [
                    () if sequence.request.request_id in held.failures else drawn
                    for sequence, drawn in zip(sequences, sampled, strict=True)
                ]
            )
        clocks = StepClocks(packed - started, logits.kernel_s, time.perf_counter() - computed)
        return StepResult(plan.step_id, sampled, 0.0, clocks, held.failures, scores)

    def warm_up(self) -> None:
        """One short chunk, one single decode, one batch of decodes."""
        self.measure([(2, 2), (1, 2)])
        self._forward([self._scratch_row(1, 2), self._scratch_row(1, self.layout.block_size + 1)])

    def measure(self, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int, float]]:
        """Time one row per (num_tokens, num_kv_tokens): a chunk that ends at that context. Sampling is left out.

        Returns (num_tokens, num_kv_tokens, step_s) with the context raised to hold the chunk where it was shorter.
        """
        measured = []
        for num_tokens, num_kv_tokens in sizes:
            row = self._scratch_row(num_tokens, max(num_tokens, num_kv_tokens))
            started = time.perf_counter()
            self._forward([row])
            measured.append((num_tokens, max(num_tokens, num_kv_tokens), time.perf_counter() - started))
        return measured

    def _forward(self, rows: Sequence[ScheduledRow]) -> None:
        inputs = self._packer.pack(rows)
        self._model.forward(inputs, self._kv, [last - 1 for last in inputs.row_first_token[1:].tolist()])

    def _scratch_row(self, num_tokens: int, num_kv_tokens: int) -> ScheduledRow:
        """Scratch blocks repeat in its table: the numbers mean nothing, the work is that of a real row."""
        num_blocks = -(-num_kv_tokens // self.layout.block_size)
        scratch = self._scratch_block_ids
        block_ids = [scratch[index % len(scratch)] for index in range(num_blocks)]
        return ScheduledRow(
            request=EngineRequest(
                request_id=RequestId("scratch"), prompt_token_ids=(0,), sampling=SamplingParams(max_tokens=1, seed=0)
            ),
            token_ids=[0] * num_tokens,
            start=num_kv_tokens - num_tokens,
            block_ids=block_ids,
            more_block_ids=tuple(
                [scratch[index % len(scratch)] for index in range(rule.num_state_blocks or num_blocks)]
                for rule in table_rules(self.layout)
            ),
        )


def _draws(plan: StepPlan, sequences: Sequence[ReplicaSequence], logit_places: Iterable[int]) -> list[SampleSpec]:
    """What draws from which row of the logits: `logit_places` has one for every row of the plan that draws."""
    indices, places, specs = iter(plan.sample_indices), iter(logit_places), []
    for sequence, num_draws in zip(sequences, plan.num_draws, strict=True):
        if num_draws == 1:
            specs.append((next(places), sequence.request, sequence.sample(next(indices))))
        elif num_draws:
            place = next(places)
            specs += [(place, sequence.request, sequence.sample(index)) for index in islice(indices, num_draws)]
    return specs
