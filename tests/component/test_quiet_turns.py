"""A worker that takes quiet steps at once is, for its gateways, the worker that takes them one by one."""

from __future__ import annotations

from collections import Counter

from recorded_links import RecordedLinks

from relevo.core.baton import SampledToken
from relevo.core.decisions import Decision, Fact
from relevo.core.events import StepCosts, StepCounters, WorkerLoad
from relevo.core.ids import RequestId, WorkerId
from relevo.core.plan import StepPlan, StepResult
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.fake_runner import FakeRunner, fake_layout
from relevo.engine.hello import WorkerIdentity
from relevo.engine.loop import EngineLoop
from relevo.kv.arena import Arena
from relevo.kv.transport_set import TransportSet
from relevo.policy.perf.step_costs import StepCostModel
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig
from relevo.wire import messages as wire

TOKEN = SampledToken(5)
COSTS = StepCosts(base_s=0.01, per_token_s=0.001, per_kv_token_s=1e-6)
NUM_BLOCKS = 24


class StubbornRunner(FakeRunner):
    """Draws one token for ever and takes no time."""

    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.step_id, tuple((TOKEN,) * num_draws for num_draws in plan.num_draws), 0.0)


class SettledCosts(StepCostModel):
    @property
    def costs(self) -> StepCosts:
        return COSTS


class Clock:
    def now_ns(self) -> int:
        return 0


class Worker:
    def __init__(self, *, jumps: bool) -> None:
        arena = Arena.create(fake_layout(4), NUM_BLOCKS, shared=False)
        config = SchedulerConfig(
            worker_id=WorkerId("w"),
            epoch=1,
            first_block_id=0,
            num_blocks=NUM_BLOCKS,
            block_size=4,
            max_batched_tokens=16,
            max_prefill_tokens=16,
            max_running=8,
            max_model_len=96,
        )
        self.decided: list[tuple[Decision, str, dict[str, Fact]]] = []
        self.links = RecordedLinks(2)
        self.loop = EngineLoop(
            identity=WorkerIdentity(worker_id=WorkerId("w"), epoch=1, pid=1, role="unified", model_name="fake"),
            scheduler=Scheduler(config),
            runner=StubbornRunner(arena),
            transports=TransportSet([], "arena", "box"),
            links=self.links,
            costs=SettledCosts(),
            clock=Clock(),
            decide=self._note,
        )
        self._jumps = jumps
        self.num_jumps = 0

    def _note(self, decision: Decision, subject: str = "", **facts: Fact) -> None:
        self.decided.append((decision, subject, facts))

    def submit(self, gateway: int, name: str, num_prompt: int, max_tokens: int) -> None:
        request = EngineRequest(
            request_id=RequestId(name),
            prompt_token_ids=tuple(range(1, 1 + num_prompt)),
            sampling=SamplingParams(max_tokens=max_tokens, seed=0, ignore_eos=True),
        )
        self.links.deliver(self.links.gateways[gateway], wire.Submit(request))

    def go_on(self, num_steps: int) -> None:
        """As far as so many steps."""
        end = self.loop.reports.num_steps + num_steps
        while (left := end - self.loop.reports.num_steps) > 0:
            num_quiet = self.loop.num_quiet_steps(left) if self._jumps and not self.links._inbox else 0
            if num_quiet:
                self.num_jumps += 1
                self.loop.take_quiet_steps((TOKEN,) * num_quiet)
            elif not self.loop.turn(0.0):
                return

    def told(self) -> tuple[Counter[tuple[int, str, int]], list[tuple[int, str, int, str]], list[WorkerLoad]]:
        """Tokens by continuation, ends, and the load that each gateway heard of last."""
        tokens: Counter[tuple[int, str, int]] = Counter()
        ends: list[tuple[int, str, int, str]] = []
        loads: dict[int, WorkerLoad] = {}
        for gateway, message in self.links.told:
            if isinstance(message, wire.StepOutputs | wire.LoadReport):
                loads[gateway] = message.load
            for output in message.outputs if isinstance(message, wire.StepOutputs) else ():
                tokens[gateway, output.request_id, output.sample_index] += len(output.tokens)
                if output.finish_reason is not None:
                    ends.append((gateway, output.request_id, output.sample_index, output.finish_reason))
        return tokens, ends, [loads[gateway] for gateway in self.links.gateways]


def story(worker: Worker) -> tuple[StepCounters, list[object]]:
    seen: list[object] = []
    worker.links.deliver(worker.links.gateways[0], wire.FollowCache())
    for round_number in range(4):
        worker.submit(0, f"a{round_number}", 5 + round_number, 30)
        worker.go_on(7)
        worker.submit(1, f"b{round_number}", 9, 11)
        worker.go_on(25)
        seen += [worker.told(), worker.loop.scheduler.pool.cached_hashes]
    return worker.loop.reports.counters(), seen


def test_gateways_hear_and_the_log_tells_the_same() -> None:
    """Red when a jump tells fewer tokens, another load or decision, or counts otherwise; blocks are evicted."""
    jumping, stepping = Worker(jumps=True), Worker(jumps=False)
    assert story(jumping) == story(stepping)
    assert 5 < jumping.num_jumps < jumping.loop.reports.counters().num_steps / 4
    assert jumping.decided == stepping.decided
    assert jumping.loop.scheduler.pool.num_evicted == stepping.loop.scheduler.pool.num_evicted
    assert Decision.EVICT in {decision for decision, _, _ in jumping.decided}
    assert len(jumping.links.told) < len(stepping.links.told) / 2


def test_a_drain_is_not_jumped_over() -> None:
    """It may end at any time."""
    worker = Worker(jumps=True)
    worker.submit(0, "a", 3, 30)
    worker.go_on(2)
    assert worker.loop.num_quiet_steps(10) == 10
    worker.loop.drain()
    assert worker.loop.num_quiet_steps(10) == 0


def test_a_ping_is_answered_and_tells_other_gateways_nothing() -> None:
    """Red when each gateway that asks whether the worker is there makes it report its load to all of them."""
    worker = Worker(jumps=False)
    worker.links.deliver(worker.links.gateways[0], wire.Ping(7))
    worker.loop.turn(0.0)
    assert worker.links.told == [(worker.links.gateways[0], wire.Pong(7))]
