"""Owns the requests of this worker and their queues: what was accepted, the waiting order, the running order.

Moves sequences between the queues together with their blocks, so that a sequence is running exactly when it holds what
it needs. Decides nothing about steps: `policy.worker.step_planner` says which start and which give way,
`policy.worker.scheduler` which requests come and go.
"""

from __future__ import annotations

from bisect import insort
from collections import abc

from relevo.core.baton import SampleState
from relevo.core.events import StepCosts, WorkerLoad
from relevo.core.ids import RequestId
from relevo.core.kv import Reservation
from relevo.core.request import EngineRequest
from relevo.core.role import RoleChange
from relevo.policy.worker import intake
from relevo.policy.worker.block_pool import BlockPool
from relevo.policy.worker.block_tables import BlockTables
from relevo.policy.worker.fair_turns import MAX_PASSED_POOLS, Shares, flow_of, rank_of
from relevo.policy.worker.intake import SchedulerConfig
from relevo.policy.worker.reservations import Reservations
from relevo.policy.worker.worker_requests import Sequence, WorkerRequest, WorkKind


class RequestQueues:
    def __init__(
        self, config: SchedulerConfig, pool: BlockPool, tables: BlockTables, reservations: Reservations
    ) -> None:
        self.requests: dict[RequestId, WorkerRequest] = {}
        self.waiting: list[Sequence] = []  # in order of service
        self.running: list[Sequence] = []  # in order of service
        self.max_running = config.max_running
        self.may_plan = self.may_grant = True  # something changed since the last attempt brought nothing
        self.num_preemptions = 0
        self.preempted: list[RequestId] = []  # since the last step
        self.num_prefix_queries = 0  # tokens
        self.num_prefix_hits = 0  # tokens
        self._config = config
        self._pool = pool
        self._tables = tables
        self._reservations = reservations
        self._num_arrivals = 0
        self._closed_after_step: list[Sequence] = []
        self._short: list[Sequence] = []  # wait because blocks are lacking, longest first

    def changed(self) -> None:
        self.may_plan = self.may_grant = True

    # ---- coming in ---------------------------------------------------------------------------------------------------

    def accept(self, request: EngineRequest, kind: WorkKind, now_ns: int) -> WorkerRequest:
        self._num_arrivals += 1
        state = WorkerRequest(
            request=request,
            kind=kind,
            arrival=self._num_arrivals,
            accepted_at_ns=now_ns,
            max_outputs=intake.max_outputs(request, self._config, bounded_by_pool=kind is not WorkKind.PREFILL_ONLY),
            owes_facts=True,
        )
        self.requests[request.request_id] = state
        return state

    def make_sequences(self, state: WorkerRequest, samples: abc.Sequence[SampleState]) -> list[Sequence]:
        """One sequence per unfinished sample that has tokens, one for all that have none; the request's from now on."""
        if not samples:
            samples = [SampleState(index) for index in range(state.request.sampling.n)]
        live = [copied(sample) for sample in samples if sample.finish_reason is None]
        empty = tuple(sample for sample in live if not sample.output_token_ids)
        groups = [(sample,) for sample in live if sample.output_token_ids]
        state.owes_facts = all(not sample.output_token_ids for sample in samples)
        state.sequences = [self.sequence(state, group) for group in ([empty] if empty else []) + groups]
        return state.sequences

    def sequence(self, state: WorkerRequest, samples: tuple[SampleState, ...]) -> Sequence:
        token_ids = self._config.content.joined(state.request.prompt_token_ids, samples[0].output_token_ids)
        sequence = Sequence(parent=state, samples=samples, token_ids=token_ids)
        if not state.is_foreign:
            sequence.hashes = self._tables.hashes(state.request, token_ids)
        return sequence

    # ---- between waiting and running ---------------------------------------------------------------------------------

    def wait(self, sequence: Sequence) -> None:
        remote = sequence.parent.remote
        if remote is not None and remote.path.zero_copy:
            sequence.num_expected_hits = remote.reservation.num_hit_tokens
        else:
            sequence.num_expected_hits = self._tables.expected_hits(sequence)
        insort(self.waiting, sequence, key=order)
        self.changed()

    def run(self, sequence: Sequence) -> None:
        sequence.is_running = True
        insort(self.running, sequence, key=order)
        self.changed()

    def stop(self, sequence: Sequence) -> None:
        """Out of the running order, blocks kept."""
        self.running.remove(sequence)
        sequence.is_running = False

    def run_or_wait(self, sequence: Sequence) -> None:
        """Run a sequence that holds its computed tokens if it also gets the rest of its blocks; queue it otherwise.

        A decode that is one token short of room runs: it may preempt.
        """
        is_short = not self._tables.cover(sequence, len(sequence.token_ids))
        if not sequence.block_ids or (is_short and sequence.num_remaining > 1):
            self._tables.close(sequence)
            self.wait(sequence)
        else:
            self.run(sequence)

    def open(self, sequence: Sequence, num_ahead: int = 0) -> bool:
        """Start a waiting sequence if there is a slot, `num_ahead` others being kept, and room for it. Of its
        continuations those without a slot go on waiting, as a sequence of their own."""
        state = sequence.parent
        num_slots = len(sequence.samples) if state.is_remote_prefill else self.num_slots_for(sequence, num_ahead)
        if not num_slots:
            return False
        if self.must_let_pass(sequence) or not self._tables.open(sequence, self.num_decoding()):
            self.note_short(sequence)
            return False
        self._note_passed(sequence, sequence.num_blocks)
        if num_slots < len(sequence.samples):
            self.set_aside(sequence, num_slots)
        if state.first_scheduled_at_ns is None:
            state.num_cached_tokens = min(sequence.num_computed, state.num_prompt_tokens)
            self._count_lookup(state, state.num_cached_tokens)
        self.waiting.remove(sequence)
        self.run(sequence)
        return True

    def open_foreign(self, sequence: Sequence) -> None:
        """Start a remote prefill in its receiver's blocks, after what is there already."""
        state, remote = sequence.parent, sequence.parent.remote
        assert remote is not None
        sequence.block_ids = list(remote.reservation.block_ids)
        num_hits = 0 if sequence.is_scored else remote.reservation.num_hit_tokens
        sequence.num_computed = min(num_hits, state.num_prompt_tokens - 1)
        state.num_cached_tokens = min(sequence.num_computed, remote.num_found_tokens)
        self.waiting.remove(sequence)
        self.run(sequence)

    def grant(self, sequence: Sequence, num_kept: int, num_slots: int) -> Reservation | None:
        """Room for a waiting reservation and its first `num_slots` continuations if `num_kept` blocks stay
        available."""
        state = sequence.parent
        if self.must_let_pass(sequence):
            return None
        hits, found = self._tables.match_room(sequence)
        reservation = self._reservations.grant(state.request, sequence.hashes, hits, num_kept, num_slots, found)
        if reservation is not None:
            self._note_passed(sequence, len(reservation.block_ids))
            self._count_lookup(state, reservation.num_hit_tokens)
            self.waiting.remove(sequence)
            state.sequences = []
        return reservation

    def preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self.preempted.append(sequence.parent.request.request_id)
        self.stop(sequence)
        self._tables.close(sequence)
        self.wait(sequence)

    def set_aside(self, sequence: Sequence, num_kept: int) -> None:
        """All but the first `num_kept` continuations of a sequence wait for slots of their own."""
        state = sequence.parent
        rest = Sequence(
            parent=state, samples=sequence.samples[num_kept:], token_ids=sequence.token_ids, hashes=sequence.hashes
        )
        sequence.token_ids = self._config.content.joined(state.request.prompt_token_ids, ())
        sequence.hashes = list(sequence.hashes)
        sequence.samples = sequence.samples[:num_kept]
        state.sequences.append(rest)
        self.wait(rest)

    def give_back(self, sequence: Sequence) -> None:
        """One slot less: a continuation of a sequence that has drawn nothing yet is set aside, any other preempted."""
        if len(sequence.samples) > 1:
            self.set_aside(sequence, len(sequence.samples) - 1)
        else:
            self.preempt(sequence)

    # ---- lack of blocks ----------------------------------------------------------------------------------------------

    def note_short(self, sequence: Sequence) -> None:
        """It found no blocks; from here on it is counted what others take."""
        if not sequence.is_short:
            sequence.is_short, sequence.num_passed_blocks = True, 0
            self._short.append(sequence)
            flow = flow_of(sequence.parent.request)
            if any(flow_of(other.parent.request) != flow for other in self.waiting):
                self.changed()  # nothing is kept for it any more

    def must_let_pass(self, sequence: Sequence) -> bool:
        """No blocks for it at present: they are for a sequence of another flow that lacks its share of them, or that
        was passed often enough."""
        if not self._short:
            return False
        held_up, rank, flow = self._held_up(), rank_of(sequence.parent.request), flow_of(sequence.parent.request)
        if held_up is not None and rank_of(held_up.parent.request) <= rank:
            return flow_of(held_up.parent.request) != flow
        rivals = [each for each in self._short if flow_of(each.parent.request) != flow]
        blocks = self.blocks()
        mine = blocks.of(flow)
        return any(
            rank_of(rival.parent.request) <= rank
            and mine >= blocks.of(flow_of(rival.parent.request), self._config.num_blocks_for(len(rival.token_ids)))
            for rival in rivals
        )

    def _held_up(self) -> Sequence | None:
        limit = MAX_PASSED_POOLS * self._pool.num_blocks
        return next((sequence for sequence in self._short if sequence.num_passed_blocks >= limit), None)

    def _note_passed(self, sequence: Sequence, num_blocks: int) -> None:
        """The sequence got `num_blocks`."""
        self._forget_short(sequence)
        flow = flow_of(sequence.parent.request)
        for other in self._short:
            if flow_of(other.parent.request) != flow:
                other.num_passed_blocks += num_blocks

    def _forget_short(self, sequence: Sequence) -> None:
        if sequence.is_short:
            sequence.is_short = False
            self._short.remove(sequence)

    # ---- going out ---------------------------------------------------------------------------------------------------

    def finish(self, sequence: Sequence) -> None:
        """A running sequence ended; with its last sequence the request is gone."""
        self.stop(sequence)
        self._tables.close(sequence)
        sequence.parent.sequences.remove(sequence)
        if not sequence.parent.sequences:
            del self.requests[sequence.parent.request.request_id]

    def drop(self, state: WorkerRequest) -> None:
        """Forget a request; blocks of rows that are being executed are let go by `end_step`."""
        del self.requests[state.request.request_id]
        for sequence in state.sequences:
            if sequence.is_running:
                self.stop(sequence)
            elif sequence in self.waiting:
                self.waiting.remove(sequence)
                self._forget_short(sequence)
            sequence.is_dropped = True
            if sequence.is_in_step:
                self._closed_after_step.append(sequence)
            else:
                self._tables.close(sequence)
        self.changed()

    def end_step(self) -> None:
        for sequence in self._closed_after_step:
            self._tables.close(sequence)
        self._closed_after_step = []
        self.changed()

    # ---- counting ----------------------------------------------------------------------------------------------------

    def running_by_phase(self) -> tuple[list[Sequence], list[Sequence]]:
        """(those that decode, those that still compute their tokens), each in order of service."""
        decoding: list[Sequence] = []
        computing: list[Sequence] = []
        for sequence in self.running:
            (decoding if sequence.is_decoding else computing).append(sequence)
        return decoding, computing

    def num_decoding(self) -> int:
        return len(self.running_by_phase()[0])

    def num_slots_for(self, sequence: Sequence, num_ahead: int = 0) -> int:
        """How many continuations of the sequence may start, `num_ahead` others going first."""
        taken = sum(len(each.samples) for each in self.running if not each.parent.is_remote_prefill)
        return max(0, min(len(sequence.samples), self.max_running - taken - self._reservations.num_slots - num_ahead))

    def slots(self) -> Shares:
        """What each flow holds, reservations counted."""
        shares = Shares(self._config.tenant_weights)
        for sequence in self.running:
            if not sequence.parent.is_remote_prefill:
                shares.add(flow_of(sequence.parent.request), len(sequence.samples))
        for grant in self._reservations.grants:
            shares.add(grant.flow, grant.num_slots)
        return shares

    def blocks(self) -> Shares:
        """As `slots`, a shared block counted for each that holds it."""
        shares = Shares(self._config.tenant_weights)
        for sequence in self.running:
            if not sequence.parent.is_foreign:
                shares.add(flow_of(sequence.parent.request), sequence.num_blocks)
        for grant in self._reservations.grants:
            shares.add(grant.flow, len(grant.reservation.block_ids) + len(grant.copy_block_ids))
        return shares

    def has_work(self) -> bool:
        if self.may_grant and any(sequence.parent.kind is WorkKind.AWAIT_KV for sequence in self.waiting):
            return True
        if not self.may_plan:
            return False
        return bool(self.running) or any(sequence.parent.kind is not WorkKind.AWAIT_KV for sequence in self.waiting)

    def load(self, costs: StepCosts, role: RoleChange | None = None) -> WorkerLoad:
        num_decoding = num_kv_tokens = num_prefill_tokens = 0
        for sequence in self.running:
            if sequence.is_decoding:
                num_decoding += 1
                num_kv_tokens += sequence.num_computed
            else:
                num_prefill_tokens += sequence.num_remaining
        for sequence in self.waiting:
            parent = sequence.parent
            if parent.kind is not WorkKind.AWAIT_KV and parent.first_scheduled_at_ns is None:
                num_prefill_tokens += len(sequence.token_ids) - sequence.num_expected_hits
        return WorkerLoad(
            num_running=num_decoding,
            num_waiting=len({sequence.parent.arrival for sequence in self.waiting}),
            num_reserved=self._reservations.num_slots,
            num_waiting_prefill_tokens=num_prefill_tokens,
            num_decode_kv_tokens=num_kv_tokens,
            num_free_blocks=self._pool.num_free,
            num_reusable_blocks=self._pool.num_reusable,
            num_held_blocks=self._pool.num_held,
            num_quarantined_blocks=self._pool.num_quarantined,
            num_total_blocks=self._pool.num_blocks,
            costs=costs,
            role=role,
        )

    def _count_lookup(self, state: WorkerRequest, num_hit_tokens: int) -> None:
        if self._config.enable_prefix_caching:
            self.num_prefix_queries += state.num_prompt_tokens
            self.num_prefix_hits += num_hit_tokens


def copied(sample: SampleState) -> SampleState:
    return SampleState(sample.sample_index, list(sample.output_token_ids), sample.finish_reason)


def order(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.key
