"""The number of workers over a cluster that is scripted: what is wanted, said and done about it, tick by tick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from scripted_gateway import ScriptedGenerator, status_of
from test_planner_loop import SLO, Hand, S, planning_of

from relevo.build.auto_topology import number_config
from relevo.build.role_planner import _simulate_numbers
from relevo.core.errors import SettingsError
from relevo.core.events import StepCosts
from relevo.core.ids import WorkerId
from relevo.gateway.console.state import PlannedNumber
from relevo.orchestrator.ports import EngineStatus, LineStatus, WorkerStatus
from relevo.planner.not_simulated import NotSimulated
from relevo.planner.window import DemandWindow, Window
from relevo.planner.worker_number import Scaler, WorkerNumber
from relevo.policy.scaling.demand import Demand, Sample
from relevo.policy.scaling.enough_workers import CountLimits, search
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.wanted_workers import WantedWorkers
from relevo.policy.scaling.worker_count import CountDecision, CountPlanner, CountSeen, CountVerdict
from relevo.policy.scaling.worker_facts import WorkerFacts
from relevo.settings import Settings
from relevo.telemetry.metrics import GatewayMetrics

LIMITS = CountLimits(least=1, most=5, tick_s=5.0)
OF_ONE = 2.0  # requests per second that a worker serves within the targets


@dataclass
class Cluster:
    """Workers that come when they are told to. `asked`: numbers and rates that the simulator was asked about."""

    there: list[str] = field(default_factory=lambda: ["a/unified-0"])
    leaving: set[str] = field(default_factory=set)
    limits: CountLimits = LIMITS
    scaler: Scaler | None = None
    now_s: float = 0.0
    asked: list[tuple[int, float]] = field(default_factory=list)
    is_silent: bool = False  # the simulator
    number: WorkerNumber = field(init=False)

    def __post_init__(self) -> None:
        self.number = WorkerNumber(
            model="fake",
            planner=CountPlanner(self.limits, ttft_s=1.0, start_s=30.0),
            limits=self.limits,
            wanted=WantedWorkers(limits=self.limits, start_s=30.0),
            ask=self._ask,
            unix_s=lambda: self.now_s,
            scaler=self.scaler,
        )

    async def _ask(self, seen: CountSeen, demand: Demand, workers: Sequence[WorkerStatus]) -> Mapping[int, ModeOutlook]:
        if self.is_silent:
            raise NotSimulated("the simulator had no answer in 120 s; the cores are busy")

        def answer(number: int) -> ModeOutlook:
            self.asked.append((number, demand.requests_per_s))
            attained = min(1.0, number * OF_ONE / demand.requests_per_s)
            return ModeOutlook(attained=attained, ttft_p90_s=0.5, itl_p90_s=0.01)

        return search(seen.num_there + seen.num_coming, self.limits, 1.0, answer)

    @property
    def statuses(self) -> tuple[WorkerStatus, ...]:
        (one,) = status_of(ready=True).workers
        return tuple(replace(one, worker_id=each, is_leaving=each in self.leaving) for each in self.there)

    async def tick(
        self, rate: float, *, unheard: str = "", num_waiting: int = 0, demand_known: bool = True
    ) -> CountDecision | None:
        self.now_s += 5.0
        num = round(60 * rate)
        demand = Demand(requests_per_s=rate, samples=(Sample(100, 100),), longest_tokens=200) if num else None
        window = Window(
            span_s=60.0,
            num_requests=num,
            demand=demand if demand_known else None,
            num_judged=num,
            attained=1.0 if num else None,
        )
        return await self.number.tick(window, self.statuses, num_waiting, self.now_s, unheard)

    async def settle(self, rate: float) -> None:
        for _ in range(8):
            await self.tick(rate)
        assert self.number.number == len(self.there)


async def test_a_burst_is_ordered_for_and_quiet_gives_it_back() -> None:
    """Red when the number that a cluster scales on does not follow, swings, or lets the last worker go."""
    cluster = Cluster()
    await cluster.settle(1.0)
    found = await cluster.tick(5.0)
    assert found is not None and found.verdict is CountVerdict.MORE and cluster.number.number == 3
    assert "3 workers are to meet the targets for 100%, 1 are to meet the targets for 35%" in found.reason
    for _ in range(4):
        await cluster.tick(5.0)
    assert cluster.number.number == 3, "what is on its way is not ordered twice"
    cluster.there += ["b/unified-0", "c/unified-0"]
    verdicts = [found.verdict for _ in range(40) if (found := await cluster.tick(0.0)) is not None]
    assert verdicts.count(CountVerdict.FEWER) == 1 and cluster.number.number == 1


async def test_nothing_is_wanted_before_it_is_known_who_is_there() -> None:
    """Red when a gateway that was just restarted asks for fewer workers than there are."""
    cluster = Cluster()
    for place in range(5):
        cluster.there.append(f"n{place}/unified-0")
        assert await cluster.tick(5.0) is None and cluster.number.number is None
    assert series(cluster.number, "relevo:planner_wanted_workers") == {}


async def test_what_is_not_known_changes_no_number() -> None:
    """Reports that stopped, requests of which none has ended, a simulator that is silent. Red when one of them is read
    as no load, and workers are given back under full load."""
    cluster = Cluster(there=[f"{name}/unified-0" for name in "abc"])
    await cluster.settle(5.0)
    for _ in range(20):
        found = await cluster.tick(0.0, unheard="gateway-1 has not said what came in there")
        assert found is not None and found.verdict is CountVerdict.UNKNOWN
    found = await cluster.tick(5.0, demand_known=False)
    assert found is not None and found.verdict is CountVerdict.UNKNOWN and "no answer of 300 requests" in found.reason
    cluster.is_silent = True
    found = await cluster.tick(9.0)
    assert found is not None and found.verdict is CountVerdict.UNKNOWN and "no answer in 120 s" in found.reason
    assert cluster.number.number == 3


async def test_steady_traffic_is_not_simulated_anew_each_tick() -> None:
    cluster = Cluster(there=["a/unified-0", "b/unified-0"])
    await cluster.settle(2.5)
    cluster.asked.clear()
    for _ in range(11):
        await cluster.tick(2.5)
    num_asked = len(cluster.asked)
    assert num_asked <= 2, "one answer, of two numbers"
    await cluster.tick(9.0)
    assert len(cluster.asked) > num_asked, "other traffic is asked about"


async def test_a_change_by_hand_is_named_and_holds() -> None:
    cluster = Cluster()
    await cluster.settle(1.0)
    cluster.there += ["b/unified-0", "c/unified-0"]
    found = await cluster.tick(1.0)
    assert found is not None and found.verdict is CountVerdict.ADOPT and "by hand" in found.reason
    for _ in range(30):
        found = await cluster.tick(1.0)
        assert found is not None and found.verdict is CountVerdict.HOLD and "after the one by hand" in found.reason
    for _ in range(60):
        await cluster.tick(1.0)
    assert cluster.number.number == 1, "it holds for its time"


async def test_where_there_is_none_a_request_that_waits_gets_one() -> None:
    """Red when a head without workers waits for a number that only workers could tell."""
    cluster = Cluster(there=[], limits=replace(LIMITS, least=0))
    await cluster.settle(0.0)
    found = await cluster.tick(0.0, num_waiting=2)
    assert found is not None and found.verdict is CountVerdict.MORE and cluster.number.number == 1
    assert found.reason == "2 requests wait for a worker, which takes 30 s to start"
    fewest = Cluster(there=[])
    for _ in range(8):
        await fewest.tick(0.0)
    assert fewest.number.number == 1, "the least is the operator's"


async def test_who_leaves_is_not_there_and_an_order_that_does_not_come_is_given_up() -> None:
    cluster = Cluster(there=["a/unified-0", "b/unified-0"])
    await cluster.settle(3.0)
    cluster.leaving.add("b/unified-0")
    await cluster.tick(3.0)
    assert cluster.number.plan()["there"] == 1
    verdicts = [found.verdict for _ in range(40) if (found := await cluster.tick(3.0)) is not None]
    assert CountVerdict.GIVE_UP in verdicts and cluster.number.plan()["num_decisions"]["give up"] >= 1


async def test_the_number_is_at_plan_and_on_metrics() -> None:
    """As of the last decision; a gateway that stands back shows none. Red when a scaler would read two, or a zero."""
    cluster = Cluster()
    await cluster.settle(1.0)
    await cluster.tick(5.0)
    told = cluster.number.plan()
    assert (told["wanted"], told["there"], told["coming"], told["max_workers"]) == (3, 1, 2, 5)
    assert told["decisions"][0]["verdict"] == "more" and told["commands"] is None
    assert told["reason"] == told["decisions"][0]["reason"]
    shown = msgspec.convert(told, PlannedNumber)
    assert (shown.wanted, shown.there, shown.reason) == (3, 1, told["reason"]), "on the console"
    assert series(cluster.number, "relevo:planner_wanted_workers") == {"": 3.0}
    assert series(cluster.number, "relevo:planner_number_decisions_total")["more"] == 1.0
    cluster.number.stand_back()
    assert series(cluster.number, "relevo:planner_wanted_workers") == {}


def series(number: WorkerNumber, name: str) -> dict[str, float]:
    """By verdict."""
    planning = planning_of(DemandWindow(ScriptedGenerator([]), Hand(), SLO), is_dry=True)
    planning.number = number
    metrics = GatewayMetrics(["fake"])
    metrics.show_plans(lambda: [planning])
    families = text_string_to_metric_families(metrics.render({})[0].decode())
    samples = [each for family in families for each in family.samples if each.name == name]
    return {each.labels.get("verdict", ""): each.value for each in samples}


async def test_the_loop_plans_the_number_after_the_roles_by_the_same_window() -> None:
    """Of a live planner, whose line counts. Red when its number is never asked for, or two windows see two things."""
    clock, generator = Hand(), ScriptedGenerator([])
    cluster = Cluster(there=[], limits=replace(LIMITS, least=0))
    generator.engine_status = EngineStatus(
        ready=False,
        reason="no worker is ready",
        lines=(LineStatus(name="interactive", num_waiting=3, oldest_wait_s=1.0),),
    )
    planning = planning_of(DemandWindow(generator, clock, SLO), is_dry=True, clock=clock)
    planning.number = cluster.number
    for _ in range(8):
        clock.at_ns += 5 * S
        await planning.tick()
        await planning._plan_number()
    told = planning.plan()["workers"]
    assert told["wanted"] == 1 and "3 requests wait" in told["decisions"][-1]["reason"]


def test_more_demand_needs_more_of_the_workers_that_are_there() -> None:
    """What the process of the simulator computes. Red when numbers are not simulated by what a worker measured."""
    one = WorkerFacts(
        worker_id=WorkerId("a/unified-0"),
        box="a",
        cores=(0, 1),
        costs={2: StepCosts(base_s=0.02, per_token_s=2e-4, per_kv_token_s=0.0)},
        num_blocks=2000,
        block_size=16,
        max_batched_tokens=512,
        max_prefill_tokens=512,
        max_running=16,
    )
    demand = Demand(requests_per_s=3.0, samples=(Sample(100, 40),), longest_tokens=140)
    few, best = _simulate_numbers(one, 4096, SLO, LIMITS, 1, {}, demand)
    many, _ = _simulate_numbers(one, 4096, SLO, LIMITS, 1, best, demand.at(8.0))
    assert few[1].attained > 0.95 > many[1].attained
    assert max(many) > max(few) and many[max(many)].attained > many[1].attained
    three = CountLimits(least=1, most=3)
    beyond, _ = _simulate_numbers(one, 4096, SLO, three, 1, {}, replace(demand.at(40.0), num_waiting=60))
    assert all(outlook.misses_all for outlook in beyond.values())
    seen = CountSeen(now_s=60.0, num_there=1, num_coming=0, start_s=30.0)
    found = CountPlanner(three, ttft_s=1.0, start_s=30.0).decide(seen, beyond)
    assert found.num_workers == 3, "all promise nothing, and three answer sooner"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"max_workers": 4, "planner": "off"}, "--max-workers 4 is for the planner, and --planner is off"),
        ({"max_workers": 4, "cluster": None}, "boxes that join, and none can; add --cluster HOST:PORT"),
        ({"max_workers": 4, "min_workers": 5}, "--min-workers 5 is above --max-workers 4; swap them"),
        ({"max_workers": 4, "worker": ("prefill=http://h:1",)}, "is for Relevo's own workers"),
    ],
)
def test_bounds_that_cannot_be_are_one_sentence(asked: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError) as refused:
        number_config(Settings(**{"model": "fake", "cluster": "0.0.0.0:7000", **asked}))
    assert words in str(refused.value)


def test_one_is_spare_where_targets_are_set() -> None:
    given = {"model": "fake", "cluster": "0.0.0.0:7000"}
    assert number_config(Settings(**given)) is None
    plain, with_target = (
        number_config(Settings(**given, max_workers=4, **more)) for more in ({}, {"slo_ttft_p90": "1s"})
    )
    assert plain is not None and with_target is not None and (plain.spare, with_target.spare) == (0, 1)
