"""What a worker tells of its steps for a request's timeline: chunks and preemptions."""

from __future__ import annotations

from recorded_links import RecordedLinks

from relevo.core.baton import PrefillFacts, SampledToken
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

STEP_S = 0.125


class EvenRunner(FakeRunner):
    """Every step takes the same time, and none passes."""

    def execute(self, plan: StepPlan) -> StepResult:
        drawn = tuple((SampledToken(5),) * num_draws for num_draws in plan.num_draws)
        return StepResult(plan.step_id, drawn, STEP_S)


class NoClock:
    def now_ns(self) -> int:
        return 0


def worker(num_blocks: int, links: RecordedLinks) -> EngineLoop:
    arena = Arena.create(fake_layout(4), num_blocks, shared=False)
    config = SchedulerConfig(
        worker_id=WorkerId("w"),
        epoch=1,
        first_block_id=0,
        num_blocks=num_blocks,
        block_size=4,
        max_batched_tokens=8,
        max_prefill_tokens=8,
        max_running=4,
        max_model_len=64,
    )
    return EngineLoop(
        identity=WorkerIdentity(worker_id=WorkerId("w"), epoch=1, pid=1, role="unified", model_name="fake"),
        scheduler=Scheduler(config),
        runner=EvenRunner(arena),
        transports=TransportSet([], "arena", "box"),
        links=links,
        costs=StepCostModel(),
        clock=NoClock(),
    )


def ask(loop: EngineLoop, links: RecordedLinks, gateway: int, name: str, num_prompt: int, num_tokens: int) -> None:
    request = EngineRequest(
        request_id=RequestId(name),
        prompt_token_ids=tuple(range(len(name), len(name) + num_prompt)),
        sampling=SamplingParams(max_tokens=num_tokens, seed=0, ignore_eos=True),
    )
    loop.handle(links.gateways[gateway], wire.Submit(request), 0)


def run(loop: EngineLoop) -> None:
    while loop.scheduler.has_work():
        loop.turn(0.0)


def facts_of(links: RecordedLinks, name: str) -> list[PrefillFacts]:
    steps = [message for _, message in links.told if isinstance(message, wire.StepOutputs)]
    outputs = [output for step in steps for output in step.outputs]
    return [output.facts for output in outputs if output.request_id == name and output.facts is not None]


def test_the_first_output_says_in_how_many_chunks_the_prompt_was_computed() -> None:
    """Red when decode steps count, or the steps before the last do not."""
    links = RecordedLinks()
    loop = worker(40, links)
    ask(loop, links, 0, "a", 20, 5)
    run(loop)
    assert [facts.num_chunks for facts in facts_of(links, "a")] == [3]


def test_who_loses_its_blocks_has_its_own_gateway_told_before_the_step() -> None:
    """Red when the other gateway hears of it, or when it comes after what the step brought."""
    links = RecordedLinks()
    loop = worker(7, links)
    ask(loop, links, 0, "first", 8, 12)
    ask(loop, links, 1, "second", 8, 12)
    run(loop)
    told = [(gateway, message.request_ids) for gateway, message in links.told if isinstance(message, wire.Preempted)]
    assert told and set(told) == {(links.gateways[1], (RequestId("second"),))}
    assert len(told) == loop.scheduler.num_preemptions
    of_second = links.told_to(links.gateways[1])
    place = next(i for i, message in enumerate(of_second) if isinstance(message, wire.Preempted))
    assert any(isinstance(message, wire.StepOutputs) for message in of_second[:place])
    assert any(isinstance(message, wire.StepOutputs) for message in of_second[place:])
