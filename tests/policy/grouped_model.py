"""A model that checks every cell of every KV group, and a driver of a scheduler whose layout has several groups."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_model import next_token

from relevo.core.baton import SampledToken
from relevo.core.cut import CutBlock, LocalBlock, Piece
from relevo.core.ids import RequestId, WorkerId
from relevo.core.kv import KVGroup
from relevo.core.plan import StepPlan, StepResult
from relevo.core.replica import Replica, ReplicaSequence
from relevo.policy.worker.remote_prefill import ComputedPrefix
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig
from relevo.policy.worker.table_rules import NO_BLOCK, TableRule

Tokens = tuple[int, ...]
SIZE = 4


class GroupedModel:
    """Block ids are of one pool. A cell of a block of tokens holds all tokens up to its own, a block of a state the
    tokens that it has taken in; what a step reads has to be what the sequence computed."""

    def __init__(self, block_size: int, rules: Sequence[TableRule]) -> None:
        self._size = block_size
        self._rules = (TableRule(KVGroup.full((), 0, 0), block_size), *rules)
        self._cells: dict[tuple[int, int], Tokens] = {}  # (block, place in it)
        self._replica = Replica()
        self.num_freed_entries = 0  # of tables that were read

    def execute(self, plan: StepPlan) -> StepResult:
        sequences = self._replica.apply(plan)
        for source, target in plan.block_copies:
            for place in range(self._size):
                self._cells[target, place] = self._cells.get((source, place), ())
        rows = list(zip(sequences, plan.starts, plan.lengths, strict=True))
        for sequence, start, _ in rows:  # all reads before all writes: a block has one writer in a step
            self._read(sequence, start)
        for sequence, start, length in rows:
            self._write(sequence, start, start + length)
        indices = iter(plan.sample_indices)
        sampled = tuple(
            tuple(self._draw(sequence, start + length, next(indices)) for _ in range(num_draws))
            for (sequence, start, length), num_draws in zip(rows, plan.num_draws, strict=True)
        )
        return StepResult(plan.step_id, sampled, 0.0)

    def copy_from(self, other: GroupedModel, source: LocalBlock, target: int) -> None:
        pieces = source.pieces if isinstance(source, CutBlock) else (Piece(source, 0, 0, self._size),)
        self._cells |= {(target, place): () for place in range(self._size)}
        for piece in pieces:
            for number in range(piece.num_tokens):
                cell = other._cells.get((piece.block_id, piece.first + number), ())
                self._cells[target, piece.place + number] = cell

    def cell(self, block: int, place: int) -> Tokens:
        return self._cells.get((block, place), ())

    def _read(self, sequence: ReplicaSequence, start: int) -> None:
        tokens = tuple(sequence.tokens(0, start))
        for rule, table in zip(self._rules, sequence.tables, strict=True):
            if rule.num_state_blocks:
                assert len(table) == rule.num_state_blocks
                assert all(self._cells.get((block, 0), ()) == tokens for block in table if start), "a foreign state"
                continue
            self.num_freed_entries += rule.first(start)
            for position in range(rule.group.first_kept(start), start):
                block = table[position // self._size]
                assert block != NO_BLOCK, f"{rule.group} reads position {position} of {start}, which has slid out"
                cell = self._cells[block, position % self._size]
                assert cell == tokens[: position + 1], f"{rule.group} reads {cell} at {position}"

    def _write(self, sequence: ReplicaSequence, start: int, end: int) -> None:
        tokens = tuple(sequence.tokens(0, end))
        for rule, table in zip(self._rules, sequence.tables, strict=True):
            if rule.num_state_blocks:
                self._cells |= {(block, 0): tokens for block in table}
                continue
            for position in range(start, end):
                block = table[position // self._size]
                assert block != NO_BLOCK
                self._cells[block, position % self._size] = tokens[: position + 1]

    def _draw(self, sequence: ReplicaSequence, end: int, index: int) -> SampledToken:
        return SampledToken(next_token(tuple(sequence.tokens(0, end)), sequence.request, index))


class Worker:
    def __init__(
        self,
        rules: tuple[TableRule, ...],
        num_blocks: int = 40,
        max_batched_tokens: int = 9,
        first_block_id: int = 0,
        block_size: int = SIZE,
    ) -> None:
        rules = tuple(rule.of_size(block_size) for rule in rules)
        self.scheduler = Scheduler(
            SchedulerConfig(
                worker_id=WorkerId("w"),
                epoch=1,
                first_block_id=first_block_id,
                num_blocks=num_blocks,
                block_size=block_size,
                max_batched_tokens=max_batched_tokens,
                max_prefill_tokens=max_batched_tokens,
                max_running=6,
                max_model_len=1000,
                more_groups=rules,
            )
        )
        self.model = GroupedModel(block_size, rules)
        self.tokens: dict[tuple[RequestId, int], list[int]] = {}
        self.prefixes: list[ComputedPrefix] = []

    def step(self, aborted: RequestId | None = None) -> bool:
        plan = self.scheduler.plan(0)
        if plan is None:
            return False
        result = self.model.execute(plan)
        if aborted is not None:
            self.scheduler.abort(aborted, writer_active=False)
        outcome = self.scheduler.commit(plan, result, 0)
        self.prefixes += outcome.prefixes
        for output in outcome.all_outputs:
            drawn = self.tokens.setdefault((output.request_id, output.sample_index), [])
            drawn.extend(token.token_id for token in output.tokens)
        return True

    @property
    def num_held(self) -> int:
        return self.scheduler.pool.num_held
