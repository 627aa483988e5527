"""The worker's step loop: receive, plan, execute, commit, send. Synchronous, one thread, sleeps when there is no work.

Owns the order of things inside one worker process. Decides nothing: `policy.worker.core` says what becomes of requests,
`policy.worker.scheduler` what runs; what a step computes is the runner's, how KV moves the transports'. From outside a
step is atomic: messages are handled between steps only, so an acknowledged abort means that no step writes for the
request any more. What raises while one request is handled ends that request only.

A turn is `handle` for every message, `begin_step`, `execute`, `finish_step`. `run` takes turns in real time; another
driver, such as the simulator, calls the four itself and lets what a step takes pass on a clock of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from relevo.core.baton import SampledToken
from relevo.core.decisions import Decide, Decision, unlogged
from relevo.core.events import ExpertLoads
from relevo.core.ids import PeerId
from relevo.core.plan import StepPlan, StepResult
from relevo.core.ports import Clock, ModelRunner
from relevo.core.role import RoleChange
from relevo.engine.cache_feed import CacheFeed
from relevo.engine.decided import tell_accepted, tell_ends, tell_plan, with_evictions
from relevo.engine.grammar_gate import Denied, GrammarGate, Passed
from relevo.engine.grammars import Grammars, no_grammars
from relevo.engine.hello import WorkerIdentity
from relevo.engine.incoming import Asked, ask, request_of
from relevo.engine.load_reports import LoadReports
from relevo.engine.outgoing import Outgoing
from relevo.engine.step_recovery import end_all, execute_apart
from relevo.engine.transfers import Transfers
from relevo.kv.transport_set import TransportSet
from relevo.policy.perf.model_work import ModelWork
from relevo.policy.perf.step_costs import StepCostModel
from relevo.policy.worker.core import WorkerCore
from relevo.policy.worker.drain import Drain
from relevo.policy.worker.scheduler import Scheduler, StepOutcome
from relevo.vocabulary.late_vocabulary import Rest
from relevo.wire import messages as wire
from relevo.wire.gateway_links import GatewayLinks, PeerGone

log = logging.getLogger("relevo.engine")


@dataclass(slots=True, kw_only=True)
class EngineLoop:
    identity: WorkerIdentity
    scheduler: Scheduler
    runner: ModelRunner
    transports: TransportSet
    links: GatewayLinks
    costs: StepCostModel
    clock: Clock
    drain_timeout_s: float = 30.0  # how long a drain waits for what runs
    decide: Decide = unlogged
    compute_on: Callable[[Sequence[int]], bool] = lambda cores: False  # from the next step; False: it has no cores
    grammars: Grammars = field(default_factory=no_grammars)  # also what the runner holds outputs to
    work: ModelWork | None = None  # of a step; None: not known
    expert_loads: Callable[[], ExpertLoads] | None = None  # None: the model has no experts
    core: WorkerCore = field(init=False)
    reports: LoadReports = field(init=False)
    _cache_feed: CacheFeed = field(init=False)
    _outgoing: Outgoing = field(init=False)
    _transfers: Transfers = field(init=False)
    _drain: Drain = field(init=False)
    _gate: GrammarGate = field(init=False)

    def __post_init__(self) -> None:
        self.decide = with_evictions(self.decide, self.scheduler.pool)
        self.core = WorkerCore(self.scheduler, {name: each.reach for name, each in self.transports.items()})
        layout = self.runner.layout
        told = self.core, self.costs, self.transports, self.links
        self.reports = LoadReports(*told, layout.growing_bytes_per_token, self.work, self.expert_loads)
        self._cache_feed = CacheFeed(self.scheduler.pool, self.links)
        self._outgoing = Outgoing(self.core, self.links, self.transports, layout, self.reports, self.decide)
        self._transfers = Transfers(self.core, self.transports, self._outgoing)
        self._drain = Drain(self.drain_timeout_s)
        self._gate = GrammarGate(self.grammars, self.links.wake, self.scheduler.requests.__contains__)

    def hello(self) -> wire.Hello:
        load, orphans = self.reports.load(), self.scheduler.reservations.orphans
        return self.identity.hello(self.runner, self.transports.site, load, orphans)

    # ---- in real time ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until drained: everything ended, or the time for it is over."""
        may_wait, rest = True, Rest()
        while not self.may_leave(now_ns := self.clock.now_ns()):
            patience_s = self._drain.patience_s(now_ns) if may_wait else 0.0
            if not self.grammars.vocabulary.is_made:
                is_busy = not may_wait or not self.links.peer_ids  # without a gateway the server is still starting
                patience_s = self._rest(rest.left_s(now_ns, is_busy=is_busy), patience_s)
            may_wait = not self.turn(patience_s)

    def _rest(self, left_s: float, patience_s: float | None) -> float | None:
        """How long to wait; after a rest what no start waits for is made first."""
        if left_s > 0.0:
            return left_s if patience_s is None else min(left_s, patience_s)
        self.grammars.vocabulary.make()
        return patience_s

    def turn(self, patience_s: float | None) -> bool:
        """Messages, what follows from them, at most one step. `patience_s`: how long to wait for a message, None: no
        limit. True if the next turn may find something to do without one."""
        for peer, message in self.links.poll(patience_s):
            self.handle(peer, message, self.clock.now_ns())
        plan = self.begin_step(self.clock.now_ns())
        if plan is None:
            return self.scheduler.has_work()
        result = self.execute(plan)
        self.finish_step(plan, result, self.clock.now_ns())
        return True

    def drain(self) -> None:
        """Finish what runs, then leave. From a signal handler too: only notes it and wakes the loop."""
        self._drain.ask()
        self.links.wake()

    def may_leave(self, now_ns: int) -> bool:
        """It was drained, and nothing is left or the time for it is over."""
        for peer in self._drain.untold(self.links.peer_ids):
            self.links.send(peer, wire.Leaving())
        num_requests = self.core.num_requests + self._gate.num_waiting + self._outgoing.num_held
        if not self._drain.may_leave(num_requests, now_ns):
            return False
        log.info("drained; %d requests are left to be continued elsewhere", num_requests)
        return True

    # ---- one turn ----------------------------------------------------------------------------------------------------

    def handle(self, peer: PeerId, message: wire.ToWorker | PeerGone, now_ns: int) -> None:
        """One message of a gateway. Never while a step is being computed."""
        match message:
            case wire.Abort(request_id=request_id):
                self._gate.drop(peer, request_id)
                self.core.abort(peer, request_id, message.writer_active)
            case wire.Release(request_id=request_id):
                self.core.release(request_id)
            case wire.Fence(worker_id=worker_id):
                self.core.fence(worker_id, message.epoch)
                self._outgoing.carry_out()
                self._transfers.drop_withdrawn()
                self.links.send(peer, wire.Fenced(worker_id, message.epoch, message.nonce))
            case wire.Drain():
                self.drain()
            case wire.SetRole(change=change):
                self._take_role(change)
            case wire.SetEpoch(epoch=epoch):
                self._take_epoch(peer, epoch)
            case wire.FollowCache():
                self._cache_feed.follow(peer)
            case wire.Ping():
                self.links.send(peer, wire.Pong(message.nonce))
                self.reports.note_refusals()
                return
            case PeerGone():
                self._lose(peer)
            case _:
                if not self._gate.keeps(peer, message):
                    self._ask(peer, message, now_ns)
        self._outgoing.carry_out()
        self.reports.changed()

    def begin_step(self, now_ns: int) -> StepPlan | None:
        """What follows from the messages handled, then what the next step computes; None: nothing, and gateways know.

        `finish_step` must follow a plan, with no message handled in between."""
        self._take_compiled(now_ns)
        self._transfers.take_events()
        self._transfers.hand_over()
        self.core.grant_room(now_ns)
        self._outgoing.carry_out()
        self._transfers.drop_withdrawn()
        plan = self.scheduler.plan(now_ns, self.costs.costs)
        preempted = self.scheduler.take_preempted()
        if preempted:
            self._outgoing.tell_preempted(preempted)
        if plan is None:
            self._publish()
        elif self.decide is not unlogged:
            tell_plan(self.decide, plan, self.scheduler.planned_requests, preempted)
        return plan

    def _lose(self, gateway: PeerId) -> None:
        self._cache_feed.unfollow(gateway)
        self._gate.drop_all(gateway)
        self.core.lose_gateway(gateway)

    def _take_epoch(self, asker: PeerId, epoch: int) -> None:
        """All that gateways asked for is let go before the new name is told."""
        if epoch > self.identity.epoch:
            for gateway in self.links.peer_ids:
                if gateway != asker:
                    self._lose(gateway)
                    self._outgoing.carry_out()
                    self.links.drop(gateway, "this worker is another incarnation from now on")
            log.info("epoch %d from now on, all requests are dropped", epoch)
            self.identity = replace(self.identity, epoch=epoch)
            self.scheduler.reservations.take_epoch(epoch)
            self.transports.take_epoch(epoch)
        self.links.send(asker, self.hello())

    def _take_role(self, change: RoleChange) -> None:
        """What runs here goes on, in steps of the new role."""
        if not self.scheduler.take_role(change):
            return
        if change.cores and self.compute_on(change.cores):
            self.costs.computes_on(len(change.cores))
        self.decide(Decision.ROLE, role=str(change.role), num_cores=len(change.cores))
        log.debug("role %s from the next step on", change.role)

    def _ask(self, peer: PeerId, message: Asked, now_ns: int) -> None:
        request_id = request_of(message)
        with self._outgoing.only(request_id, peer):
            if ask(self.core, peer, message, now_ns):
                tell_accepted(self.decide, request_id, message)

    def _take_compiled(self, now_ns: int) -> None:
        """What waited for its grammar."""
        for each in self._gate.take_ready():
            match each:
                case Passed(peer, message):
                    self._ask(peer, message, now_ns)
                case Denied(peer, request_id, rejected):
                    self.core.refuse(peer, request_id, rejected)
                    self._outgoing.carry_out()

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute the step. The requests that make it raise end, the others' rows are computed without them."""
        try:
            result = self.runner.execute(plan)
        except Exception as error:
            if self.runner.layout.bytes_per_sequence:
                result = end_all(plan, self.scheduler.planned_requests, error)
            else:
                result = execute_apart(self.runner, plan, self.scheduler.planned_requests, error)
        else:
            self.costs.observe(plan.num_tokens, plan.num_kv_tokens, result.step_s)
        if result.failures:
            for request_id, (code, reason) in result.failures.items():
                self.core.fail(request_id, code, reason)
            self._outgoing.carry_out()
        return result

    def finish_step(self, plan: StepPlan, result: StepResult, now_ns: int) -> None:
        """Take in what the step brought and tell it."""
        outcome = self.core.commit(plan, result, now_ns)
        self.reports.count_steps(1, plan.num_tokens, plan.num_prefill_tokens, outcome)
        self.reports.count_work(plan, result.step_s)
        if self.decide is not unlogged:
            tell_ends(self.decide, outcome.outputs.values())
        if outcome.prefixes:
            self._outgoing.carry_out()
            self._transfers.take_events()
        self._tell(outcome)

    # ---- many steps at once, for a driver that knows what they draw --------------------------------------------------

    def num_quiet_steps(self, at_most: int) -> int:
        """How many of the steps to come bring a token for each sequence that runs and nothing else, but for ends with
        the last of them, if no message and no transfer event arrives before. 0: the next step is not quiet."""
        if self.core.remote_prefills or self._drain.is_asked:
            return 0
        return self.scheduler.num_quiet_steps(at_most)

    def take_quiet_steps(self, tokens: tuple[SampledToken, ...]) -> None:
        """The same as so many steps, told at once; `tokens`: what every sequence draws, one after the other. Step costs
        are not observed: their times are the driver's."""
        outcome = self.scheduler.take_quiet_steps(tokens)
        num_rows = sum([len(outputs) for outputs in outcome.outputs.values()])
        self.reports.count_steps(len(tokens), num_rows, 0, outcome)
        if self.decide is not unlogged:
            tell_ends(self.decide, outcome.outputs.values())
        self._tell(outcome)

    def _tell(self, outcome: StepOutcome) -> None:
        self._cache_feed.publish()  # before the outputs: they may end a request, and this is what it leaves behind
        self.reports.send_outputs(outcome.outputs)  # before PrefillDone: the first token does not wait for the handoff
        self._transfers.hand_over()
        self._publish()

    def _publish(self) -> None:
        self._cache_feed.publish()
        self.reports.publish()
