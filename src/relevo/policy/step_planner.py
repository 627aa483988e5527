"""Fills one step: decodes first, one token each, then prompt chunks from what is left of the token budget.

Owns the memory of when prompts last got a token. Starts waiting branches and preempts running ones through the
`Lineup`; the rules of the waiting order are in `policy.scheduler`. Source: Sarathi-Serve (Agrawal et al., OSDI 2024).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from relevo.core.plan import ScheduledRow
from relevo.policy.block_tables import BlockTables
from relevo.policy.chunking import chunk_tokens, prefill_budget
from relevo.policy.fair_turns import Party, Served, gives_back, party_of, rank_of
from relevo.policy.intake import SchedulerConfig, num_blocks_for
from relevo.policy.legs import Branch, LegKind
from relevo.policy.lineup import Lineup, order
from relevo.policy.preemption import choose_batch_victim, choose_victim

StepRows = list[tuple[Branch, ScheduledRow]]


class StepPlanner:
    def __init__(self, config: SchedulerConfig, lineup: Lineup, tables: BlockTables) -> None:
        self.max_prefill_tokens = config.max_prefill_tokens
        self._config = config
        self._lineup = lineup
        self._tables = tables
        self._num_steps_without_prefill = 0
        self._kept_out: list[Branch] = []  # in the last step, by lack of room or slots: the first of each party
        self._served = Served(config.tenant_weights)

    def rows(self, now_ns: int) -> StepRows:
        """The rows of the next step with the branch each belongs to; empty: nothing can be computed now."""
        rows: StepRows = []
        if self._kept_out:
            self._make_way()
        decoding, computing = self._lineup.running_by_phase()
        decoding = decoding[: self._config.max_batched_tokens]
        for branch in decoding:
            if branch.is_running:
                self._grow(branch)
        rows += [(branch, _row(branch, 1, is_prefill=False)) for branch in decoding if branch.is_running]
        num_decodes = len(rows)
        budget = prefill_budget(
            num_decodes=num_decodes,
            max_batched_tokens=self._config.max_batched_tokens,
            max_prefill_tokens=self.max_prefill_tokens,
            num_steps_without_prefill=self._num_steps_without_prefill,
            block_size=self._config.block_size,
        )
        if budget > 0 and (computing or self._lineup.waiting):
            self._add_prefills(rows, computing, budget, now_ns)
        self._num_steps_without_prefill = 0 if len(rows) > num_decodes else self._num_steps_without_prefill + 1
        return rows

    def _make_way(self) -> None:
        """One batch continuation per step gives back slot and blocks, until no other request is kept out; then those
        of tenants that hold more than their share, for each tenant that is kept from its own."""
        kept_out = [branch for branch in self._kept_out if branch in self._lineup.waiting]
        self._kept_out = []
        if any(not branch.leg.request.terms.is_batch for branch in kept_out):
            victim = choose_batch_victim(self._lineup.running)
            if victim is not None:
                self._lineup.preempt(victim)
                return
        for branch in kept_out:
            self._take_share(branch)

    def _take_share(self, claim: Branch) -> None:
        """A slot, or blocks where those are lacking, from the tenant that has most of it, if that is fair."""
        lineup, running = self._lineup, self._lineup.running
        if claim.is_short and (claim.leg.is_prefill_leg or lineup.num_slots_for(claim)):
            num_blocks = num_blocks_for(len(claim.token_ids), self._config.block_size)
            victim = gives_back(running, claim, num_blocks, lineup.blocks(), lambda branch: len(branch.block_ids))
            if victim is not None:
                lineup.preempt(victim)
            return
        victim = gives_back(running, claim, 1, lineup.slots(), lambda branch: 1)
        if victim is not None:
            lineup.give_back(victim)

    def _grow(self, branch: Branch) -> None:
        """Room for the next token, at the cost of the last in order of the tenant that holds most, at worst itself."""
        while not self._tables.cover(branch, len(branch.token_ids)):
            victim = choose_victim(self._lineup.running, self._lineup.blocks())
            assert victim is not None and not victim.is_in_step
            self._lineup.preempt(victim)
            if victim is branch:
                return

    def _add_prefills(self, rows: StepRows, computing: list[Branch], budget: int, now_ns: int) -> None:
        for branch in self._startable(computing):
            num_tokens = chunk_tokens(branch.num_computed, branch.num_remaining, budget, self._config.block_size)
            if branch.leg.first_scheduled_at_ns is None:
                branch.leg.first_scheduled_at_ns = now_ns
            rows.append((branch, _row(branch, num_tokens, is_prefill=not branch.is_decoding)))
            self._served.add(party_of(branch.leg.request), num_tokens)
            budget -= num_tokens
            if budget == 0:
                return

    def _startable(self, computing: list[Branch]) -> Iterator[Branch]:
        """Branches with prompt to compute: the least served tenant first, each tenant's in order of service;
        waiting ones are started on the way."""
        started = [branch for branch in computing if branch.is_running]  # decodes may have preempted some
        lines: dict[tuple[int, Party], list[Branch]] = {}
        for branch in heapq.merge(started, tuple(self._lineup.waiting), key=order):
            line = (rank_of(branch.leg.request), party_of(branch.leg.request))
            lines.setdefault(line, []).append(branch)
        self._served.present(party for _, party in lines)
        in_order = sorted(lines, key=lambda line: (line[0], self._served.of(line[1]), lines[line][0].key))
        for line in in_order:
            yield from self._startable_of(lines[line], self._num_ahead(line, lines))

    def _num_ahead(self, line: tuple[int, Party], lines: dict[tuple[int, Party], list[Branch]]) -> int:
        """Slots that are kept for other tenants, which wait and hold fewer or go before."""
        if len(lines) == 1:
            return 0
        slots, (rank, party) = self._lineup.slots(), line
        mine, num_ahead = (rank, slots.of(party)), 0
        for (other_rank, other), branches in lines.items():
            if other != party and (other_rank, slots.of(other)) < mine:
                first = next((b for b in branches if not b.is_running and not b.leg.is_prefill_leg), None)
                num_ahead += first is not None and not first.is_short
        return num_ahead

    def _startable_of(self, branches: list[Branch], num_ahead: int) -> Iterator[Branch]:
        """Of one tenant."""
        is_room_short = False
        for branch in branches:
            if branch.is_running:
                yield branch
            elif branch.leg.is_foreign:
                self._lineup.open_foreign(branch)
                yield branch
            elif is_room_short or self._is_sibling_ahead(branch):
                continue
            elif branch.leg.kind is LegKind.RESERVE or not self._lineup.open(branch, num_ahead):
                is_room_short = True  # a waiting reservation keeps its place, too
                self._kept_out.append(branch)
            else:
                yield branch

    def _is_sibling_ahead(self, branch: Branch) -> bool:
        """Another continuation computes the shared prompt at present: wait for its blocks instead of repeating it."""
        if not self._config.enable_prefix_caching or len(branch.leg.branches) == 1:
            return False
        num_prompt = branch.leg.num_prompt_tokens
        return any(other.is_running and other.num_computed < num_prompt for other in branch.leg.branches)


def _row(branch: Branch, num_tokens: int, *, is_prefill: bool) -> ScheduledRow:
    start, end = branch.num_computed, branch.num_computed + num_tokens
    branch.is_in_step = True
    return ScheduledRow(
        request=branch.leg.request,
        token_ids=branch.token_ids[start:end],
        start=start,
        block_ids=branch.block_ids,
        samples=branch.samples if end == len(branch.token_ids) else (),
        is_prefill=is_prefill,
    )
