"""Fills one step: decodes first, one token each, then prompt chunks from what is left of the token budget.

Owns the memory of when prompts last got a token. Starts waiting sequences and preempts running ones through the
`RequestQueues`; the rules of the waiting order are in `policy.worker.scheduler`. Source: Sarathi-Serve (Agrawal et al.,
OSDI 2024).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from relevo.core.events import UNKNOWN_COSTS
from relevo.core.plan import StepPlan
from relevo.policy.worker.block_tables import BlockTables
from relevo.policy.worker.chunking import MAX_SCORED_TOKENS, chunk_tokens, prefill_budget, tokens_within
from relevo.policy.worker.fair_turns import Flow, Served, flow_of, gives_back, rank_of
from relevo.policy.worker.intake import SchedulerConfig
from relevo.policy.worker.plan_writer import PlanWriter
from relevo.policy.worker.preemption import choose_batch_victim, choose_victim
from relevo.policy.worker.request_queues import RequestQueues, order
from relevo.policy.worker.worker_requests import Sequence, WorkKind


class StepPlanner:
    def __init__(self, config: SchedulerConfig, queues: RequestQueues, tables: BlockTables) -> None:
        self.max_prefill_tokens = config.max_prefill_tokens
        self.costs = UNKNOWN_COSTS  # what steps cost, as far as that is known
        self._config = config
        self._queues = queues
        self._tables = tables
        self._writer = PlanWriter()
        self._num_steps_without_prefill = 0
        self._kept_out: list[Sequence] = []  # in the last step, by lack of room or slots: the first of each flow
        self._served = Served(config.tenant_weights)

    def fill(self, plan: StepPlan, now_ns: int) -> list[Sequence]:
        """Write the rows of the next step; the sequence of each. Empty: nothing can be computed now."""
        step: list[Sequence] = []
        if self._kept_out:
            self._make_way()
        decoding, computing = self._queues.running_by_phase()
        decoding = decoding[: self._config.max_batched_tokens]
        for sequence in decoding:
            if sequence.is_running:
                self._grow(sequence)
        for sequence in decoding:
            if sequence.is_running:
                if sequence.more:
                    self._tables.leave_snapshots(sequence, len(decoding))
                self._writer.add(plan, sequence, 1)
                step.append(sequence)
        num_decodes = plan.num_decodes = len(step)
        budget = prefill_budget(
            num_decodes=num_decodes,
            max_batched_tokens=self._config.max_batched_tokens,
            max_prefill_tokens=self.max_prefill_tokens,
            num_steps_without_prefill=self._num_steps_without_prefill,
            block_size=self._config.block_size,
        )
        if num_decodes and budget > 0 and self._config.itl_target_s > 0.0:
            budget = min(budget, self._within_target(decoding, num_decodes))
        if budget > 0 and (computing or self._queues.waiting):
            self._add_prefills(plan, step, computing, budget, now_ns)
        self._num_steps_without_prefill = 0 if len(step) > num_decodes else self._num_steps_without_prefill + 1
        return step

    def _within_target(self, decoding: list[Sequence], num_decodes: int) -> int:
        num_kv_tokens = sum([sequence.num_computed for sequence in decoding])
        config = self._config
        return tokens_within(self.costs, config.itl_target_s, num_decodes, num_kv_tokens, config.block_size)

    def skip(self, num_steps: int) -> None:
        """So many steps were taken in which no sequence waited and none computed a prompt."""
        self._num_steps_without_prefill += num_steps
        self._kept_out = []

    def _make_way(self) -> None:
        """One batch continuation per step gives back slot and blocks, until no other request is kept out; then those
        of tenants that hold more than their share, for each tenant that is kept from its own."""
        kept_out = [sequence for sequence in self._kept_out if sequence in self._queues.waiting]
        self._kept_out = []
        if any(not sequence.parent.request.terms.is_batch for sequence in kept_out):
            victim = choose_batch_victim(self._queues.running)
            if victim is not None:
                self._queues.preempt(victim)
                return
        for sequence in kept_out:
            self._take_share(sequence)

    def _take_share(self, claim: Sequence) -> None:
        """A slot, or blocks where those are lacking, from the tenant that has most of it, if that is fair."""
        queues, running = self._queues, self._queues.running
        if claim.is_short and (claim.parent.is_remote_prefill or queues.num_slots_for(claim)):
            num_blocks = self._config.num_blocks_for(len(claim.token_ids))
            victim = gives_back(running, claim, num_blocks, queues.blocks(), lambda sequence: sequence.num_blocks)
            if victim is not None:
                queues.preempt(victim)
            return
        victim = gives_back(running, claim, 1, queues.slots(), lambda sequence: 1)
        if victim is not None:
            queues.give_back(victim)

    def _grow(self, sequence: Sequence) -> None:
        """Room for the next token, at the cost of the last in order of the tenant that holds most, at worst itself."""
        while not self._tables.cover(sequence, len(sequence.token_ids)):
            victim = choose_victim(self._queues.running, self._queues.blocks())
            assert victim is not None and not victim.is_in_step
            self._queues.preempt(victim)
            if victim is sequence:
                return

    def _add_prefills(
        self, plan: StepPlan, step: list[Sequence], computing: list[Sequence], budget: int, now_ns: int
    ) -> None:
        scores_left = MAX_SCORED_TOKENS
        for sequence in self._startable(computing):
            most = min(budget, scores_left) if sequence.is_scored else budget
            if not most:
                continue  # others may go on: only what is scored waits for the next step
            num_tokens = chunk_tokens(sequence.num_computed, sequence.num_remaining, most, self._config.block_size)
            if sequence.parent.first_scheduled_at_ns is None:
                sequence.parent.first_scheduled_at_ns = now_ns
            sequence.parent.num_chunks += sequence.parent.owes_facts
            if sequence.more:
                num_tokens = self._tables.tokens_to_border(sequence, num_tokens)
                self._tables.slide(sequence)
                self._tables.leave_snapshots(sequence, plan.num_decodes)
            if sequence.is_scored:
                scores_left -= num_tokens
                if sequence.num_computed + 1 < sequence.parent.num_prompt_tokens:
                    plan.scored.append(plan.num_rows)
            self._writer.add(plan, sequence, num_tokens)
            step.append(sequence)
            self._served.add(flow_of(sequence.parent.request), num_tokens)
            budget -= num_tokens
            if budget == 0:
                return

    def _startable(self, computing: list[Sequence]) -> Iterator[Sequence]:
        """Sequences with prompt to compute: the least served tenant first, each tenant's in order of service;
        waiting ones are started on the way."""
        started = [sequence for sequence in computing if sequence.is_running]  # decodes may have preempted some
        lines: dict[tuple[int, Flow], list[Sequence]] = {}
        for sequence in heapq.merge(started, tuple(self._queues.waiting), key=order):
            line = (rank_of(sequence.parent.request), flow_of(sequence.parent.request))
            lines.setdefault(line, []).append(sequence)
        self._served.present(flow for _, flow in lines)
        in_order = sorted(lines, key=lambda line: (line[0], self._served.of(line[1]), lines[line][0].key))
        for line in in_order:
            yield from self._startable_of(lines[line], self._num_ahead(line, lines))

    def _num_ahead(self, line: tuple[int, Flow], lines: dict[tuple[int, Flow], list[Sequence]]) -> int:
        """Slots that are kept for other tenants, which wait and hold fewer or go before."""
        if len(lines) == 1:
            return 0
        slots, (rank, flow) = self._queues.slots(), line
        mine, num_ahead = (rank, slots.of(flow)), 0
        for (other_rank, other), sequences in lines.items():
            if other != flow and (other_rank, slots.of(other)) < mine:
                first = next((b for b in sequences if not b.is_running and not b.parent.is_remote_prefill), None)
                num_ahead += first is not None and not first.is_short
        return num_ahead

    def _startable_of(self, sequences: list[Sequence], num_ahead: int) -> Iterator[Sequence]:
        """Of one tenant."""
        is_room_short = False
        for sequence in sequences:
            if sequence.is_running:
                yield sequence
            elif sequence.parent.is_foreign:
                self._queues.open_foreign(sequence)
                yield sequence
            elif is_room_short or self._is_sibling_ahead(sequence):
                continue
            elif sequence.parent.kind is WorkKind.AWAIT_KV or not self._queues.open(sequence, num_ahead):
                is_room_short = True  # a waiting reservation keeps its place, too
                self._kept_out.append(sequence)
            else:
                yield sequence

    def _is_sibling_ahead(self, sequence: Sequence) -> bool:
        """Another continuation computes the shared prompt at present: wait for its blocks instead of repeating it."""
        if not self._config.enable_prefix_caching or len(sequence.parent.sequences) == 1:
            return False
        num_prompt = sequence.parent.num_prompt_tokens
        return any(other.is_running and other.num_computed < num_prompt for other in sequence.parent.sequences)
