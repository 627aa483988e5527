"""Decides what one worker computes in each step: continuous batching with stall-free chunked prefill.

Orders the calls of the parts that own the state: `block_pool`, `reservations`, `request_queues` (what waits and what
runs), `step_planner`. Knows no clock, no peers, no tensors; the live worker and the simulator drive the same object:
messages → calls, then `take_grants`, `plan`, execute, `commit`, in one thread.

A step is decodes first (one token each), then prompt chunks from what is left of the token budget
(`policy.worker.chunking`). One waiting order holds submitted requests, remote prefills and reservations alike:
(priority, arrival, sample).

- Tenants have fair shares of slots, blocks and prompt tokens (`policy.worker.fair_turns`). Inside a tenant room is
  first come, first served: once a request finds no room or no slot, no later one of the tenant takes blocks, and other
  tenants pass it for a bounded time. Remote prefills that compute straight into a receiver's blocks need neither and
  pass.
- All blocks of a prompt are taken when it starts, so a started prompt never waits for room.
- Watermark: starting or granting leaves one available block per decoding continuation, so that running decodes can
  grow; with no decodes everything that fits is given.
- `max_running` bounds the slots: continuations that run or have room reserved here. A request runs with as many of
  its continuations as find slots; the others wait for theirs, and draw the tokens that they would have drawn beside it.
- A continuation that finds no block preempts the last in order of the tenant that holds most, itself at worst, and one
  that is kept from its tenant's share takes it from a tenant that has more (`policy.worker.preemption`). The victim
  keeps its place in the waiting order, which is before every request of its priority that never ran.

Sources: vLLM (Kwon et al., SOSP 2023), Sarathi-Serve (Agrawal et al., OSDI 2024).
"""

from __future__ import annotations

from collections import abc
from dataclasses import replace
from functools import partial

from relevo.core import errors
from relevo.core.baton import Baton, SampledToken, SampleState
from relevo.core.events import UNKNOWN_COSTS, StepCosts, TokenOutput, WorkerLoad
from relevo.core.handoff import KVPath, Link
from relevo.core.ids import PeerId, RequestId
from relevo.core.kv import Reservation
from relevo.core.plan import StepPlan, StepResult
from relevo.core.request import EngineRequest
from relevo.core.role import RoleChange
from relevo.policy.worker import intake
from relevo.policy.worker.block_pool import BlockPool
from relevo.policy.worker.block_tables import BlockTables
from relevo.policy.worker.fair_turns import Flow, flow_of, in_turn
from relevo.policy.worker.intake import Rejected, SchedulerConfig, role_prefill_tokens
from relevo.policy.worker.quiet_steps import may_end, num_quiet_steps, num_taken, take_quiet_steps
from relevo.policy.worker.remote_prefill import ComputedPrefix, RemotePrefill
from relevo.policy.worker.request_queues import RequestQueues, copied
from relevo.policy.worker.reservations import Reservations
from relevo.policy.worker.step_outcome import StepOutcome, scores_output, take_tokens
from relevo.policy.worker.step_planner import StepPlanner
from relevo.policy.worker.worker_requests import Sequence, WorkerRequest, WorkKind

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
            more_groups=config.more_groups,
        )
        self._tables = BlockTables(self.pool, config)
        self._queues = RequestQueues(config, self.pool, self._tables, self.reservations)
        self.requests = self._queues.requests  # everything that this worker holds something of, quarantines excepted
        self._planner = StepPlanner(config, self._queues, self._tables)
        self._step: list[Sequence] | None = None  # of the plan that is being executed
        self._num_steps = 0
        self.role: RoleChange | None = None  # the last that it was given
        self.set_role(config.max_prefill_tokens, config.max_running)

    # ---- what is asked of this worker --------------------------------------------------------------------------------

    def submit(self, request: EngineRequest, samples: tuple[SampleState, ...], now_ns: int) -> Rejected | None:
        """Compute prompt and continuations here. `samples`: what was emitted elsewhere already, copied on the way in.
        After a rejection nothing of the request is held."""
        rejected = self._check_new(request) or intake.check_local(request, samples, self.config)
        if rejected is None:
            state = self._queues.accept(request, WorkKind.GENERATE, now_ns)
            for sequence in self._queues.make_sequences(state, samples):
                self._queues.wait(sequence)
        return rejected

    def submit_reserved(self, request_id: RequestId, samples: tuple[SampleState, ...], now_ns: int) -> Rejected | None:
        """The same in the room that was granted, without queueing: what is sealed is not computed again. The caller
        made sure that no writer is at work there any more. With several KV groups room and place in the queue are
        taken anew."""
        state = self.requests.get(request_id)
        if state is None or state.kind is not WorkKind.AWAIT_KV:
            return intake.NO_ROOM
        granted = request_id in self.reservations
        rejected = intake.check_local(state.request, samples, self.config) if granted else intake.NO_ROOM
        if rejected is not None:
            self.abort(request_id, writer_active=False)
            return rejected
        first, *others = self._queues.make_sequences(state, samples)  # before the room is taken: hashing may raise
        grant = self.reservations.take(request_id)
        assert grant is not None
        state.kind, state.accepted_at_ns = WorkKind.GENERATE, now_ns
        state.num_cached_tokens = grant.reservation.num_hit_tokens
        self.pool.release(grant.copy_block_ids)
        if self.config.more_groups:  # what other groups have lies there for the end of the prompt alone
            self.pool.release([*grant.reservation.block_ids, *grant.found.all])
            for sequence in (first, *others):
                self._queues.wait(sequence)
            return None
        self._tables.adopt(first, grant)
        if len(first.samples) > grant.num_slots:
            self._queues.set_aside(first, grant.num_slots)
        self._queues.run_or_wait(first)
        for sequence in others:
            self._queues.wait(sequence)
        return None

    def reserve(self, request: EngineRequest, now_ns: int) -> Rejected | None:
        """Queue for room for the whole prompt and the copies that n > 1 needs; see `take_grants`."""
        rejected = self._check_new(request) or intake.check_reserve(request, self.config)
        if rejected is None:
            state = self._queues.accept(request, WorkKind.AWAIT_KV, now_ns)
            self._queues.wait(self._queues.make_sequences(state, ())[0])
        return rejected

    def take_grants(self, now_ns: int) -> list[Reservation]:
        """Grant room to waiting reservations in order; each grant is returned once.

        Requests that wait ahead for tokens of the step, not for room, keep the room they need (hits not discounted).
        """
        granted: list[Reservation] = []
        if not self._queues.waiting:  # as before nearly every step
            self._queues.may_grant = False
            return granted
        num_kept, num_ahead = self._queues.num_decoding(), 0
        kept_out: set[Flow] = set()
        for sequence in in_turn(tuple(self._queues.waiting), self._queues.slots()):
            state, flow = sequence.parent, flow_of(sequence.parent.request)
            if state.is_foreign or flow in kept_out:
                continue
            if state.kind is not WorkKind.AWAIT_KV:
                if sequence.is_short:  # others may pass, see `fair_turns.MAX_PASSED_POOLS`
                    kept_out.add(flow)
                    continue
                num_kept += self.config.num_blocks_for(len(sequence.token_ids))
                num_ahead += 0 if state.is_remote_prefill else 1
                continue
            num_slots = self._queues.num_slots_for(sequence, num_ahead)
            reservation = self._queues.grant(sequence, num_kept, num_slots) if num_slots else None
            if reservation is not None:
                granted.append(reservation)
                continue
            kept_out.add(flow)
            if num_slots:
                self._queues.note_short(sequence)
        self._queues.may_grant = False
        self._queues.may_plan = self._queues.may_plan or bool(granted)
        return granted

    def prefill_into(
        self,
        request: EngineRequest,
        reservation: Reservation,
        now_ns: int,
        *,
        path: KVPath,
        num_found_tokens: int | None = None,
    ) -> Rejected | None:
        """Compute the prompt for the worker that granted `reservation` and draw the first token(s).

        Zero-copy paths: straight into the reserved blocks, from `num_hit_tokens` on (a caller that knows that more is
        sealed passes a reservation that says so). Others: into own blocks; before an abort the caller makes sure that
        no block of it is being sent any more. Held until `finish_transfer` or `abort`. `num_found_tokens`: those hits
        that count as cached, because no earlier attempt at this request computed them; None: all of them. With several
        KV groups the room is for what the receiver needs at the end, and prompts are computed in own blocks.
        """
        if self.config.more_groups:
            path = replace(path, link=max(path.link, Link.BOX))
        rejected = self._check_new(request) or intake.check_prefill(request, reservation, path.zero_copy, self.config)
        if rejected is None:
            state = self._queues.accept(request, WorkKind.PREFILL_ONLY, now_ns)
            state.remote = RemotePrefill(
                reservation=reservation,
                path=path,
                num_prompt_tokens=state.num_prompt_tokens,
                num_found_tokens=reservation.num_hit_tokens if num_found_tokens is None else num_found_tokens,
                block_size=self.config.block_size,
            )
            self._queues.wait(self._queues.make_sequences(state, ())[0])
        return rejected

    def finish_transfer(self, request_id: RequestId) -> None:
        """The receiver has the whole prompt: let go of a remote prefill. Unknown request: no-op."""
        state = self.requests.get(request_id)
        if state is not None and state.is_remote_prefill:
            self._queues.drop(state)

    def seal(self, request_id: RequestId, num_tokens: int) -> None:
        """The first `num_tokens` tokens of a reservation are complete and can be hit. Unknown request: no-op."""
        self.reservations.seal(request_id, num_tokens)
        self._queues.changed()

    def start_decode(self, baton: Baton, now_ns: int) -> Rejected | None:
        """Take over a reservation whose prompt is sealed and continue each unfinished sample of the baton.

        After a rejection nothing of the request is held; by then no writer is at work.
        """
        request_id, state = baton.request_id, self.requests.get(baton.request_id)
        live = [sample for sample in baton.samples if sample.finish_reason is None]
        if state is None or state.kind is not WorkKind.AWAIT_KV:
            return intake.NO_ROOM
        if request_id not in self.reservations:
            rejected: Rejected | None = intake.NO_ROOM
        elif baton.num_sealed_tokens < state.num_prompt_tokens:
            rejected = Rejected(errors.HandoffFailed.code, f"Only {baton.num_sealed_tokens} prompt tokens are sealed.")
        elif any(not sample.output_token_ids for sample in live):
            rejected = Rejected(errors.InvalidRequest.code, "A decode needs a token of each continuation.")
        else:
            rejected = intake.check_samples(state.request, baton.samples, self.config)
        if rejected is not None:
            self.abort(request_id, writer_active=False)
            return rejected
        self._start(state, live)
        return None

    def _start(self, state: WorkerRequest, live: list[SampleState]) -> None:
        first, *others = [self._queues.sequence(state, (copied(sample),)) for sample in live]
        self.reservations.seal(state.request.request_id, state.num_prompt_tokens)
        grant = self.reservations.take(state.request.request_id)
        assert grant is not None
        state.kind, state.owes_facts, spare = WorkKind.GENERATE, False, grant.copy_block_ids
        self._tables.adopt(first, grant)
        forks = [self._tables.fork(first, sequence.samples[0], spare)[0] for sequence in others[: grant.num_slots - 1]]
        later = others[grant.num_slots - 1 :]
        state.sequences = [first, *forks, *later]
        self.pool.release(spare)
        for sequence in (first, *forks):
            self._queues.run_or_wait(sequence)
        for sequence in later:
            self._queues.wait(sequence)

    def abort(self, request_id: RequestId, writer_active: bool, keeper: PeerId | None = None) -> None:
        """Let go of the request in whatever phase it is. Idempotent.

        `writer_active`: a prefill worker may still write; unsealed blocks of the reservation stay quarantined until
        `release`, which the gateway `keeper` will say. Blocks of a step that is being executed are let go at its
        commit.
        """
        state = self.requests.get(request_id)
        if state is not None:
            self.reservations.drop(request_id, writer_active, keeper)
            self._queues.drop(state)

    def release(self, request_id: RequestId) -> None:
        """The writer of an aborted reservation has let go. Unknown request: no-op."""
        self.reservations.release(request_id)
        self._queues.changed()

    def take_role(self, change: RoleChange) -> bool:
        """From the next step on; what runs or waits here goes on. False: it was told this, or something later."""
        if self.role is not None and self.role.version >= change.version:
            return False
        self.role = change
        self.set_role(role_prefill_tokens(change.role, self.config), self.config.max_running)
        return True

    def set_role(self, max_prefill_tokens: int, max_running: int) -> None:
        """Both take effect with the next step; what runs already goes on.

        `max_running` is kept below the step's token budget, so that decodes always leave a token to prompts.
        """
        self._planner.max_prefill_tokens = max_prefill_tokens
        self._queues.max_running = max(1, min(max_running, self.config.max_batched_tokens - 1))
        self._queues.changed()

    # ---- one step ----------------------------------------------------------------------------------------------------

    def plan(self, now_ns: int, costs: StepCosts = UNKNOWN_COSTS) -> StepPlan | None:
        """The next step; None: nothing can be computed now. Must be followed by `commit`. `costs`: of steps, for the
        target of the time between tokens."""
        assert self._step is None, "the last plan was not committed"
        self._queues.may_plan = False
        plan = StepPlan(step_id=self._num_steps + 1)
        self._planner.costs = costs
        step = self._planner.fill(plan, now_ns)
        if not step:
            return None
        plan.removed = self._tables.take_closed()
        self._queues.may_plan = True
        self._num_steps += 1
        self._step = step
        return plan

    @property
    def planned_requests(self) -> list[RequestId]:
        """Of each row of the plan that is being executed."""
        assert self._step is not None, "nothing is being executed"
        return [sequence.parent.request.request_id for sequence in self._step]

    def take_preempted(self) -> abc.Sequence[RequestId]:
        """Whose blocks went to others in the steps since the last call."""
        if not self._queues.preempted:
            return ()
        taken, self._queues.preempted = self._queues.preempted, []
        return taken

    def commit(self, plan: StepPlan, result: StepResult, now_ns: int) -> StepOutcome:
        """Take in what the step computed: tokens, ends, finished blocks. Requests dropped meanwhile bring nothing.

        Those whose rows could not be computed are dropped before.
        """
        assert self._step is not None and plan.step_id == result.step_id == self._num_steps
        outputs: dict[PeerId, list[TokenOutput]] = {}
        prefixes: list[ComputedPrefix] = []
        rows = zip(self._step, plan.lengths, plan.num_draws, result.sampled, strict=True)
        for place, (sequence, num_tokens, num_draws, sampled) in enumerate(rows):
            sequence.is_in_step = False
            if sequence.is_dropped:
                continue
            self._tables.advance(sequence, num_tokens)
            remote = sequence.parent.remote
            if remote is not None:
                tail = partial(self._tables.tail, sequence, remote.reservation)
                prefix = remote.advance(sequence.num_computed, sequence.block_ids, tail)
                prefixes += [prefix] if prefix is not None else []
            if place in result.prompt_scores:
                told = scores_output(sequence, result.prompt_scores[place])
                outputs.setdefault(sequence.parent.owner, []).append(told)
            if num_draws:
                drawn = take_tokens(sequence, sampled, self.config.worker_id, now_ns)
                outputs.setdefault(sequence.parent.owner, []).extend(drawn)
                self._continue(sequence)
        self._step = None
        self._queues.end_step()
        return StepOutcome(outputs, prefixes)

    def num_quiet_steps(self, at_most: int) -> int:
        """How many of the steps to come are known beforehand: each computes one token for every sequence that runs, and
        nothing starts or gives way, unless a drawn token ends a continuation; what has all its tokens ends with the
        last of them. 0: the next step is not quiet."""
        assert self._step is None, "the last plan was not committed"
        if self._queues.waiting or len(self._queues.running) > self.config.max_batched_tokens:
            return 0
        return num_quiet_steps(self._queues.running, self.pool.num_available, self.config.block_size, at_most)

    def take_quiet_steps(self, tokens: tuple[SampledToken, ...]) -> StepOutcome:
        """The same as a `plan` and a `commit` for each of `tokens`, which is what every sequence draws in that step.

        Requires that so many steps are quiet and that none of the tokens ends a continuation. A runner that keeps what
        plans tell it hears of the blocks with the next plan, and of the tokens never."""
        running, token_ids = tuple(self._queues.running), [token.token_id for token in tokens]
        take_quiet_steps(running, self._tables, self.config.block_size, token_ids, self._queues.finish)
        drawn = frozenset(token_ids)
        outputs: dict[PeerId, list[TokenOutput]] = {}
        for sequence in running:
            request, owner = sequence.parent.request, sequence.parent.owner
            assert not may_end(request, drawn) and not sequence.parent.owes_facts
            sample = sequence.samples[0]
            output = TokenOutput(request.request_id, sample.sample_index, tokens, sample.finish_reason)
            outputs.setdefault(owner, []).append(output)
        self._num_steps += len(tokens)
        self._planner.skip(len(tokens))
        self._queues.end_step()
        return StepOutcome(outputs)

    def num_quiet_blocks(self, num_steps: int) -> int:
        """That so many quiet steps take."""
        return num_taken(self._queues.running, num_steps, self.config.block_size)

    def _continue(self, sequence: Sequence) -> None:
        """After a draw: the sequence ends, goes on, or forks into one sequence per unfinished sample."""
        state, live = sequence.parent, [sample for sample in sequence.samples if sample.finish_reason is None]
        if state.is_remote_prefill:
            self._queues.stop(sequence)
        elif not live:
            self._queues.finish(sequence)
        elif len(sequence.samples) == 1:
            sequence.token_ids.append(live[0].output_token_ids[-1])
        else:
            self._fork(sequence, live)

    def _fork(self, sequence: Sequence, live: list[SampleState]) -> None:
        self._queues.stop(sequence)
        forks = [self._tables.fork(sequence, sample, []) for sample in live[1:]]
        sequence.samples = (live[0],)
        sequence.token_ids.append(live[0].output_token_ids[-1])
        self._queues.run(sequence)
        for fork, has_room in forks:
            sequence.parent.sequences.append(fork)
            if has_room:
                self._queues.run(fork)
            else:
                self._queues.wait(fork)

    def _check_new(self, request: EngineRequest) -> Rejected | None:
        if request.request_id in self.requests:
            return Rejected(errors.InvalidRequest.code, f"Request {request.request_id} is on this worker already.")
        return None

    # ---- what can be asked about it ----------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """`plan` may return something, or `take_grants` may. False: wait for the next message."""
        return self._queues.has_work()

    def load(self, costs: StepCosts = UNKNOWN_COSTS) -> WorkerLoad:
        """The state between steps; what steps cost is the driver's to know."""
        return self._queues.load(costs, self.role)

    @property
    def num_preemptions(self) -> int:
        return self._queues.num_preemptions

    @property
    def num_prefix_queries(self) -> int:
        """Prompt tokens looked up in the prefix cache; a preempted request is not counted again."""
        return self._queues.num_prefix_queries

    @property
    def num_prefix_hits(self) -> int:
        return self._queues.num_prefix_hits
