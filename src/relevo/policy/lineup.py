"""Owns who is on this worker and in which line: accepted legs, the waiting order, the running order.

Moves branches between the lines together with their blocks, so that a branch is running exactly when it holds what it
needs. Decides nothing about steps: `policy.step_planner` says who starts and who gives way, `policy.scheduler` which
requests come and go.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from relevo.core.baton import SampleState
from relevo.core.events import StepCosts, WorkerLoad
from relevo.core.ids import RequestId, TokenId
from relevo.core.kv import Reservation
from relevo.core.request import EngineRequest
from relevo.policy import intake
from relevo.policy.block_pool import BlockPool
from relevo.policy.block_tables import BlockTables
from relevo.policy.fair_turns import MAX_PASSED_POOLS, Shares, party_of, rank_of
from relevo.policy.intake import SchedulerConfig
from relevo.policy.legs import Branch, Leg, LegKind
from relevo.policy.reservations import Reservations


class Lineup:
    def __init__(
        self, config: SchedulerConfig, pool: BlockPool, tables: BlockTables, reservations: Reservations
    ) -> None:
        self.legs: dict[RequestId, Leg] = {}
        self.waiting: list[Branch] = []  # in order of service
        self.running: list[Branch] = []  # in order of service
        self.max_running = config.max_running
        self.may_plan = self.may_grant = True  # something changed since the last attempt brought nothing
        self.num_preemptions = 0
        self.num_prefix_queries = 0  # tokens
        self.num_prefix_hits = 0  # tokens
        self._config = config
        self._pool = pool
        self._tables = tables
        self._reservations = reservations
        self._num_arrivals = 0
        self._closed_after_step: list[Branch] = []
        self._short: list[Branch] = []  # wait because blocks are lacking, longest first

    def changed(self) -> None:
        self.may_plan = self.may_grant = True

    # ---- coming in ---------------------------------------------------------------------------------------------------

    def accept(self, request: EngineRequest, kind: LegKind, now_ns: int) -> Leg:
        self._num_arrivals += 1
        leg = Leg(
            request=request,
            kind=kind,
            arrival=self._num_arrivals,
            accepted_at_ns=now_ns,
            max_outputs=intake.max_outputs(request, self._config, bounded_by_pool=kind is not LegKind.PREFILL),
            owes_facts=True,
        )
        self.legs[request.request_id] = leg
        return leg

    def branch_out(self, leg: Leg, samples: Sequence[SampleState]) -> list[Branch]:
        """One branch per unfinished sample that has tokens, one for all that have none; `leg.branches` from now on."""
        if not samples:
            samples = [SampleState(index) for index in range(leg.request.sampling.n)]
        live = [copied(sample) for sample in samples if sample.finish_reason is None]
        empty = tuple(sample for sample in live if not sample.output_token_ids)
        groups = [(sample,) for sample in live if sample.output_token_ids]
        leg.owes_facts = all(not sample.output_token_ids for sample in samples)
        leg.branches = [self.branch(leg, group) for group in ([empty] if empty else []) + groups]
        return leg.branches

    def branch(self, leg: Leg, samples: tuple[SampleState, ...]) -> Branch:
        token_ids: list[TokenId] = [*leg.request.prompt_token_ids, *samples[0].output_token_ids]
        branch = Branch(leg=leg, samples=samples, token_ids=token_ids)
        if not leg.is_foreign:
            branch.hashes = self._tables.hashes(leg.request, token_ids)
        return branch

    # ---- between waiting and running ---------------------------------------------------------------------------------

    def wait(self, branch: Branch) -> None:
        reservation = branch.leg.reservation if branch.leg.is_foreign else None
        hits = self._tables.expected_hits(branch) if reservation is None else reservation.num_hit_tokens
        branch.num_expected_hits = hits
        insort(self.waiting, branch, key=order)
        self.changed()

    def run(self, branch: Branch) -> None:
        branch.is_running = True
        insort(self.running, branch, key=order)
        self.changed()

    def stop(self, branch: Branch) -> None:
        """Out of the running order, blocks kept."""
        self.running.remove(branch)
        branch.is_running = False

    def run_or_wait(self, branch: Branch) -> None:
        """Run a branch that holds its computed tokens if it also gets the rest of its blocks; queue it otherwise.

        A decode that is one token short of room runs: it may preempt.
        """
        is_short = not self._tables.cover(branch, len(branch.token_ids))
        if not branch.block_ids or (is_short and branch.num_remaining > 1):
            self._tables.close(branch)
            self.wait(branch)
        else:
            self.run(branch)

    def open(self, branch: Branch, num_ahead: int = 0) -> bool:
        """Start a waiting branch if there is a slot, `num_ahead` others being kept, and room for it. Of its
        continuations those without a slot go on waiting, as a branch of their own."""
        leg = branch.leg
        num_slots = len(branch.samples) if leg.is_prefill_leg else self.num_slots_for(branch, num_ahead)
        if not num_slots:
            return False
        if self.must_let_pass(branch) or not self._tables.open(branch, self.num_decoding()):
            self.is_short(branch)
            return False
        self._passes(branch, len(branch.block_ids))
        if num_slots < len(branch.samples):
            self.set_aside(branch, num_slots)
        if leg.first_scheduled_at_ns is None:
            leg.num_cached_tokens = min(branch.num_computed, leg.num_prompt_tokens)
            self._count_lookup(leg, leg.num_cached_tokens)
        self.waiting.remove(branch)
        self.run(branch)
        return True

    def open_foreign(self, branch: Branch) -> None:
        """Start a prefill leg in its receiver's blocks, after what is there already."""
        leg, reservation = branch.leg, branch.leg.reservation
        assert reservation is not None
        branch.block_ids = list(reservation.block_ids)
        branch.num_computed = min(reservation.num_hit_tokens, leg.num_prompt_tokens - 1)
        leg.num_reported_blocks = branch.num_computed // self._config.block_size
        leg.num_cached_tokens = min(branch.num_computed, leg.num_found_tokens)
        self.waiting.remove(branch)
        self.run(branch)

    def grant(self, branch: Branch, num_kept: int, num_slots: int) -> Reservation | None:
        """Room for a waiting reservation and its first `num_slots` continuations if `num_kept` blocks stay
        available."""
        leg = branch.leg
        if self.must_let_pass(branch):
            return None
        num_usable = len(self._tables.usable_hashes(branch.hashes, leg.num_prompt_tokens))
        reservation = self._reservations.grant(leg.request, branch.hashes, num_usable, num_kept, num_slots)
        if reservation is not None:
            self._passes(branch, len(reservation.block_ids))
            self._count_lookup(leg, reservation.num_hit_tokens)
            self.waiting.remove(branch)
            leg.branches = []
        return reservation

    def preempt(self, branch: Branch) -> None:
        self.num_preemptions += 1
        self.stop(branch)
        self._tables.close(branch)
        self.wait(branch)

    def set_aside(self, branch: Branch, num_kept: int) -> None:
        """All but the first `num_kept` continuations of a branch wait for slots of their own."""
        leg = branch.leg
        rest = Branch(leg=leg, samples=branch.samples[num_kept:], token_ids=branch.token_ids, hashes=branch.hashes)
        branch.token_ids, branch.hashes = list(branch.token_ids), list(branch.hashes)
        branch.samples = branch.samples[:num_kept]
        leg.branches.append(rest)
        self.wait(rest)

    def give_back(self, branch: Branch) -> None:
        """One slot less: a continuation of a branch that has drawn nothing yet is set aside, any other preempted."""
        if len(branch.samples) > 1:
            self.set_aside(branch, len(branch.samples) - 1)
        else:
            self.preempt(branch)

    # ---- who lacks blocks --------------------------------------------------------------------------------------------

    def is_short(self, branch: Branch) -> None:
        """It found no blocks; from here on it is counted what others take."""
        if not branch.is_short:
            branch.is_short, branch.num_passed_blocks = True, 0
            self._short.append(branch)
            party = party_of(branch.leg.request)
            if any(party_of(other.leg.request) != party for other in self.waiting):
                self.changed()  # nothing is kept for it any more

    def must_let_pass(self, branch: Branch) -> bool:
        """No blocks for it at present: they are for a branch of another party that lacks its share of them, or that
        was passed often enough."""
        if not self._short:
            return False
        held_up, rank, party = self._held_up(), rank_of(branch.leg.request), party_of(branch.leg.request)
        if held_up is not None and rank_of(held_up.leg.request) <= rank:
            return party_of(held_up.leg.request) != party
        rivals = [each for each in self._short if party_of(each.leg.request) != party]
        blocks = self.blocks()
        mine, size = blocks.of(party), self._config.block_size
        return any(
            rank_of(rival.leg.request) <= rank
            and mine >= blocks.of(party_of(rival.leg.request), intake.num_blocks_for(len(rival.token_ids), size))
            for rival in rivals
        )

    def _held_up(self) -> Branch | None:
        limit = MAX_PASSED_POOLS * self._pool.num_blocks
        return next((branch for branch in self._short if branch.num_passed_blocks >= limit), None)

    def _passes(self, branch: Branch, num_blocks: int) -> None:
        """The branch got `num_blocks`."""
        self._forget_short(branch)
        party = party_of(branch.leg.request)
        for other in self._short:
            if party_of(other.leg.request) != party:
                other.num_passed_blocks += num_blocks

    def _forget_short(self, branch: Branch) -> None:
        if branch.is_short:
            branch.is_short = False
            self._short.remove(branch)

    # ---- going out ---------------------------------------------------------------------------------------------------

    def finish(self, branch: Branch) -> None:
        """A running branch ended; with its last branch the leg is gone."""
        self.stop(branch)
        self._tables.close(branch)
        branch.leg.branches.remove(branch)
        if not branch.leg.branches:
            del self.legs[branch.leg.request.request_id]

    def drop(self, leg: Leg) -> None:
        """Forget a request; blocks of rows that are being executed are let go by `end_step`."""
        del self.legs[leg.request.request_id]
        for branch in leg.branches:
            if branch.is_running:
                self.stop(branch)
            elif branch in self.waiting:
                self.waiting.remove(branch)
                self._forget_short(branch)
            branch.is_dropped = True
            if branch.is_in_step:
                self._closed_after_step.append(branch)
            else:
                self._tables.close(branch)
        self.changed()

    def end_step(self) -> None:
        for branch in self._closed_after_step:
            self._tables.close(branch)
        self._closed_after_step = []
        self.changed()

    # ---- counting ----------------------------------------------------------------------------------------------------

    def running_by_phase(self) -> tuple[list[Branch], list[Branch]]:
        """(those that decode, those that still compute their tokens), each in order of service."""
        decoding: list[Branch] = []
        computing: list[Branch] = []
        for branch in self.running:
            (decoding if branch.is_decoding else computing).append(branch)
        return decoding, computing

    def num_decoding(self) -> int:
        return len(self.running_by_phase()[0])

    def num_slots_for(self, branch: Branch, num_ahead: int = 0) -> int:
        """How many continuations of the branch may start, `num_ahead` others going first."""
        taken = sum(len(each.samples) for each in self.running if not each.leg.is_prefill_leg)
        return max(0, min(len(branch.samples), self.max_running - taken - self._reservations.num_slots - num_ahead))

    def slots(self) -> Shares:
        """What each party holds, reservations counted."""
        shares = Shares(self._config.tenant_weights)
        for branch in self.running:
            if not branch.leg.is_prefill_leg:
                shares.add(party_of(branch.leg.request), len(branch.samples))
        for grant in self._reservations.grants:
            shares.add(grant.party, grant.num_slots)
        return shares

    def blocks(self) -> Shares:
        """As `slots`, a shared block counted for each that holds it."""
        shares = Shares(self._config.tenant_weights)
        for branch in self.running:
            if not branch.leg.is_foreign:
                shares.add(party_of(branch.leg.request), len(branch.block_ids))
        for grant in self._reservations.grants:
            shares.add(grant.party, len(grant.reservation.block_ids) + len(grant.copy_block_ids))
        return shares

    def has_work(self) -> bool:
        if self.may_grant and any(branch.leg.kind is LegKind.RESERVE for branch in self.waiting):
            return True
        if not self.may_plan:
            return False
        return bool(self.running) or any(branch.leg.kind is not LegKind.RESERVE for branch in self.waiting)

    def load(self, costs: StepCosts) -> WorkerLoad:
        decoding, computing = self.running_by_phase()
        waiting = [branch for branch in self.waiting if branch.leg.kind is not LegKind.RESERVE]
        num_prefill_tokens = sum([branch.num_remaining for branch in computing])
        num_prefill_tokens += sum(
            [
                len(branch.token_ids) - branch.num_expected_hits
                for branch in waiting
                if branch.leg.first_scheduled_at_ns is None  # else it waits for a slot or blocks of others
            ]
        )
        return WorkerLoad(
            num_running=len(decoding),
            num_waiting=len({branch.leg.arrival for branch in self.waiting}),
            num_reserved=self._reservations.num_slots,
            num_waiting_prefill_tokens=num_prefill_tokens,
            num_decode_kv_tokens=sum([branch.num_computed for branch in decoding]),
            num_free_blocks=self._pool.num_free,
            num_reusable_blocks=self._pool.num_reusable,
            num_held_blocks=self._pool.num_held,
            num_quarantined_blocks=self._pool.num_quarantined,
            num_total_blocks=self._pool.num_blocks,
            costs=costs,
        )

    def _count_lookup(self, leg: Leg, num_hit_tokens: int) -> None:
        if self._config.enable_prefix_caching:
            self.num_prefix_queries += leg.num_prompt_tokens
            self.num_prefix_hits += num_hit_tokens


def copied(sample: SampleState) -> SampleState:
    return SampleState(sample.sample_index, list(sample.output_token_ids), sample.finish_reason)


def order(branch: Branch) -> tuple[int, int, int]:
    return branch.key
