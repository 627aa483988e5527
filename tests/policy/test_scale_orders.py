"""When a command that brings workers is run: once at a time, after those that go have left, again after a failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.policy.scaling.scale_orders import Leave, LentNode, RunCommand, ScaleOrders, to_give_back


@dataclass
class Cluster:
    """Nodes of one worker each, which the command brings; who is to leave does so when it is told to `let_go`."""

    nodes: list[LentNode] = field(default_factory=list)
    orders: ScaleOrders = field(default_factory=ScaleOrders)
    now_s: float = 0.0
    told: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    leaving: list[str] = field(default_factory=list)
    running: RunCommand | None = None

    def tick(self, wanted: int, after_s: float = 5.0) -> Leave | RunCommand | None:
        self.now_s += after_s
        act = self.orders.next(wanted, 0, self.nodes, self.now_s)
        if isinstance(act, Leave):
            self.leaving += act.nodes
        elif act is not None:
            assert self.running is None, "one at a time"
            self.running = act
            self.told.append((act.number, act.given_back))
        return act

    def end(self, *, is_done: bool = True) -> None:
        assert self.running is not None
        command, self.running = self.running, None
        self.orders.ended(command, self.now_s, is_done=is_done)

    def let_go(self) -> None:
        self.nodes = [node for node in self.nodes if node.name not in self.leaving]
        self.leaving.clear()


def nodes(*names: str) -> list[LentNode]:
    return [LentNode(name, 1) for name in names]


def test_it_is_run_when_the_number_changes_and_not_otherwise() -> None:
    cluster = Cluster(nodes("a"))
    assert cluster.tick(1) is None, "so many were found"
    assert cluster.tick(3) == RunCommand(3, ())
    assert cluster.tick(4) is None, "one at a time"
    cluster.end()
    assert cluster.tick(4) == RunCommand(4, ())
    cluster.end()
    assert cluster.tick(4) is None


def test_where_none_is_there_the_least_are_ordered() -> None:
    assert Cluster().tick(1) == RunCommand(1, ())


def test_who_is_given_back_leaves_before_the_command_is_told() -> None:
    """Red when a machine is taken away while it still answers requests."""
    cluster = Cluster(nodes("a", "b", "c"))
    cluster.tick(3)
    assert cluster.tick(1) == Leave(("c", "b"))
    assert cluster.tick(1) is None, "they finish what they have"
    cluster.let_go()
    assert cluster.tick(1) == RunCommand(1, ("c", "b"))
    cluster.end()
    assert cluster.tick(1) is None


def test_who_does_not_leave_is_told_of_after_a_while() -> None:
    cluster = Cluster(nodes("a", "b"))
    cluster.tick(2)
    assert cluster.tick(1) == Leave(("b",))
    assert cluster.tick(1, after_s=500.0) is None
    assert cluster.tick(1, after_s=101.0) == RunCommand(1, ("b",))


def test_more_that_are_wanted_meanwhile_are_ordered_at_once() -> None:
    """Who leaves cannot be called back. Red when a burst waits for a drain, or the command never hears of who left."""
    cluster = Cluster(nodes("a", "b", "c"))
    cluster.tick(3)
    assert cluster.tick(2) == Leave(("c",))
    assert cluster.tick(4) == RunCommand(4, ())
    cluster.end()
    assert cluster.tick(4) is None
    cluster.let_go()
    assert cluster.tick(4) == RunCommand(4, ("c",))


def test_a_failure_is_tried_again_later_each_time() -> None:
    cluster = Cluster(nodes("a"))
    cluster.tick(1)
    cluster.tick(2)
    cluster.end(is_done=False)
    tries = []
    for _ in range(2000):
        if cluster.tick(2, after_s=1.0) is not None:
            tries.append(cluster.now_s)
            cluster.end(is_done=False)
    waits = [later - sooner for sooner, later in pairwise(tries)]
    assert waits[:4] == [10.0, 20.0, 40.0, 80.0] and max(waits) == 300.0
    assert cluster.tick(3, after_s=300.0) == RunCommand(3, ()), "another number that is wanted by then"
    cluster.end()
    assert cluster.orders.num_failed == 0


def test_what_a_person_brought_is_not_told() -> None:
    cluster = Cluster(nodes("a"))
    cluster.tick(1)
    cluster.nodes += nodes("b")
    cluster.orders.adopt(2)
    assert cluster.tick(2) is None


def test_nodes_are_given_back_whole_those_that_do_not_serve_first_then_the_last() -> None:
    four = [LentNode("a", 1), LentNode("b", 2), LentNode("c", 1, serves=False), LentNode("d", 3)]
    assert to_give_back(four, 1) == ("c",)
    assert to_give_back(four, 2) == ("c", "a"), "two of three workers of one machine cannot go"
    assert to_give_back(four, 3) == ("c", "b")
    assert to_give_back(four, 0) == to_give_back([], 3) == ()
    assert to_give_back([LentNode("e", 0)], 1) == (), "it has none"


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans(), st.booleans()), max_size=60))
@settings(max_examples=100, deadline=None)
def test_whatever_happens_the_command_is_told_the_last_number_in_the_end(
    steps: list[tuple[int, bool, bool, bool]],
) -> None:
    """Commands that end, fail or go on, nodes that leave or do not. Red when a number gets lost."""
    cluster, wanted = Cluster(nodes("a", "b", "c")), 3
    cluster.tick(3)
    for wanted, ends, is_done, lets_go in steps:
        cluster.tick(wanted)
        if cluster.running is not None and ends:
            cluster.end(is_done=is_done)
        if lets_go:
            cluster.let_go()
    for _ in range(8):
        if cluster.running is not None:
            cluster.end()
        cluster.let_go()
        cluster.tick(wanted, after_s=400.0)
    numbers = [number for number, _ in cluster.told]
    assert (numbers[-1] if numbers else 3) == wanted
    assert cluster.running is None
