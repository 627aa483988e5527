"""Decides what one worker computes in each step: continuous batching with stall-free chunked prefill.

Orders the calls of the parts that own the state: `block_pool`, `reservations`, `lineup` (who waits, who runs),
`step_planner`. Knows no clock, no peers, no tensors; the live worker and the simulator drive the same object:
messages → calls, then `take_grants`, `plan`, execute, `commit`, in one thread.

A step is decodes first (one token each), then prompt chunks from what is left of the token budget (`policy.chunking`).
One waiting order holds submitted requests, prefill legs and reservations alike: (priority, arrival, sample).

- Tenants have fair shares of slots, blocks and prompt tokens (`policy.fair_turns`). Inside a tenant room is first come,
  first served: once an entry finds no room or no slot, no later one of the tenant takes blocks, and other tenants pass
  it for a bounded time. Prefill legs that compute straight into a receiver's blocks need neither and pass.
- All blocks of a prompt are taken when it starts, so a started prompt never waits for room.
- Watermark: starting or granting leaves one available block per decoding continuation, so that running decodes can
  grow; with no decodes everything that fits is given.
- `max_running` bounds the slots: continuations that run or have room reserved here. A request runs with as many of
  its continuations as find slots; the others wait for theirs, and draw the tokens that they would have drawn beside it.
- A continuation that finds no block preempts the last in order of the tenant that holds most, itself at worst, and one
  that is kept from its tenant's share takes it from a tenant that has more (`policy.preemption`). The victim keeps its
  place in the waiting order, which is before every request of its priority that never ran.

Sources: vLLM (Kwon et al., SOSP 2023), Sarathi-Serve (Agrawal et al., OSDI 2024).
"""

from __future__ import annotations

from relevo.core.baton import Baton, SampleState
from relevo.core.events import UNKNOWN_COSTS, StepCosts, TokenOutput, WorkerLoad
from relevo.core.ids import RequestId, WorkerId
from relevo.core.kv import Reservation
from relevo.core.plan import StepPlan, StepResult
from relevo.core.request import EngineRequest
from relevo.policy import intake
from relevo.policy.block_pool import BlockPool
from relevo.policy.block_tables import BlockTables
from relevo.policy.fair_turns import Party, in_turn, party_of
from relevo.policy.intake import Rejected, SchedulerConfig
from relevo.policy.legs import Branch, Leg, LegKind
from relevo.policy.lineup import Lineup, copied
from relevo.policy.outcome import ComputedPrefix, StepOutcome, computed_prefix, take_tokens
from relevo.policy.reservations import Reservations
from relevo.policy.step_planner import StepPlanner, StepRows

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
        self._tables = BlockTables(self.pool, config.block_size, config.enable_prefix_caching)
        self._lineup = Lineup(config, self.pool, self._tables, self.reservations)
        self._planner = StepPlanner(config, self._lineup, self._tables)
        self._step: StepRows | None = None  # of the plan that is being executed
        self._num_steps = 0
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
            leg = self._lineup.accept(request, LegKind.LOCAL, now_ns)
            for branch in self._lineup.branch_out(leg, samples):
                self._lineup.wait(branch)
        return rejected

    def _submit_reserved(
        self, request: EngineRequest, samples: tuple[SampleState, ...], now_ns: int
    ) -> Rejected | None:
        request_id = request.request_id
        rejected = intake.check_local(request, samples, self.config)
        if rejected is None and request_id not in self.reservations:
            rejected = Rejected("handoff_failed", "No room is reserved for the request on this worker.")
        if rejected is not None:
            if (leg := self._lineup.legs.get(request_id)) is not None and leg.kind is LegKind.RESERVE:
                self.abort(request_id, writer_active=False)
            return rejected
        leg = self._lineup.legs[request_id]
        first, *others = self._lineup.branch_out(leg, samples)  # before the room is taken: hashing may raise
        grant = self.reservations.take(request_id)
        assert grant is not None
        leg.kind, leg.accepted_at_ns = LegKind.LOCAL, now_ns
        leg.num_cached_tokens = grant.reservation.num_hit_tokens
        self._tables.adopt(first, grant)
        self.pool.release(grant.copy_block_ids)
        if len(first.samples) > grant.num_slots:
            self._lineup.set_aside(first, grant.num_slots)
        self._lineup.run_or_wait(first)
        for branch in others:
            self._lineup.wait(branch)
        return None

    def reserve(self, request: EngineRequest, now_ns: int) -> Rejected | None:
        """Queue for room for the whole prompt and the copies that n > 1 needs; see `take_grants`."""
        rejected = self._check_new(request) or intake.check_reserve(request, self.config)
        if rejected is None:
            leg = self._lineup.accept(request, LegKind.RESERVE, now_ns)
            self._lineup.wait(self._lineup.branch_out(leg, ())[0])
        return rejected

    def take_grants(self, now_ns: int) -> list[Reservation]:
        """Grant room to waiting reservations in order; each grant is returned once.

        Requests that wait ahead for tokens of the step, not for room, keep the room they need (hits not discounted).
        """
        granted: list[Reservation] = []
        num_kept, num_ahead = self._lineup.num_decoding() if self._lineup.waiting else 0, 0
        kept_out: set[Party] = set()
        for branch in in_turn(tuple(self._lineup.waiting), self._lineup.slots()):
            leg, party = branch.leg, party_of(branch.leg.request)
            if leg.is_foreign or party in kept_out:
                continue
            if leg.kind is not LegKind.RESERVE:
                if branch.is_short:  # others may pass, see `fair_turns.MAX_PASSED_POOLS`
                    kept_out.add(party)
                    continue
                num_kept += intake.num_blocks_for(len(branch.token_ids), self.config.block_size)
                num_ahead += 0 if leg.is_prefill_leg else 1
                continue
            num_slots = self._lineup.num_slots_for(branch, num_ahead)
            reservation = self._lineup.grant(branch, num_kept, num_slots) if num_slots else None
            if reservation is not None:
                granted.append(reservation)
                continue
            kept_out.add(party)
            if num_slots:
                self._lineup.is_short(branch)
        self._lineup.may_grant = False
        self._lineup.may_plan = self._lineup.may_plan or bool(granted)
        return granted

    def prefill_into(
        self, request: EngineRequest, reservation: Reservation, now_ns: int, num_found_tokens: int | None = None
    ) -> Rejected | None:
        """Compute the prompt for the worker that granted `reservation` and draw the first token(s).

        Zero-copy: straight into the reserved blocks, from `num_hit_tokens` on (a caller who knows that more is sealed
        passes a reservation that says so). Otherwise into own blocks, held until `finish_transfer` or `abort`; before
        an abort the caller makes sure that no block of it is being sent any more. `num_found_tokens`: those hits that
        count as cached, because no earlier attempt at this request computed them; None: all of them.
        """
        rejected = self._check_new(request) or intake.check_prefill(request, reservation, self.config)
        if rejected is None:
            leg = self._lineup.accept(request, LegKind.PREFILL, now_ns)
            leg.reservation, leg.is_foreign = reservation, self.config.zero_copy
            leg.num_found_tokens = reservation.num_hit_tokens if num_found_tokens is None else num_found_tokens
            self._lineup.wait(self._lineup.branch_out(leg, ())[0])
        return rejected

    def finish_transfer(self, request_id: RequestId) -> None:
        """The receiver has the whole prompt: let go of a prefill leg's own blocks. Unknown request: no-op."""
        leg = self._lineup.legs.get(request_id)
        if leg is not None and leg.is_prefill_leg:
            self._lineup.drop(leg)

    def seal(self, request_id: RequestId, num_tokens: int) -> None:
        """The first `num_tokens` tokens of a reservation are complete and can be hit. Unknown request: no-op."""
        self.reservations.seal(request_id, num_tokens)
        self._lineup.changed()

    def start_decode(self, baton: Baton, now_ns: int) -> Rejected | None:
        """Take over a reservation whose prompt is sealed and continue each unfinished sample of the baton.

        After a rejection nothing of the request is held; by then no writer is at work.
        """
        request_id, leg = baton.request_id, self._lineup.legs.get(baton.request_id)
        live = [sample for sample in baton.samples if sample.finish_reason is None]
        rejected = None
        if leg is None or request_id not in self.reservations:
            return Rejected("handoff_failed", "No room is reserved for the request on this worker.")
        if baton.num_sealed_tokens < leg.num_prompt_tokens:
            rejected = Rejected("handoff_failed", f"Only {baton.num_sealed_tokens} prompt tokens are sealed.")
        elif not live or any(not sample.output_token_ids for sample in live):
            rejected = Rejected("invalid_request", "A decode needs at least one unfinished sample, each with a token.")
        else:
            rejected = next(filter(None, (intake.check_ids(each.output_token_ids, self.config) for each in live)), None)
        if rejected is not None:
            self.abort(request_id, writer_active=False)
            return rejected
        self._start(leg, live)
        return None

    def _start(self, leg: Leg, live: list[SampleState]) -> None:
        first, *others = [self._lineup.branch(leg, (copied(sample),)) for sample in live]
        self.reservations.seal(leg.request.request_id, leg.num_prompt_tokens)
        grant = self.reservations.take(leg.request.request_id)
        assert grant is not None
        leg.kind, leg.owes_facts, spare = LegKind.LOCAL, False, grant.copy_block_ids
        self._tables.adopt(first, grant)
        forks = [self._tables.fork(first, branch.samples[0], spare)[0] for branch in others[: grant.num_slots - 1]]
        later = others[grant.num_slots - 1 :]
        leg.branches = [first, *forks, *later]
        self.pool.release(spare)
        for branch in (first, *forks):
            self._lineup.run_or_wait(branch)
        for branch in later:
            self._lineup.wait(branch)

    def abort(self, request_id: RequestId, writer_active: bool) -> None:
        """Let go of the request in whatever phase it is. Idempotent.

        `writer_active`: a prefill worker may still write; unsealed blocks of the reservation stay quarantined until
        `release`. Blocks of a step that is being executed are let go at its commit.
        """
        leg = self._lineup.legs.get(request_id)
        if leg is not None:
            self.reservations.drop(request_id, writer_active)
            self._lineup.drop(leg)

    def release(self, request_id: RequestId) -> None:
        """The writer of an aborted reservation has let go. Unknown request: no-op."""
        self.reservations.release(request_id)
        self._lineup.changed()

    def fence(self, worker_id: WorkerId, epoch: int) -> list[RequestId]:
        """Drop every prefill leg for an earlier incarnation of a worker; returns their requests."""
        fenced = [
            leg
            for leg in self._lineup.legs.values()
            if (room := leg.reservation) is not None and room.worker_id == worker_id and room.epoch < epoch
        ]
        for leg in fenced:
            self._lineup.drop(leg)
        return [leg.request.request_id for leg in fenced]

    def set_role(self, max_prefill_tokens: int, max_running: int) -> None:
        """Both take effect with the next step; what runs already goes on.

        `max_running` is kept below the step's token budget, so that decodes always leave a token to prompts.
        """
        self._planner.max_prefill_tokens = max_prefill_tokens
        self._lineup.max_running = max(1, min(max_running, self.config.max_batched_tokens - 1))
        self._lineup.changed()

    # ---- one step ----------------------------------------------------------------------------------------------------

    def plan(self, now_ns: int) -> StepPlan | None:
        """The next step; None: nothing can be computed now. Must be followed by `commit`."""
        assert self._step is None, "the last plan was not committed"
        self._lineup.may_plan = False
        step = self._planner.rows(now_ns)
        if not step:
            return None
        self._lineup.may_plan = True
        self._num_steps += 1
        self._step = step
        size = self.config.block_size
        copies = tuple(
            (branch.copy_source, branch.block_ids[branch.num_computed // size])
            for branch, _ in step
            if branch.copy_source is not None
        )
        return StepPlan(self._num_steps, tuple(row for _, row in step), copies)

    def commit(self, plan: StepPlan, result: StepResult, now_ns: int) -> StepOutcome:
        """Take in what the step computed: tokens, ends, finished blocks. Requests dropped meanwhile bring nothing.

        Those whose rows could not be computed are dropped before.
        """
        assert self._step is not None and plan.step_id == result.step_id == self._num_steps
        outputs: list[TokenOutput] = []
        prefixes: list[ComputedPrefix] = []
        for (branch, row), sampled in zip(self._step, result.sampled, strict=True):
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
        self._step = None
        self._lineup.end_step()
        return StepOutcome(tuple(outputs), tuple(prefixes))

    def _continue(self, branch: Branch) -> None:
        """After a draw: the branch ends, goes on, or forks into one branch per unfinished sample."""
        leg, live = branch.leg, [sample for sample in branch.samples if sample.finish_reason is None]
        if leg.is_prefill_leg:
            self._lineup.stop(branch)
            if leg.is_foreign:
                self._lineup.drop(leg)
        elif not live:
            self._lineup.finish(branch)
        elif len(branch.samples) == 1:
            branch.token_ids.append(live[0].output_token_ids[-1])
        else:
            self._fork(branch, live)

    def _fork(self, branch: Branch, live: list[SampleState]) -> None:
        self._lineup.stop(branch)
        forks = [self._tables.fork(branch, sample, []) for sample in live[1:]]
        branch.samples = (live[0],)
        branch.token_ids.append(live[0].output_token_ids[-1])
        self._lineup.run(branch)
        for fork, has_room in forks:
            branch.leg.branches.append(fork)
            if has_room:
                self._lineup.run(fork)
            else:
                self._lineup.wait(fork)

    def _check_new(self, request: EngineRequest) -> Rejected | None:
        if request.request_id in self._lineup.legs:
            return Rejected("invalid_request", f"Request {request.request_id} is on this worker already.")
        return None

    # ---- what can be asked about it ----------------------------------------------------------------------------------

    def holds(self, request_id: RequestId) -> bool:
        """Something of the request is queued, reserved, running or being sent (a quarantine is not counted)."""
        return request_id in self._lineup.legs

    def has_work(self) -> bool:
        """`plan` may return something, or `take_grants` may. False: wait for the next message."""
        return self._lineup.has_work()

    def load(self, costs: StepCosts = UNKNOWN_COSTS) -> WorkerLoad:
        """The state between steps; what steps cost is the driver's to know."""
        return self._lineup.load(costs)

    @property
    def num_preemptions(self) -> int:
        return self._lineup.num_preemptions

    @property
    def num_prefix_queries(self) -> int:
        """Prompt tokens looked up in the prefix cache; a preempted request is not counted again."""
        return self._lineup.num_prefix_queries

    @property
    def num_prefix_hits(self) -> int:
        return self._lineup.num_prefix_hits
