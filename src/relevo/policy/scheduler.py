"""Decides what one worker computes in each step: continuous batching with stall-free chunked prefill.

Owns the order of requests: who waits, who runs, who is preempted. Blocks belong to `policy.block_pool`, granted room to
`policy.reservations`. Knows no clock, no peers, no tensors; the live worker and the simulator drive the same object:
messages → calls, then `take_grants`, `plan`, execute, `commit`, in one thread.

A step is decodes first (one token each), then prompt chunks from what is left of the token budget (`policy.chunking`).
One waiting order holds submitted requests, prefill legs and reservations alike: (priority, arrival, sample).

- Room is first come, first served: once an entry does not fit, nobody behind it takes blocks. Prefill legs that compute
  straight into a receiver's blocks need no room and pass.
- All blocks of a prompt are taken when it starts, so a started prompt never waits for room.
- Watermark: starting or granting leaves one available block per decoding continuation, so that running decodes can
  grow; with no decodes everything that fits is given.
- `max_running` bounds continuations that run or have room reserved here; a request with a larger n runs alone.
- A continuation that finds no block preempts the last in order, itself at worst (`policy.preemption`); the victim
  keeps its place in the waiting order, which is before everybody of its priority that never ran.

Sources: vLLM (Kwon et al., SOSP 2023), Sarathi-Serve (Agrawal et al., OSDI 2024).
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence

from relevo.core.baton import Baton, SampleState
from relevo.core.events import TokenOutput, WorkerLoad
from relevo.core.ids import RequestId, TokenId, WorkerId
from relevo.core.kv import Reservation
from relevo.core.plan import ScheduledRow, StepPlan, StepResult
from relevo.core.request import EngineRequest
from relevo.policy import intake
from relevo.policy.block_pool import BlockPool
from relevo.policy.block_tables import BlockTables
from relevo.policy.chunking import chunk_tokens, prefill_budget
from relevo.policy.intake import Rejected, SchedulerConfig
from relevo.policy.legs import Branch, Leg, LegKind
from relevo.policy.outcome import ComputedPrefix, StepOutcome, computed_prefix, take_tokens
from relevo.policy.preemption import choose_victim
from relevo.policy.reservations import Reservations

__all__ = ["ComputedPrefix", "Rejected", "Scheduler", "SchedulerConfig", "StepOutcome"]


class Scheduler:
    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.first_block_id, config.num_blocks)
        self.reservations = Reservations(
            self.pool,
            worker_id=config.worker_id,
            epoch=config.epoch,
            block_size=config.block_size,
            lease_s=config.lease_s,
        )
        self.num_preemptions = 0
        self.num_prefix_queries = 0  # tokens
        self.num_prefix_hits = 0  # tokens
        self._tables = BlockTables(self.pool, config.block_size, config.enable_prefix_caching)
        self._legs: dict[RequestId, Leg] = {}
        self._waiting: list[Branch] = []  # in order of service
        self._running: list[Branch] = []  # in order of service
        self._step: list[Branch] | None = None  # branches of the plan that is being executed, row by row
        self._closed_after_step: list[Branch] = []
        self._num_steps = 0
        self._num_arrivals = 0
        self._num_steps_without_prefill = 0
        self._may_plan = self._may_grant = True  # something changed since the last attempt brought nothing
        self.set_role(config.max_prefill_tokens, config.max_running)

    # ---- what is asked of this worker --------------------------------------------------------------------------------

    def submit(
        self, request: EngineRequest, samples: tuple[SampleState, ...], use_reservation: bool, now_ns: int
    ) -> Rejected | None:
        """Compute prompt and continuations here. `samples`: what was emitted elsewhere already, copied on entry.

        `use_reservation`: computes what is not sealed yet of the request's own reservation, without queueing. The
        caller made sure that nobody else writes into it any more. After a rejection nothing of the request is held.
        """
        if use_reservation:
            return self._submit_reserved(request, samples, now_ns)
        rejected = self._check_new(request) or intake.check_local(request, samples, self.config)
        if rejected is None:
            leg = self._accept(request, LegKind.LOCAL, now_ns)
            for branch in self._branches(leg, samples):
                self._wait(branch)
        return rejected

    def _submit_reserved(
        self, request: EngineRequest, samples: tuple[SampleState, ...], now_ns: int
    ) -> Rejected | None:
        request_id = request.request_id
        rejected = intake.check_local(request, samples, self.config)
        if rejected is None and request_id not in self.reservations:
            rejected = Rejected("handoff_failed", "No room is reserved for the request on this worker.")
        if rejected is not None:
            if (leg := self._legs.get(request_id)) is not None and leg.kind is LegKind.RESERVE:
                self.abort(request_id, writer_active=False)
            return rejected
        leg, grant = self._legs[request_id], self.reservations.take(request_id)
        assert grant is not None
        leg.kind, leg.accepted_at_ns = LegKind.LOCAL, now_ns
        leg.num_cached_tokens = grant.reservation.num_hit_tokens
        first, *others = self._branches(leg, samples)
        self._tables.adopt(first, grant)
        self.pool.release(grant.copy_block_ids)
        self._run_or_wait(first)
        for branch in others:
            self._wait(branch)
        return None

    def reserve(self, request: EngineRequest, now_ns: int) -> Rejected | None:
        """Queue for room for the whole prompt and the copies that n > 1 needs; see `take_grants`."""
        rejected = self._check_new(request) or intake.check_reserve(request, self.config)
        if rejected is None:
            leg = self._accept(request, LegKind.RESERVE, now_ns)
            self._wait(self._branches(leg, ())[0])
        return rejected

    def take_grants(self, now_ns: int) -> list[Reservation]:
        """Grant room to waiting reservations in order; each grant is returned once.

        Requests that wait ahead for tokens of the step, not for room, keep the room they need (hits not discounted).
        """
        granted: list[Reservation] = []
        num_kept, num_samples_ahead = self._num_decoding(), 0
        for branch in tuple(self._waiting):
            leg = branch.leg
            if leg.is_foreign:
                continue
            if leg.kind is not LegKind.RESERVE:
                num_kept += intake.num_blocks_for(len(branch.token_ids), self.config.block_size)
                num_samples_ahead += 0 if leg.is_prefill_leg else len(branch.samples)
                continue
            has_slots = self._has_slots(len(branch.samples), num_samples_ahead)
            reservation = self._grant(branch, num_kept) if has_slots else None
            if reservation is None:
                break
            granted.append(reservation)
        self._may_grant = False
        self._may_plan = self._may_plan or bool(granted)
        return granted

    def prefill_into(self, request: EngineRequest, reservation: Reservation, now_ns: int) -> Rejected | None:
        """Compute the prompt for the worker that granted `reservation` and draw the first token(s).

        Zero-copy: straight into the reserved blocks, from `num_hit_tokens` on (a caller who knows that more is sealed
        passes a reservation that says so). Otherwise into own blocks, held until `finish_transfer` or `abort`; before
        an abort the caller makes sure that no block of it is being sent any more.
        """
        rejected = self._check_new(request) or intake.check_prefill(request, reservation, self.config)
        if rejected is None:
            leg = self._accept(request, LegKind.PREFILL, now_ns)
            leg.reservation, leg.is_foreign = reservation, self.config.zero_copy
            leg.max_outputs = intake.max_outputs(request, self.config, bounded_by_pool=False)
            self._wait(self._branches(leg, ())[0])
        return rejected

    def finish_transfer(self, request_id: RequestId) -> None:
        """The receiver has the whole prompt: let go of a prefill leg's own blocks. Unknown request: no-op."""
        leg = self._legs.get(request_id)
        if leg is not None and leg.is_prefill_leg:
            self._drop(leg)

    def seal(self, request_id: RequestId, num_tokens: int) -> None:
        """The first `num_tokens` tokens of a reservation are complete and can be hit. Unknown request: no-op."""
        self.reservations.seal(request_id, num_tokens)
        self._changed()

    def start_decode(self, baton: Baton, now_ns: int) -> Rejected | None:
        """Take over a reservation whose prompt is sealed and continue each unfinished sample of the baton.

        After a rejection nothing of the request is held; by then no writer is at work.
        """
        request_id, leg = baton.request_id, self._legs.get(baton.request_id)
        live = [sample for sample in baton.samples if sample.finish_reason is None]
        rejected = None
        if leg is None or request_id not in self.reservations:
            return Rejected("handoff_failed", "No room is reserved for the request on this worker.")
        if baton.num_sealed_tokens < leg.num_prompt_tokens:
            rejected = Rejected("handoff_failed", f"Only {baton.num_sealed_tokens} prompt tokens are sealed.")
        elif not live or any(not sample.output_token_ids for sample in live):
            rejected = Rejected("invalid_request", "A decode needs at least one unfinished sample, each with a token.")
        if rejected is not None:
            self.abort(request_id, writer_active=False)
            return rejected
        self._start(leg, live)
        return None

    def _start(self, leg: Leg, live: list[SampleState]) -> None:
        self.reservations.seal(leg.request.request_id, leg.num_prompt_tokens)
        grant = self.reservations.take(leg.request.request_id)
        assert grant is not None
        leg.kind, leg.owes_facts, spare = LegKind.LOCAL, False, grant.copy_block_ids
        first, *others = [self._branch(leg, (_copied(sample),)) for sample in live]
        self._tables.adopt(first, grant)
        forks = [self._tables.fork(first, branch.samples[0], spare) for branch in others]
        leg.branches = [first, *(branch for branch, _ in forks)]
        self.pool.release(spare)
        for branch in leg.branches:
            self._run_or_wait(branch)

    def abort(self, request_id: RequestId, writer_active: bool) -> None:
        """Let go of the request in whatever phase it is. Idempotent.

        `writer_active`: a prefill worker may still write; unsealed blocks of the reservation stay quarantined until
        `release`. Blocks of a step that is being executed are let go at its commit.
        """
        leg = self._legs.get(request_id)
        if leg is not None:
            self.reservations.drop(request_id, writer_active)
            self._drop(leg)

    def release(self, request_id: RequestId) -> None:
        """The writer of an aborted reservation has let go. Unknown request: no-op."""
        self.reservations.release(request_id)
        self._changed()

    def fence(self, worker_id: WorkerId, epoch: int) -> list[RequestId]:
        """Drop every prefill leg that computes for this incarnation of a worker; returns their requests."""
        fenced = [
            leg
            for leg in self._legs.values()
            if (room := leg.reservation) is not None and (room.worker_id, room.epoch) == (worker_id, epoch)
        ]
        for leg in fenced:
            self._drop(leg)
        return [leg.request.request_id for leg in fenced]

    def set_role(self, max_prefill_tokens: int, max_running: int) -> None:
        """Both take effect with the next step; what runs already goes on.

        `max_running` is kept below the step's token budget, so that decodes always leave a token to prompts.
        """
        self._max_prefill_tokens = max_prefill_tokens
        self._max_running = max(1, min(max_running, self.config.max_batched_tokens - 1))
        self._changed()

    # ---- one step ----------------------------------------------------------------------------------------------------

    def plan(self, now_ns: int) -> StepPlan | None:
        """The next step; None: nothing can be computed now. Must be followed by `commit` or `fail`."""
        assert self._step is None, "the last plan was neither committed nor failed"
        self._may_plan = False
        step: list[Branch] = []
        rows: list[ScheduledRow] = []
        self._plan_decodes(step, rows)
        self._plan_prefills(step, rows, now_ns)
        if not rows:
            return None
        self._may_plan = True
        self._num_steps += 1
        self._step = step
        size = self.config.block_size
        copies = tuple(
            (branch.copy_source, branch.block_ids[branch.num_computed // size])
            for branch in step
            if branch.copy_source is not None
        )
        return StepPlan(self._num_steps, tuple(rows), copies)

    def _plan_decodes(self, step: list[Branch], rows: list[ScheduledRow]) -> None:
        decoding = [branch for branch in self._running if branch.is_decoding]
        for branch in decoding[: self.config.max_batched_tokens]:
            if branch.is_running and self._grow(branch):
                self._schedule(branch, 1, step, rows)

    def _grow(self, branch: Branch) -> bool:
        """Room for the next token, at the cost of the last in order; False if the branch itself was preempted."""
        while not self._tables.cover(branch, len(branch.token_ids)):
            victim = choose_victim(self._running)
            assert victim is not None and not victim.is_in_step
            self._preempt(victim)
            if victim is branch:
                return False
        return True

    def _plan_prefills(self, step: list[Branch], rows: list[ScheduledRow], now_ns: int) -> None:
        num_decodes = len(rows)
        budget = prefill_budget(
            num_decodes=num_decodes,
            max_batched_tokens=self.config.max_batched_tokens,
            max_prefill_tokens=self._max_prefill_tokens,
            num_steps_without_prefill=self._num_steps_without_prefill,
            block_size=self.config.block_size,
        )
        started = [branch for branch in self._running if not branch.is_decoding]
        is_room_short = False
        for branch in heapq.merge(started, tuple(self._waiting), key=_key):
            if budget <= 0:
                break
            if not branch.is_running and not branch.leg.is_foreign:
                if is_room_short or self._is_sibling_ahead(branch):
                    continue
                # A waiting reservation keeps its place: nobody behind it takes room before it is granted.
                is_room_short = branch.leg.kind is LegKind.RESERVE or not self._open(branch)
                if is_room_short:
                    continue
            elif not branch.is_running:
                self._open_foreign(branch)
            num_tokens = chunk_tokens(branch.num_computed, branch.num_remaining, budget, self.config.block_size)
            if branch.leg.first_scheduled_at_ns is None:
                branch.leg.first_scheduled_at_ns = now_ns
            self._schedule(branch, num_tokens, step, rows)
            budget -= num_tokens
        self._num_steps_without_prefill = 0 if len(rows) > num_decodes else self._num_steps_without_prefill + 1

    def _schedule(self, branch: Branch, num_tokens: int, step: list[Branch], rows: list[ScheduledRow]) -> None:
        start, end = branch.num_computed, branch.num_computed + num_tokens
        is_whole = end == len(branch.token_ids)
        rows.append(
            ScheduledRow(
                request=branch.leg.request,
                token_ids=branch.token_ids[start:end],
                start=start,
                block_ids=branch.block_ids,
                samples=branch.samples if is_whole else (),
                is_prefill=not branch.is_decoding,
            )
        )
        branch.is_in_step = True
        step.append(branch)

    def commit(self, plan: StepPlan, result: StepResult, now_ns: int) -> StepOutcome:
        """Take in what the step computed: tokens, ends, finished blocks. Requests dropped meanwhile bring nothing."""
        assert self._step is not None and plan.step_id == result.step_id == self._num_steps
        outputs: list[TokenOutput] = []
        prefixes: list[ComputedPrefix] = []
        for branch, row, sampled in zip(self._step, plan.rows, result.sampled, strict=True):
            branch.is_in_step = False
            if branch.is_dropped:
                continue
            self._tables.advance(branch, len(row.token_ids))
            if branch.leg.is_prefill_leg:
                prefix = computed_prefix(branch, self.config.block_size)
                prefixes.extend([prefix] if prefix is not None else [])
            if row.samples:
                outputs.extend(take_tokens(branch, sampled, self.config.worker_id, now_ns))
                self._continue(branch)
        self._end_step()
        return StepOutcome(tuple(outputs), tuple(prefixes))

    def fail(self, request_ids: Sequence[RequestId]) -> None:
        """The step raised: drop these requests. The other rows of the step are planned again."""
        for request_id in request_ids:
            self.abort(request_id, writer_active=False)
        for branch in self._step or ():
            branch.is_in_step = False
        self._end_step()

    def _end_step(self) -> None:
        self._step = None
        for branch in self._closed_after_step:
            self._tables.close(branch)
        self._closed_after_step = []
        self._changed()

    def _continue(self, branch: Branch) -> None:
        """After a draw: the branch ends, goes on, or forks into one branch per unfinished sample."""
        leg, live = branch.leg, [sample for sample in branch.samples if sample.finish_reason is None]
        if leg.is_prefill_leg:
            self._stop_running(branch)
            if leg.is_foreign:
                self._drop(leg)
        elif not live:
            self._finish(branch)
        elif len(branch.samples) == 1:
            branch.token_ids.append(live[0].output_token_ids[-1])
        else:
            self._fork(branch, live)

    def _fork(self, branch: Branch, live: list[SampleState]) -> None:
        self._stop_running(branch)
        forks = [self._tables.fork(branch, sample, []) for sample in live[1:]]
        branch.samples = (live[0],)
        branch.token_ids.append(live[0].output_token_ids[-1])
        self._run(branch)
        for fork, has_room in forks:
            branch.leg.branches.append(fork)
            if has_room:
                self._run(fork)
            else:
                self._wait(fork)

    # ---- moves between the lists -------------------------------------------------------------------------------------

    def _check_new(self, request: EngineRequest) -> Rejected | None:
        if request.request_id in self._legs:
            return Rejected("invalid_request", f"Request {request.request_id} is on this worker already.")
        return None

    def _accept(self, request: EngineRequest, kind: LegKind, now_ns: int) -> Leg:
        self._num_arrivals += 1
        leg = Leg(
            request=request,
            kind=kind,
            arrival=self._num_arrivals,
            accepted_at_ns=now_ns,
            max_outputs=intake.max_outputs(request, self.config, bounded_by_pool=True),
            owes_facts=True,
        )
        self._legs[request.request_id] = leg
        return leg

    def _branches(self, leg: Leg, samples: tuple[SampleState, ...]) -> list[Branch]:
        """One branch per unfinished sample that has tokens, one for all that have none; `leg.branches` from now on."""
        if not samples:
            samples = tuple(SampleState(index) for index in range(leg.request.sampling.n))
        live = [_copied(sample) for sample in samples if sample.finish_reason is None]
        empty = tuple(sample for sample in live if not sample.output_token_ids)
        groups = [(sample,) for sample in live if sample.output_token_ids]
        leg.owes_facts = all(not sample.output_token_ids for sample in samples)
        leg.branches = [self._branch(leg, group) for group in ([empty] if empty else []) + groups]
        return leg.branches

    def _branch(self, leg: Leg, samples: tuple[SampleState, ...]) -> Branch:
        token_ids: list[TokenId] = [*leg.request.prompt_token_ids, *samples[0].output_token_ids]
        branch = Branch(leg=leg, samples=samples, token_ids=token_ids)
        if not leg.is_foreign:
            branch.hashes = self._tables.hashes(leg.request, token_ids)
        return branch

    def _grant(self, branch: Branch, num_kept: int) -> Reservation | None:
        leg = branch.leg
        num_usable = len(self._tables.usable_hashes(branch.hashes, leg.num_prompt_tokens))
        reservation = self.reservations.grant(leg.request, branch.hashes, num_usable, num_kept)
        if reservation is not None:
            self._count_lookup(leg, reservation.num_hit_tokens)
            self._waiting.remove(branch)
            leg.branches = []
        return reservation

    def _open(self, branch: Branch) -> bool:
        """Start a waiting branch if there is a place and room for it."""
        leg = branch.leg
        if not leg.is_prefill_leg and not self._has_slots(len(branch.samples)):
            return False
        if not self._tables.open(branch, self._num_decoding()):
            return False
        if leg.first_scheduled_at_ns is None:
            leg.num_cached_tokens = min(branch.num_computed, leg.num_prompt_tokens)
            self._count_lookup(leg, leg.num_cached_tokens)
        self._waiting.remove(branch)
        self._run(branch)
        return True

    def _open_foreign(self, branch: Branch) -> None:
        reservation = branch.leg.reservation
        assert reservation is not None
        branch.block_ids = list(reservation.block_ids)
        branch.num_computed = min(reservation.num_hit_tokens, branch.leg.num_prompt_tokens - 1)
        branch.leg.num_reported_blocks = branch.num_computed // self.config.block_size
        branch.leg.num_cached_tokens = branch.num_computed
        self._waiting.remove(branch)
        self._run(branch)

    def _run(self, branch: Branch) -> None:
        branch.is_running = True
        insort(self._running, branch, key=_key)
        self._changed()

    def _stop_running(self, branch: Branch) -> None:
        self._running.remove(branch)
        branch.is_running = False

    def _wait(self, branch: Branch) -> None:
        reservation = branch.leg.reservation if branch.leg.is_foreign else None
        hits = self._tables.expected_hits(branch) if reservation is None else reservation.num_hit_tokens
        branch.num_expected_hits = hits
        insort(self._waiting, branch, key=_key)
        self._changed()

    def _run_or_wait(self, branch: Branch) -> None:
        """Run a branch that holds its computed tokens if it also gets the rest of its blocks; queue it otherwise.

        A decode that is one token short of room runs: it may preempt.
        """
        is_short = not self._tables.cover(branch, len(branch.token_ids))
        if not branch.block_ids or (is_short and branch.num_remaining > 1):
            self._tables.close(branch)
            self._wait(branch)
        else:
            self._run(branch)

    def _preempt(self, branch: Branch) -> None:
        self.num_preemptions += 1
        self._stop_running(branch)
        self._tables.close(branch)
        self._wait(branch)

    def _finish(self, branch: Branch) -> None:
        self._stop_running(branch)
        self._tables.close(branch)
        branch.leg.branches.remove(branch)
        if not branch.leg.branches:
            del self._legs[branch.leg.request.request_id]

    def _drop(self, leg: Leg) -> None:
        """Forget a request; blocks of rows that are being executed are let go at the end of the step."""
        del self._legs[leg.request.request_id]
        for branch in leg.branches:
            if branch.is_running:
                self._stop_running(branch)
            elif branch in self._waiting:
                self._waiting.remove(branch)
            branch.is_dropped = True
            if branch.is_in_step:
                self._closed_after_step.append(branch)
            else:
                self._tables.close(branch)
        self._changed()

    # ---- what can be asked about it ----------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """`plan` may return something, or `take_grants` may. False: wait for the next message."""
        if self._may_grant and any(branch.leg.kind is LegKind.RESERVE for branch in self._waiting):
            return True
        if not self._may_plan:
            return False
        return bool(self._running) or any(branch.leg.kind is not LegKind.RESERVE for branch in self._waiting)

    def load(self) -> WorkerLoad:
        """The state between steps; costs are the driver's to fill in."""
        decoding = [branch for branch in self._running if branch.is_decoding]
        computing = [branch for branch in self._running if not branch.is_decoding]
        waiting = [branch for branch in self._waiting if branch.leg.kind is not LegKind.RESERVE]
        num_prefill_tokens = sum(branch.num_remaining for branch in computing)
        num_prefill_tokens += sum(len(branch.token_ids) - branch.num_expected_hits for branch in waiting)
        return WorkerLoad(
            num_running=len(decoding),
            num_waiting=len({branch.leg.arrival for branch in self._waiting}),
            num_reserved=len(self.reservations),
            num_waiting_prefill_tokens=num_prefill_tokens,
            num_decode_kv_tokens=sum(branch.num_computed for branch in decoding),
            num_free_blocks=self.pool.num_free,
            num_reusable_blocks=self.pool.num_reusable,
            num_held_blocks=self.pool.num_held,
            num_quarantined_blocks=self.pool.num_quarantined,
            num_total_blocks=self.pool.num_blocks,
        )

    def _num_decoding(self) -> int:
        return sum(1 for branch in self._running if branch.is_decoding)

    def _has_slots(self, num_samples: int, num_ahead: int = 0) -> bool:
        taken = num_ahead + sum(len(branch.samples) for branch in self._running if not branch.leg.is_prefill_leg)
        taken += self.reservations.num_samples
        return taken == 0 or taken + num_samples <= self._max_running

    def _is_sibling_ahead(self, branch: Branch) -> bool:
        """Another continuation computes the shared prompt at present: wait for its blocks instead of repeating it."""
        if not self.config.enable_prefix_caching or len(branch.leg.branches) == 1:
            return False
        num_prompt = branch.leg.num_prompt_tokens
        return any(other.is_running and other.num_computed < num_prompt for other in branch.leg.branches)

    def _count_lookup(self, leg: Leg, num_hit_tokens: int) -> None:
        if self.config.enable_prefix_caching:
            self.num_prefix_queries += leg.num_prompt_tokens
            self.num_prefix_hits += num_hit_tokens

    def _changed(self) -> None:
        self._may_plan = self._may_grant = True


def _copied(sample: SampleState) -> SampleState:
    return SampleState(sample.sample_index, list(sample.output_token_ids), sample.finish_reason)


def _key(branch: Branch) -> tuple[int, int, int]:
    return branch.key
