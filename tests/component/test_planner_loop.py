"""The planner over real dispatchers and step loops: what it sees where requests come in, and that its roles arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from in_process_stack import in_process_stack, request_for, until
from prometheus_client.parser import text_string_to_metric_families
from scripted_gateway import ScriptedGenerator, rig, status_of
from test_state import state_of

from relevo.build.clock import MonotonicClock
from relevo.core.errors import NoWorker
from relevo.core.events import TokenOutput
from relevo.core.ids import RequestId, WorkerId
from relevo.core.outcome import RequestEnd
from relevo.core.ports import Clock
from relevo.core.request import EngineRequest, ServiceTerms
from relevo.core.role import HYBRID, Role
from relevo.orchestrator.ports import EngineStatus, OutputSink, TokenGenerator, WorkerStatus
from relevo.planner.loop import Question, RolePlanning
from relevo.planner.not_simulated import NotSimulated
from relevo.planner.remembered import RememberedAnswers
from relevo.planner.window import MAX_ARRIVALS, DemandWindow
from relevo.policy.scaling.answer_pool import KEPT_S, AnswerPool
from relevo.policy.scaling.demand import Demand, Sample
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode, modes_of
from relevo.policy.scaling.planner_limits import PlannerLimits
from relevo.policy.scaling.role_planner import PlanVerdict, RolePlanner
from relevo.telemetry.latency import RequestRecord, RequestTimes, Slo
from relevo.telemetry.metrics import GatewayMetrics

S = 1_000_000_000
SLO = Slo(ttft_s=1.0, itl_s=0.05)


class Hand:
    """A clock."""

    def __init__(self) -> None:
        self.at_ns = 100 * S

    def now_ns(self) -> int:
        return self.at_ns


class Deaf:
    """An OutputSink that nobody reads."""

    def on_output(self, output: TokenOutput) -> None: ...

    def on_end(self, end: RequestEnd) -> None: ...


class Taking(ScriptedGenerator):
    """Requests, of which nothing is heard again."""

    def start(self, request: EngineRequest, sink: OutputSink) -> Any:
        return None


def record(number: int, prompt: int, output: int, ttft_s: float, outcome: str = "finished") -> RequestRecord:
    times = RequestTimes(0, [round(ttft_s * S) + i * S // 100 for i in range(output)], 10 * S)
    return RequestRecord(
        request_id=f"r{number}",  # type: ignore[arg-type]
        model="m",
        times=times,
        num_prompt_tokens=prompt,
        num_cached_tokens=prompt // 2,
        num_output_tokens=output,
        num_longest_output_tokens=output,
        n=1,
        max_tokens=output,
        finish_reason="length",
        outcome=outcome,
    )


async def test_demand_is_seen_where_it_comes_in_and_lengths_where_it_ends() -> None:
    """Requests that wait count. Red when a request counts only once it was served, or for ever."""
    clock = Hand()
    window = DemandWindow(ScriptedGenerator([]), clock, SLO, span_s=60.0)
    assert window.look().demand is None and window.look().num_requests == 0
    clock.at_ns += 60 * S
    for number in range(6):
        window.start(request_for(number, [1] * (10 + number), 4), Deaf())
    assert window.look().demand is None, "nothing is known of answers yet"
    window.finished(record(0, 10, 8, 0.5))
    window.finished(record(1, 11, 4, 2.0))
    window.finished(record(2, 12, 4, 0.1, outcome="aborted"))
    seen = window.look()
    assert (seen.num_requests, seen.num_judged, seen.attained) == (6, 2, 0.5)
    assert seen.demand is not None and abs(seen.demand.requests_per_s - 0.1) < 1e-9
    by_prompt = {sample.num_prompt_tokens: sample for sample in seen.demand.samples}
    assert by_prompt[10].num_output_tokens == 8 and by_prompt[15].num_output_tokens == 5, "carried on from those known"
    clock.at_ns += 61 * S
    assert window.look().num_requests == 0


async def test_a_burst_is_seen_before_a_minute_is_over() -> None:
    """One request a second, then ten for a quarter of a minute; what is noise is no burst. Red when demand is a mean
    that follows when the burst has gone."""
    clock = Hand()
    window = DemandWindow(ScriptedGenerator([]), clock, SLO, span_s=60.0)
    clock.at_ns += 60 * S

    def arrive(num: int, per_s: float) -> float:
        for _ in range(num):
            clock.at_ns += round(S / per_s)
            number = len(window._arrivals) + clock.at_ns
            window.start(request_for(number, [1] * 10, 4), Deaf())
            window.finished(record(number, 10, 4, 0.1))
        seen = window.look().demand
        assert seen is not None
        return seen.requests_per_s

    assert abs(arrive(60, 1.0) - 1.0) < 0.05
    assert arrive(20, 1.5) < 1.3, "within the noise"
    assert arrive(150, 10.0) > 9.0


async def test_a_decision_reaches_the_workers_and_a_dry_run_does_not() -> None:
    """Red when a planner that only says what it would do does it, or when its roles get lost on the way."""
    for is_dry in (True, False):
        async with in_process_stack({"prefill-0": "prefill", "decode-0": "decode"}, num_gateways=1) as stack:
            dispatcher = stack.gateways[0].dispatcher
            planning = planning_of(DemandWindow(dispatcher, MonotonicClock(), SLO), is_dry)
            for number in range(20):
                planning.window.start(request_for(number, [number] * 5, 2), Deaf())
                planning.window.finished(record(number, 5, 2, 0.1 if number % 2 else 3.0))  # as it is foretold
            assert (await planning.tick()).verdict is PlanVerdict.CHANGE
            wanted = ["prefill", "decode"] if is_dry else ["standby", "unified"]
            await until(partial(has_roles, dispatcher, wanted))
            told = planning.plan()
            assert told["is_dry_run"] is is_dry and told["decisions"][0]["verdict"] == "change"
            assert set(told["decisions"][0]["modes"]) == {"unified", "2u", "1p1d", "1p1h", "hybrid"}


async def test_an_answer_that_comes_late_or_not_at_all_changes_nothing() -> None:
    """Red when a simulator that ended ends the planner, and when roles given by hand meanwhile are taken back."""
    async with in_process_stack({"prefill-0": "prefill", "decode-0": "decode"}, num_gateways=1) as stack:
        dispatcher, clock = stack.gateways[0].dispatcher, Hand()
        planning = planning_of(DemandWindow(dispatcher, clock, SLO), is_dry=False, clock=clock)
        for number in range(20):
            planning.window.start(request_for(number, [number] * 5, 2), Deaf())
            planning.window.finished(record(number, 5, 2, 0.1))
            clock.at_ns += S
        await planning.tick()
        answer = planning.ask

        async def ended(*asked: object) -> Mapping[Mode, ModeOutlook]:
            raise NotSimulated("the process of the simulator ended")

        async def late(
            modes: Sequence[Mode], demand: Demand, workers: Sequence[WorkerStatus]
        ) -> Mapping[Mode, ModeOutlook]:
            dispatcher.set_roles({"prefill-0": HYBRID, "decode-0": HYBRID}, "by hand")
            await until(partial(has_roles, dispatcher, ["hybrid", "hybrid"]))
            return await answer(modes, demand, workers)

        planning.ask = ended
        decision = await planning.tick()
        assert decision.verdict is PlanVerdict.UNKNOWN and "simulator ended" in decision.reason
        planning.ask = answer
        await planning.tick()
        planning.ask = late
        decision = await planning.tick()
        assert decision.verdict is PlanVerdict.UNKNOWN and "roles or workers changed" in decision.reason
        assert has_roles(dispatcher, ["hybrid", "hybrid"]) and planning.planner.num_changes == 0


async def test_batch_requests_and_floods_are_no_demand_to_plan_for() -> None:
    """Red when the window keeps an entry of each request that was refused, or judges what has no hurry."""
    window = DemandWindow(Taking([]), Hand(), SLO)
    request = request_for(0, [1, 2], 4)
    window.start(replace(request, terms=ServiceTerms(is_batch=True)), Deaf())
    assert window.look().num_requests == 0
    for number in range(MAX_ARRIVALS + 50):
        window.start(replace(request, request_id=RequestId(f"r{number}")), Deaf())
    assert len(window._running) == len(window._arrivals) == MAX_ARRIVALS


async def test_workers_that_are_not_ready_are_nothing_to_plan_for() -> None:
    window = DemandWindow(ScriptedGenerator([]), MonotonicClock(), SLO)
    window._generator.engine_status = status_of(ready=False)  # type: ignore[attr-defined]
    decision = await planning_of(window, is_dry=False).tick()
    assert decision.verdict is PlanVerdict.UNKNOWN and "no worker is ready" in decision.reason


async def test_a_planner_on_virtual_time_decides_as_the_live_one() -> None:
    """The same arrivals, ends and answers, tick by tick; one is awaited, the other one asked and told, as in a
    simulated world. Red when one of the two drivers does more than the other."""
    told = []
    for is_live in (True, False):
        clock, generator = Hand(), ScriptedGenerator([])
        generator.engine_status = two_workers()
        window = DemandWindow(generator, clock, SLO)
        planning = planning_of(window, is_dry=True, clock=clock)
        for tick in range(30):
            for number in range(3 + tick % 4):
                window.start(request_for(100 * tick + number, [1] * 8, 4), Deaf())
                window.finished(record(100 * tick + number, 8, 4, 0.4 * number))
            clock.at_ns += 5 * S
            if is_live:
                await planning.tick()
            elif isinstance(question := planning.look(), Question):
                planning.decide(question, await planning.ask(question.modes, question.demand, question.workers))
        told.append(planning.plan())
    assert told[0] == told[1] and {"hold", "change"} <= told[0]["num_decisions"].keys()


async def test_a_worker_that_leaves_before_the_act_changes_nothing() -> None:
    """Red when the planner's picture and the workers' roles part for good."""
    generator = ScriptedGenerator([])
    generator.engine_status = two_workers()
    window = DemandWindow(generator, MonotonicClock(), SLO)
    planning = planning_of(window, is_dry=False)

    def leave(roles: Mapping[str, Role], reason: str) -> None:
        raise NoWorker("decode-0 is not there; wait until it is.", retry_after_s=1.0)

    window.set_roles = leave  # type: ignore[method-assign]
    for number in range(20):
        window.start(request_for(number, [number] * 5, 2), Deaf())
        window.finished(record(number, 5, 2, 0.1))
    await planning.tick()
    refused = await planning.tick()
    assert refused.verdict is PlanVerdict.HOLD and "decode-0 is not there" in refused.reason
    assert planning.plan()["num_changes"] == 0 and planning.mode_now == "1p1d"
    assert (await planning.tick()).verdict is PlanVerdict.HOLD, "and nobody's hand was in it"


async def test_steady_traffic_is_not_simulated_anew_each_tick() -> None:
    """Red when the simulator computes all the time for one answer, or an old one is given to other traffic."""
    clock, generator = Hand(), ScriptedGenerator([])
    generator.engine_status = two_workers()
    asked: list[Demand] = []
    planning = planning_of(DemandWindow(generator, clock, SLO), is_dry=True, clock=clock)
    answer = planning.ask

    async def ask(modes: Sequence[Mode], demand: Demand, workers: Sequence[WorkerStatus], seed: int) -> Any:
        asked.append(demand)
        return await answer(modes, demand, workers)

    remembered = RememberedAnswers(ask, clock, AnswerPool(60.0, 0.02))
    modes, workers = modes_of({"box": [WorkerId("prefill-0"), WorkerId("decode-0")]}), generator.engine_status.workers
    steady = Demand(requests_per_s=2.0, samples=(Sample(100, 10),), longest_tokens=110)
    for demand, num_asked in (
        (steady, 1),
        (steady.at(1.1), 1),
        (replace(steady, samples=(Sample(105, 10),)), 1),
        (steady.at(2.0), 2),
        (steady.at(2.0), 2),
        (replace(steady.at(2.0), samples=(Sample(100, 20),)), 3),
        (replace(steady.at(2.0), samples=(Sample(100, 20, (50,)),)), 4),
        (replace(steady.at(2.0), samples=(Sample(100, 20, (50,)),), num_waiting=3), 4),
        (replace(steady.at(2.0), samples=(Sample(100, 20, (50,)),), num_waiting=30), 5),
    ):
        outlooks = await remembered.ask(modes, demand, workers)
        assert len(asked) == num_asked and set(outlooks) == set(modes)
    await remembered.ask(modes, asked[-1], [replace(worker, epoch=9) for worker in workers])
    assert len(asked) == 6, "a worker is new"
    clock.at_ns += round(KEPT_S * S)
    await remembered.ask(modes, asked[-1], [replace(worker, epoch=9) for worker in workers])
    assert len(asked) == 7, "costs may have changed"


def two_workers() -> EngineStatus:
    status = status_of(ready=True)
    (one,) = status.workers
    names = (("prefill-0", "prefill"), ("decode-0", "decode"))
    return replace(status, workers=tuple(replace(one, worker_id=name, role=role) for name, role in names))


async def test_decisions_and_the_mode_are_on_metrics_and_in_the_state() -> None:
    """As of the last tick, and of former modes nothing. Red when a count grows with each scrape."""
    async with in_process_stack({"prefill-0": "prefill", "decode-0": "decode"}, num_gateways=1) as stack:
        clock = Hand()
        planning = planning_of(DemandWindow(stack.gateways[0].dispatcher, clock, SLO), is_dry=False, clock=clock)
        metrics = GatewayMetrics(["fake"])
        metrics.show_plans(lambda: [planning])
        assert planner_series(metrics) == {}, "before the first tick"
        for number in range(20):
            planning.window.start(request_for(number, [number] * 5, 2), Deaf())
            planning.window.finished(record(number, 5, 2, 0.1))
            clock.at_ns += S
        await planning.tick()
        assert planner_series(metrics) == {"hold": 1.0, "1p1d": 1.0}
        await planning.tick()
        assert planner_series(metrics) == planner_series(metrics) == {"hold": 1.0, "change": 1.0, "unified": 1.0}
        (told,) = (await state_of(rig(plans=(planning.plan,)))).plan or ()
        assert (told.model, told.mode, told.is_dry_run, told.num_changes) == ("fake", "unified", False, 1)
        assert told.workers is None, "it plans no number"
        assert [step.verdict for step in told.decisions] == ["change", "hold"]
        assert "unified is to meet the targets for 100%" in told.decisions[0].reason


def planner_series(metrics: GatewayMetrics) -> dict[str, float]:
    """By verdict or mode, zeros left out."""
    families = text_string_to_metric_families(metrics.render({})[0].decode())
    samples = [each for family in families for each in family.samples if each.name.startswith("relevo:planner_")]
    kept = [each for each in samples if each.value and not each.name.endswith("_created")]
    return {each.labels.get("verdict") or each.labels["mode"]: each.value for each in kept}


def has_roles(generator: TokenGenerator, wanted: list[str]) -> bool:
    return [worker.role for worker in generator.status().workers] == wanted


def planning_of(window: DemandWindow, is_dry: bool, clock: Clock | None = None) -> RolePlanning:
    async def ask(modes: Sequence[Mode], demand: Demand, workers: Sequence[WorkerStatus]) -> Mapping[Mode, ModeOutlook]:
        attained = {mode: 1.0 if mode.name == "unified" else 0.5 for mode in modes}
        return {mode: ModeOutlook(attained=part, ttft_p90_s=0.1, itl_p90_s=0.01) for mode, part in attained.items()}

    return RolePlanning(
        model="fake",
        window=window,
        planner=RolePlanner(PlannerLimits(error_weight=0.0, min_compared=0), 1.0, 0.05, acts=not is_dry),
        limits=PlannerLimits(),
        ask=ask,
        close=lambda: None,
        clock=clock or MonotonicClock(),
        unix_s=lambda: 1.0,
        is_dry=is_dry,
        targets={"ttft_p90_s": 1.0, "itl_p90_s": 0.05},
    )


async def test_an_answer_about_a_rush_that_is_over_changes_nothing() -> None:
    """One request a second, ten for 5 s, and the simulator takes 25 s. Red when roles are changed for what has gone."""
    for answers_after_s, is_over in ((1, False), (25, True)):
        clock, generator = Hand(), ScriptedGenerator([])
        generator.engine_status = two_workers()
        planning = planning_of(DemandWindow(generator, clock, SLO), is_dry=True, clock=clock)
        number = 0
        for num, per_s in ((40, 1.0), (50, 10.0)):
            for _ in range(num):
                clock.at_ns += round(S / per_s)
                number += 1
                planning.window.start(request_for(number, [1] * 8, 4), Deaf())
                planning.window.finished(record(number, 8, 4, 0.1))
        question = planning.look()
        assert isinstance(question, Question) and question.seen.demand is not None
        assert question.seen.demand.requests_per_s > 3.0
        outlooks = await planning.ask(question.modes, question.demand, question.workers)
        clock.at_ns += answers_after_s * S
        found = planning.decide(question, outlooks)
        assert ("rush" in found.reason) is is_over and (found.verdict is PlanVerdict.UNKNOWN) is is_over
