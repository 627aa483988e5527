"""Planners of several gateways over the same workers: one of them acts, by what came in through all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from in_process_stack import request_for
from scripted_gateway import ScriptedGenerator
from test_planner_loop import SLO, Deaf, Hand, S, planning_of, record, two_workers

from relevo.build.gateway_cluster import GatewayCluster
from relevo.build.remote_members import RemoteMembers
from relevo.build.role_planner import _elsewhere
from relevo.core.cluster import NodeReport
from relevo.planner.loop import RolePlanning
from relevo.planner.together import Telling, Together, merged
from relevo.planner.window import DemandWindow, Window
from relevo.policy.scaling.demand import Demand, Sample
from relevo.policy.scaling.role_planner import PlanVerdict


class Gateways:
    """So many planners that hear each other, as `GossipSockets` would let them."""

    def __init__(self, number: int) -> None:
        self.clock, self.silent, self.gone = Hand(), set[str](), set[str]()
        self.plannings: dict[str, RolePlanning] = {}
        for index in range(number):
            name, generator = f"gateway-{index}", ScriptedGenerator([])
            generator.engine_status = two_workers()
            planning = planning_of(DemandWindow(generator, self.clock, SLO), is_dry=True, clock=self.clock)
            planning.together = Together(
                gateway_id=name, ask=partial(self._ask, name), connected=partial(self._connected, name)
            )
            self.plannings[name] = planning

    async def _ask(self, asker: str) -> Mapping[str, bytes | None]:
        others = {name: planning for name, planning in self.plannings.items() if name != asker}
        quiet = self.silent | self.gone
        return {name: None if name in quiet else planning.tell() for name, planning in others.items()}

    def _connected(self, asker: str) -> frozenset[str]:
        return frozenset(self.plannings.keys() - self.gone - {asker})

    def come_in(self, name: str, number: int) -> None:
        window = self.plannings[name].window
        for place in range(number):
            key = place + 1000 * int(name[-1])
            window.start(request_for(key, [1] * 8, 4), Deaf())
            window.finished(record(key, 8, 4, 0.2 if place % 2 else 3.0))  # half of them in time, as it is foretold


async def test_the_first_of_them_plans_by_the_requests_of_all_and_the_others_do_nothing() -> None:
    """Red when two planners act on one set of roles, or one plans by its own part of the traffic."""
    both = Gateways(2)
    both.clock.at_ns += 60 * S
    both.come_in("gateway-0", 5)
    both.come_in("gateway-1", 15)
    first, second = both.plannings.values()
    acted, stood_back = await first.tick(), await second.tick()
    assert acted.verdict is PlanVerdict.CHANGE, "twenty requests are enough, five were not"
    assert stood_back.verdict is PlanVerdict.HOLD and "gateway-0 plans" in stood_back.reason
    assert second.planner.num_changes == 0
    told = second.plan()
    assert told["planned_by"] == "gateway-0" and told["decisions"][0]["verdict"] == "change"


async def test_a_gateway_that_says_nothing_is_not_one_without_requests() -> None:
    """Red when half of the demand seems to have gone away because a process was busy."""
    both = Gateways(2)
    both.clock.at_ns += 60 * S
    both.come_in("gateway-0", 30)
    both.silent.add("gateway-1")
    decision = await both.plannings["gateway-0"].tick()
    assert decision.verdict is PlanVerdict.UNKNOWN and "gateway-1 has not said" in decision.reason


async def test_the_next_one_takes_over_and_blames_no_hand() -> None:
    both = Gateways(2)
    both.clock.at_ns += 60 * S
    both.come_in("gateway-1", 30)
    both.clock.at_ns += 20 * S  # a burst is no steady load to compare with
    second = both.plannings["gateway-1"]
    assert "gateway-0 plans" in (await second.tick()).reason
    both.gone.add("gateway-0")
    assert (await second.tick()).verdict is PlanVerdict.CHANGE


def test_windows_add_up() -> None:
    """Rates and counts are sums, what met its targets is weighed, lengths come from each by its requests."""
    short = Demand(requests_per_s=3.0, samples=tuple(Sample(10, 5) for _ in range(64)), longest_tokens=15)
    long = Demand(
        requests_per_s=1.0, samples=tuple(Sample(100, 5) for _ in range(64)), longest_tokens=105, num_waiting=4
    )
    windows = [
        Window(span_s=60.0, num_requests=180, demand=short, num_judged=100, attained=1.0),
        Window(span_s=60.0, num_requests=60, demand=long, num_judged=50, attained=0.4),
        Window(span_s=60.0, num_requests=0, demand=None, num_judged=0, attained=None),
    ]
    whole = merged([Telling.of(window, None) for window in windows])
    assert (whole.num_requests, whole.num_judged) == (240, 150)
    assert whole.attained is not None and abs(whole.attained - 0.8) < 1e-9
    assert whole.demand is not None and whole.demand.requests_per_s == 4.0 and whole.demand.longest_tokens == 105
    assert abs(whole.demand.mean_prompt_tokens - 32.5) < 2.0
    assert whole.demand.num_waiting == 4
    nothing = merged([Telling.of(windows[2], None)])
    assert nothing.demand is None and nothing.attained is None


async def test_where_another_head_serves_the_same_workers_neither_planner_acts() -> None:
    """Heads do not tell each other what comes in. Red when two planners, each by its part of the traffic, give the same
    workers roles in turn; and when one that is alone again does not plan."""
    both = Gateways(2)
    both.clock.at_ns += 60 * S
    heads = {"gateway-0": ("head-b",), "gateway-1": ("head-a",)}
    for name, planning in both.plannings.items():
        planning.together = None
        planning.elsewhere = partial(_elsewhere, Heads(heads, name))
        both.come_in(name, 30)
    for planning in both.plannings.values():
        for _ in range(3):
            decision = await planning.tick()
            assert decision.verdict is PlanVerdict.UNKNOWN and "requests come in through head-" in decision.reason
        assert planning.planner.num_changes == 0 and planning.planner.num_unknown_ticks == 3
    heads["gateway-0"] = ()
    assert (await both.plannings["gateway-0"].tick()).verdict is PlanVerdict.CHANGE


class Heads:
    """What a gateway's cluster knows of other heads."""

    def __init__(self, heads: Mapping[str, tuple[str, ...]], name: str) -> None:
        self._heads, self._name = heads, name

    def other_heads(self) -> tuple[str, ...]:
        return self._heads[self._name]


def test_a_cluster_names_the_heads_that_are_there() -> None:
    """Red when the head itself, one that is gone, or a node keeps a planner from planning."""
    cluster = GatewayCluster.__new__(GatewayCluster)
    cluster._own_name = "a"
    assert cluster_heads(cluster, ()) == ()
    nodes = [
        NodeReport(name=name, role=role, state=state, epoch=1, since_unix_s=0.0)
        for name, role, state in (
            ("a", "head", "joined"),
            ("b", "head", "joined"),
            ("c", "head", "unheard"),
            ("d", "head", "gone"),
            ("e", "node", "joined"),
        )
    ]
    assert cluster_heads(cluster, nodes) == ("b", "c")


def cluster_heads(cluster: GatewayCluster, nodes: Sequence[NodeReport]) -> tuple[str, ...]:
    cluster.members = RemoteMembers.__new__(RemoteMembers)
    cluster.members.nodes = nodes
    return cluster.other_heads()
