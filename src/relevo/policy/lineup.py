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

    def open(self, branch: Branch) -> bool:
        """Start a waiting branch if there is a place and room for it."""
        leg = branch.leg
        if not leg.is_prefill_leg and not self.has_slots(len(branch.samples)):
            return False
        if not self._tables.open(branch, self.num_decoding()):
            return False
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

    def grant(self, branch: Branch, num_kept: int) -> Reservation | None:
        """Room for a waiting reservation if `num_kept` blocks stay available."""
        leg = branch.leg
        num_usable = len(self._tables.usable_hashes(branch.hashes, leg.num_prompt_tokens))
        reservation = self._reservations.grant(leg.request, branch.hashes, num_usable, num_kept)
        if reservation is not None:
            self._count_lookup(leg, reservation.num_hit_tokens)
            self.waiting.remove(branch)
            leg.branches = []
        return reservation

    def preempt(self, branch: Branch) -> None:
        self.num_preemptions += 1
        self.stop(branch)
        self._tables.close(branch)
        self.wait(branch)

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

    def has_slots(self, num_samples: int, num_ahead: int = 0) -> bool:
        """May `num_samples` more continuations start, `num_ahead` others going first? A lone request always may."""
        taken = sum(len(branch.samples) for branch in self.running if not branch.leg.is_prefill_leg)
        taken += self._reservations.num_samples + num_ahead
        return taken == 0 or taken + num_samples <= self.max_running

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
        num_prefill_tokens += sum([len(branch.token_ids) - branch.num_expected_hits for branch in waiting])
        return WorkerLoad(
            num_running=len(decoding),
            num_waiting=len({branch.leg.arrival for branch in self.waiting}),
            num_reserved=len(self._reservations),
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
