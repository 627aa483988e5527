"""A ModelRunner without weights or torch whose output exposes every wrong block.

It writes each token's fingerprint (relevo.engine.fake_model) into the K and V slot of its place in the arena, and draws
the next token from the slots it *reads back* over the row's block table. A block that is stale, foreign, misplaced or
damaged changes every later token; `FakeModel.reference_tokens` says what they should have been. Only the first layer,
head and element of a slot is used: larger layouts mimic the size of real blocks, not their content.
A script (relevo.engine.fake_script) speaks only where the slots are right. Step time can be simulated; it is slept only
if a cost is set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from relevo.core.baton import SampledToken, SampleState
from relevo.core.errors import RequestError
from relevo.core.events import StepCosts
from relevo.core.ids import BlockId, RequestId, TokenId
from relevo.core.kv import KVGroup, KVLayout
from relevo.core.plan import ScheduledRow, StepFailure, StepPlan, StepResult
from relevo.core.prompt_scores import PromptScores
from relevo.core.replica import Replica
from relevo.engine.fake_lines import Lines
from relevo.engine.fake_model import (
    FAKE_MODEL,
    VALUE_MASK,
    Allowed,
    FakeModel,
    Words,
    context_hash,
    context_hashes,
    fingerprints,
)
from relevo.engine.fake_script import Script
from relevo.engine.grammar_masks import NOTHING_HELD, GrammarMasks, SampleSpec, StepGrammars
from relevo.engine.ops.cache_groups import only_full_group
from relevo.engine.prompt_scores import num_scores
from relevo.engine.row_math import let_through
from relevo.kv.arena import Arena

__all__ = ["FAKE_MODEL", "FakeModel", "FakeRunner", "fake_layout"]

NO_COSTS = StepCosts(base_s=0.0, per_token_s=0.0, per_kv_token_s=0.0)


def fake_layout(block_size: int, *, num_layers: int = 1, num_kv_heads: int = 1, head_size: int = 1) -> KVLayout:
    """The layout of the fake model's blocks; more layers, heads or elements only pad it to a realistic size."""
    group = KVGroup.full(range(num_layers), num_kv_heads, head_size)
    return KVLayout(model_hash="fake", dtype="uint64", block_size=block_size, groups=(group,))


class FakeRunner:
    """Implements core.ports.ModelRunner over an arena whose layout has dtype uint64 and one group."""

    def __init__(
        self,
        arena: Arena,
        *,
        costs: StepCosts = NO_COSTS,
        vocab_size: int = FAKE_MODEL.vocab_size,
        max_model_len: int = FAKE_MODEL.max_position,
        eos_one_in: int = 0,
        fault: Callable[[Sequence[ScheduledRow]], None] | None = None,
        script: Script | None = None,
        grammar_masks: GrammarMasks | None = None,
    ) -> None:
        """`fault` may raise instead of a result, with the KV of these rows written. `grammar_masks`: None if no request
        has a grammar."""
        group = only_full_group(arena.layout)
        assert arena.layout.dtype == "uint64", "fingerprints are uint64"
        self.layout = arena.layout
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.model = FakeModel(vocab_size=vocab_size, eos_one_in=eos_one_in)
        self._arena = arena
        self._replica = Replica()
        self._costs = costs
        self.fault = fault
        self._lines = None if script is None else Lines(script)
        self._grammar_masks = grammar_masks
        shape = (arena.num_blocks, group.num_layers, 2, group.num_kv_heads, self.layout.block_size, group.key_size)
        self._slots: Words = np.frombuffer(arena.buffer, dtype=np.uint64).reshape(shape)[:, 0, :, 0, :, 0]  # [N, 2, S]

    def execute(self, plan: StepPlan) -> StepResult:
        started_s = time.perf_counter()
        for source, target in plan.block_copies:
            self._arena.copy_block(source, target)
        rows = self._replica.rows(plan)
        held = NOTHING_HELD if self._grammar_masks is None else self._grammar_masks.of(_draws(rows))
        places = count()
        failures: dict[RequestId, StepFailure] = {}
        sampled = tuple(self._compute(row, held, places, failures) for row in rows)
        failures |= held.failures
        scores = {place: self._scores(rows[place]) for place in plan.scored}
        if self.fault is not None:
            self.fault(rows)
        cost_s = self._costs.step_s(plan.num_tokens, plan.num_kv_tokens)
        if self._lines is not None:
            cost_s = max(cost_s, self._lines.pace_s([row for row in rows if row.request_id not in failures]))
        if cost_s > 0:
            time.sleep(cost_s)
        step_s = time.perf_counter() - started_s
        return StepResult(plan.step_id, sampled, step_s, failures=failures, prompt_scores=scores)

    def warm_up(self) -> None:
        """Touches no block: numpy has nothing to initialise but itself."""
        context_hash(fingerprints([0, 1], 0, 0), fingerprints([0, 1], 0, 0))

    def _compute(
        self, row: ScheduledRow, held: StepGrammars, places: Iterator[int], failures: dict[RequestId, StepFailure]
    ) -> tuple[SampledToken, ...]:
        """Adds to `failures` what no rule of the script matches."""
        end = row.start + len(row.token_ids)
        blocks = np.asarray(row.block_ids, dtype=np.int64)
        positions = np.arange(row.start, end)
        before = self._key(row.block_ids, row.start - 1) if row.start else 0
        fresh = fingerprints(row.token_ids, row.start, before)
        where, slot = blocks[positions // self.layout.block_size], positions % self.layout.block_size
        self._slots[where, 0, slot] = fresh
        self._slots[where, 1, slot] = fresh ^ VALUE_MASK
        if not row.samples:
            return ()
        context = context_hash(*self._context(row.block_ids, end))
        allowed = [_allowed(held, next(places)) for _ in row.samples]
        if row.request_id in held.failures:
            return ()
        try:
            drawn = tuple(self._draw(row, *each, context) for each in zip(row.samples, allowed, strict=True))
        except RequestError as refusal:
            failures[row.request_id] = StepFailure(refusal.code, refusal.message)
            return ()
        return () if row.request_id in held.failures else drawn

    def _draw(self, row: ScheduledRow, sample: SampleState, allowed: Allowed | None, context: int) -> SampledToken:
        request, index = row.request, sample.sample_index
        line = None if self._lines is None else self._lines.line(row, index, context)
        num_outputs = len(sample.output_token_ids)
        return self.model.sample(context, request.sampling, request.eos_token_ids, index, num_outputs, line, allowed)

    def _scores(self, row: ScheduledRow) -> PromptScores:
        """Of a row that is computed."""
        prompt, first = row.request.prompt_token_ids, row.start + 1
        end = row.start + num_scores(row.start, len(row.token_ids), len(prompt))
        words = context_hashes(*self._context(row.block_ids, end))[row.start :]
        num_best = row.request.sampling.num_prompt_logprobs or 0
        return self.model.scores(words, prompt[first : end + 1], first, num_best)

    def _context(self, block_ids: list[BlockId], end: int) -> tuple[Words, Words]:
        """What the blocks hold of the first `end` tokens: keys and values."""
        table = self._slots[np.asarray(block_ids[: -(-end // self.layout.block_size)], dtype=np.int64)]
        return table[:, 0].reshape(-1)[:end], table[:, 1].reshape(-1)[:end]

    def _key(self, block_ids: list[BlockId], position: int) -> int:
        return int(self._slots[block_ids[position // self.layout.block_size], 0, position % self.layout.block_size])


def _draws(rows: Sequence[ScheduledRow]) -> list[SampleSpec]:
    return [(index, row.request, sample) for index, row in enumerate(rows) for sample in row.samples]


def _allowed(held: StepGrammars, place: int) -> Allowed | None:
    """By the grammar of the draw at this place; None: it has none."""
    return LetThrough(held, place) if place in held.places else None


class LetThrough:
    """As a sampler asks: about single tokens while they are let through, then once for the mask."""

    def __init__(self, held: StepGrammars, place: int) -> None:
        self._held = held
        self._place = place
        self._forced = held.forced(place)
        self._mask: npt.NDArray[np.bool_] | None = None

    def __call__(self, token_id: TokenId) -> bool:
        if self._forced is not None:
            return token_id == self._forced
        if self._mask is None:
            if self._held.lets_through(self._place, token_id):
                return True
            (bits,) = self._held.masks([self._place])
            self._mask = let_through(bits, 32 * len(bits))
        return bool(self._mask[token_id])
