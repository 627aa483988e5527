"""A worker of a simulated world: the real step loop, scheduler and caches, on virtual time.

Owns one incarnation and when its turns happen: messages are taken between steps, a step takes the seconds that its
runner says, and what it brings leaves at its end. It can be slow, stand still, be drained, and die. What a step takes
is a `StepTimeModel`'s; how messages and blocks travel is the network's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import cast

from relevo.core.baton import SampledToken
from relevo.core.decisions import DecisionLog, decider
from relevo.core.events import StepCosts, StepCounters
from relevo.core.ids import WorkerId, WorkerRef
from relevo.core.kv import KVLayout
from relevo.core.plan import StepPlan, StepResult
from relevo.core.ports import ModelRunner
from relevo.engine.hello import WorkerIdentity
from relevo.engine.loop import EngineLoop
from relevo.kv.transport_set import TransportSet
from relevo.policy.perf.roofline import RooflineModel
from relevo.policy.perf.step_costs import StepCostModel
from relevo.policy.perf.step_time import StepShape, StepTimeModel, decode_shape, step_shape
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig
from relevo.sim.kernel import Event, Kernel, seconds
from relevo.sim.stretch import Stretch
from relevo.wire.in_process_links import InProcessLinks

_AGAIN_NS = 1_000  # arbitrary: a turn that brought nothing, though there is work, is taken once more a little later
_TOKEN = SampledToken(0)
_NEVER_NS = 2**63
_MOST_STEPS = 4096  # arbitrary: of one stretch
_FEWEST_STEPS = 1  # fewer are none


class ModelledRunner:
    """Implements core.ports.ModelRunner: computes nothing, takes modelled seconds. Every token is the same one."""

    def __init__(self, layout: KVLayout, times: StepTimeModel, *, vocab_size: int = 2**32, max_model_len: int) -> None:
        self.layout = layout
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.bytes_limit_s = self.products_limit_s = 0.0  # that all steps would need at the device's ceilings
        self.times = times
        self._limits_s = times.limits_s if isinstance(times, RooflineModel) else None

    @property
    def knows_limits(self) -> bool:
        return self._limits_s is not None

    def execute(self, plan: StepPlan) -> StepResult:
        sampled, shape = tuple([(_TOKEN,) * num_draws for num_draws in plan.num_draws]), step_shape(plan)
        self.count_limits(shape, 1)
        return StepResult(plan.step_id, sampled, self.times.step_s(shape))

    def count_limits(self, shape: StepShape, num_steps: int) -> None:
        if self._limits_s is not None:
            bytes_s, products_s = self._limits_s(shape)
            self.bytes_limit_s += num_steps * bytes_s
            self.products_limit_s += num_steps * products_s

    def warm_up(self) -> None:
        """There is nothing to initialise."""


class SettledCosts(StepCostModel):
    """What a worker has learned about itself after a while, and keeps."""

    def __init__(
        self,
        times: StepTimeModel,
        max_batched_tokens: int,
        max_context: int,
        times_on: Callable[[int], StepTimeModel] | None = None,
    ) -> None:
        super().__init__()
        self._times_on, self._limits = times_on, (max_batched_tokens, max_context)
        for num_rows in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            for num_kv in (num_rows * max_context // 16, num_rows * max_context // 2):
                super().observe(num_rows, num_kv, times.step_s(StepShape(num_rows, num_kv)))
        num_tokens = 64
        while num_tokens <= max_batched_tokens:
            super().observe(num_tokens, num_tokens, times.step_s(StepShape().with_chunk(num_tokens, 0)))
            num_tokens *= 2
        self._settled = super().costs

    @property
    def costs(self) -> StepCosts:
        return self._settled

    def computes_on(self, num_cores: int) -> None:
        """It has been there before, too."""
        if self._times_on is not None:
            self._settled = SettledCosts(self._times_on(num_cores), *self._limits).costs

    def observe(self, num_tokens: int, num_kv_tokens: int, step_s: float) -> None:
        """Nothing new is learned."""


@dataclass(slots=True, eq=False)
class SimWorker:
    """One incarnation, from its start to its end."""

    kernel: Kernel
    config: SchedulerConfig
    role: str
    runner: ModelRunner
    costs: StepCostModel
    make_transports: Callable[[Callable[[], None]], TransportSet]  # given what to call when it has something to poll
    on_exit: Callable[[SimWorker], None]  # drained
    decisions: DecisionLog | None = None
    turn_ns: int = 0  # of a turn without a step: handling its messages
    drain_timeout_s: float = 30.0
    model_name: str = "model"
    cores: tuple[int, ...] = ()  # that it starts on
    times_on: Callable[[int], StepTimeModel] | None = None  # see sim.config.WorkerSpec
    slowness: float = 1.0  # steps take so many times as long
    may_jump: Callable[[SimWorker], bool] = lambda worker: False  # it may take a quiet stretch at once
    latency_ns: int = 0  # to its gateways, if it may
    jumping: dict[SimWorker, None] = field(default_factory=dict)  # the world's: those in a stretch
    told_ends: Sequence[int] = ()  # of the steps whose outputs are told right now, if they are told late
    is_dead: bool = False
    busy_ns: int = 0  # in steps
    most_held_blocks: int = 0  # at the end of a step
    scheduler: Scheduler = field(init=False)
    transports: TransportSet = field(init=False)
    links: InProcessLinks = field(init=False)
    engine: EngineLoop = field(init=False)
    _stopped_until_ns: int = 0
    _is_in_turn: bool = False
    _stretch: Stretch | None = None
    _stretch_event: Event | None = None
    _was_decoding: bool = False  # only decodes were in the step that came last

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.config)
        self.transports = self.make_transports(self._want_turn)
        self.links = InProcessLinks(on_ready=self._want_turn)
        self.engine = EngineLoop(
            identity=WorkerIdentity(
                worker_id=WorkerId(self.config.worker_id),
                epoch=self.config.epoch,
                pid=1,
                role=self.role,
                model_name=self.model_name,
                cores=self.cores,
            ),
            scheduler=self.scheduler,
            runner=self.runner,
            transports=self.transports,
            links=self.links,
            costs=self.costs,
            clock=self.kernel,
            drain_timeout_s=self.drain_timeout_s,
            decide=decider(self.decisions, self.config.worker_id, self.kernel),
            compute_on=self._compute_on,
        )
        self.links.on_connect = self.engine.hello

    @property
    def ref(self) -> WorkerRef:
        return WorkerRef(self.config.worker_id, self.config.epoch)

    # ---- what befalls it ---------------------------------------------------------------------------------------------

    def stop(self, for_s: float) -> None:
        """It stands still (SIGSTOP) and goes on afterwards; a step under way ends when it should have, or then."""
        until_ns = _NEVER_NS if for_s == inf else self.kernel.now_ns() + seconds(for_s)
        self._stopped_until_ns = max(self._stopped_until_ns, until_ns)

    def kill(self) -> None:
        """Its process ends; what it has sent still arrives."""
        self._break_stretch()
        self.is_dead = True
        self.transports.close()
        self.links.close()

    def slow_down(self, times: float, for_s: float) -> None:
        """Its steps take so many times as long; for ever, or until it is told otherwise."""
        if self._stretch is not None:
            self._cut_stretch()
        self.slowness = times
        if for_s != inf:
            self.kernel.call_after(seconds(for_s), self.slow_down, 1.0, inf)

    def drain(self) -> None:
        """SIGTERM."""
        self.engine.drain()

    def counters(self) -> StepCounters:
        """Since its start."""
        return self.engine.reports.counters()

    def _compute_on(self, cores: Sequence[int]) -> bool:
        """From the next step on."""
        runner = self.runner
        if self.times_on is None or not isinstance(runner, ModelledRunner):
            return False
        runner.times = self.times_on(len(cores))
        return True

    # ---- its turns ---------------------------------------------------------------------------------------------------

    def _want_turn(self) -> None:
        if self._stretch is not None:
            self._cut_stretch()
        elif not self._is_in_turn and not self.is_dead:
            self._is_in_turn = True
            self.kernel.call_after(self.turn_ns, self._begin_turn)

    def _begin_turn(self) -> None:
        if self._is_held_up(self._begin_turn):
            return
        now_ns, messages = self.kernel.now_ns(), self.links.poll(0.0)
        for peer, message in messages:
            self.engine.handle(peer, message, now_ns)
        if self._was_decoding and not messages and self._jump(now_ns):
            return
        if self.engine.may_leave(now_ns):
            self.kill()
            self.on_exit(self)
            return
        plan = self.engine.begin_step(now_ns)
        if plan is None:
            self._is_in_turn = False
            if self.scheduler.has_work():
                self.kernel.call_after(_AGAIN_NS, self._want_turn)
            return
        self._was_decoding = plan.num_decodes == len(plan.starts)
        result = self.engine.execute(plan)
        step_ns = seconds(result.step_s * self.slowness)
        self.busy_ns += step_ns
        self.kernel.call_after(step_ns, self._end_turn, plan, result)

    def _end_turn(self, plan: StepPlan, result: StepResult) -> None:
        if self._is_held_up(self._end_turn, plan, result):
            return
        self.most_held_blocks = max(self.most_held_blocks, self.scheduler.pool.num_held)
        self.engine.finish_step(plan, result, self.kernel.now_ns())
        self._begin_turn()

    # ---- quiet stretches ---------------------------------------------------------------------------------------------

    def _jump(self, now_ns: int) -> bool:
        """Begin a stretch, if the steps to come are like the last one. False: the next step is taken as any."""
        runner = self.runner
        if not isinstance(runner, ModelledRunner) or not self.may_jump(self):
            return False
        num_steps = self.engine.num_quiet_steps(_MOST_STEPS)
        if num_steps < _FEWEST_STEPS:
            return False
        load = self.scheduler.load()
        first = decode_shape(load.num_running, load.num_decode_kv_tokens + load.num_running)
        stretch = Stretch(runner.times, self.slowness, first, num_steps, now_ns)
        if stretch.ends[0] - now_ns <= self.latency_ns:  # several would be on their way at once
            return False
        self._stretch = stretch
        self._stretch_event = self.kernel.call_at(self._stretch.ends[-1], self._go_on)
        self.jumping[self] = None
        return True

    def catch_up(self) -> None:
        """Tell what gateways have heard by now of a stretch under way."""
        stretch = self._stretch
        if stretch is not None:
            self._take(stretch, stretch.num_ended(self.kernel.now_ns() - self.latency_ns))

    def cut_stretch(self) -> None:
        """It ends with the step that is being computed."""
        if self._stretch is not None:
            self._cut_stretch()

    def _go_on(self) -> None:
        """As far as ends are computed the stretch is over."""
        stretch = self._stretch
        assert stretch is not None
        if not stretch.is_complete:
            stretch.extend()
            self._stretch_event = self.kernel.call_at(stretch.ends[-1], self._go_on)
            return
        self._end_stretch(stretch, len(stretch.ends))
        self._begin_turn()

    def _cut_stretch(self) -> None:
        """A message is here: it is handled after the step that is being computed."""
        assert self._stretch is not None and self._stretch_event is not None
        self._stretch_event.cancel()
        self._stretch_event = self.kernel.call_at(self._stretch.cut(self.kernel.now_ns()), self._go_on)

    def _end_stretch(self, stretch: Stretch, num_steps: int) -> None:
        """All but the last of its steps have been heard of by now; the last one's outputs leave now."""
        self._take(stretch, num_steps - 1)
        self._take(stretch, num_steps)
        self._stretch = None
        del self.jumping[self]

    def _break_stretch(self) -> None:
        """Its process ends now: the steps that have ended were told, the others never are."""
        stretch = self._stretch
        if stretch is None:
            return
        assert self._stretch_event is not None
        self._stretch_event.cancel()
        num_ended = stretch.num_ended(self.kernel.now_ns())
        self._take(stretch, num_ended - 1)
        self._take(stretch, num_ended)
        if num_ended < len(stretch.ends):
            self.busy_ns += stretch.ends[num_ended] - stretch.started_before(num_ended)
        self._stretch = None
        del self.jumping[self]

    def _take(self, stretch: Stretch, num_steps: int) -> None:
        """Up to that one of its steps, told as of the last one's end."""
        num_before = stretch.num_taken
        if num_steps <= num_before:
            return
        self.told_ends, pool = stretch.take(num_steps), self.scheduler.pool
        num_held = pool.num_held + self.scheduler.num_quiet_blocks(num_steps - num_before)
        self.most_held_blocks = max(self.most_held_blocks, num_held)
        self.engine.take_quiet_steps((_TOKEN,) * (num_steps - num_before))
        self.busy_ns += stretch.ends[num_steps - 1] - stretch.started_before(num_before)
        cast(ModelledRunner, self.runner).count_limits(
            stretch.shape_of((num_before + num_steps - 1) / 2), num_steps - num_before
        )
        self.told_ends = ()

    def _is_held_up(self, then: Callable[..., None], *args: object) -> bool:
        """Dead, or stopped: then it goes on later."""
        if not self.is_dead and self.kernel.now_ns() < self._stopped_until_ns:
            if self._stopped_until_ns < _NEVER_NS:
                self.kernel.call_at(self._stopped_until_ns, then, *args)
            return True
        return self.is_dead
