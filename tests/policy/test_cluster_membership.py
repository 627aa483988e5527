"""A node and its heads under every delay, loss and freeze that hypothesis finds: two state machines and a bad network.

The node's clock and the head's are one here; what is between them is not. Red when a head could give a node up that has
not fenced itself by then, when two incarnations are accepted at once, or when an epoch comes twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.policy.cluster.epochs import (
    NO_SESSION,
    Session,
    incarnation_of,
    next_epoch,
    node_epoch_of,
    sessions_of_process,
    worker_epoch,
)
from relevo.policy.cluster.head import HeadMembers, MemberState
from relevo.policy.cluster.leases import FENCE_NS, FENCE_S, GONE_NS, GONE_S
from relevo.policy.cluster.node import CloseLinks, Fence, NodeMembership, NodeState

S = 1_000_000_000
NAME = "n"


@dataclass
class World:
    """One node, some heads, messages on their way for as long as the network likes."""

    num_heads: int = 1
    now_ns: int = 0
    unix_s: float = 1000.0
    is_frozen: bool = False
    node_disk: int = 0
    disks: dict[str, dict[str, int]] = field(default_factory=dict)
    epochs: list[int] = field(default_factory=list)  # that the workers have had
    linked: dict[str, Session] = field(default_factory=dict)  # of heads whose gateways have links here
    processes: int = 1
    heads_meet: bool = True  # they can ask each other
    flight: list[tuple[str, str, Session, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.node = NodeMembership(0, sessions_of_process(self.processes))
        self.heads = {f"h{i}": HeadMembers() for i in range(self.num_heads)}

    def apply(self, effects: list[CloseLinks | Fence]) -> None:
        for effect in effects:
            if isinstance(effect, CloseLinks):
                self.linked.pop(effect.head, None)
            else:
                self.fence(effect.epoch)

    def fence(self, epoch: int) -> None:
        assert epoch not in self.epochs, "an epoch came twice"
        self.epochs.append(epoch)
        self.node_disk = epoch
        self.linked.clear()

    def tick(self) -> None:
        if not self.is_frozen:
            self.apply(self.node.tick(self.now_ns, self.unix_s))
        for name, head in self.heads.items():
            for ended in head.tick(self.now_ns):
                self.check_gone(name, ended.session)

    def check_gone(self, head: str, session: Session) -> None:
        """What the head's gateways could still be told under that session would not be passed on."""
        assert not self.node.may_serve(head, session, self.now_ns), "given up before it has fenced itself"

    def join(self, name: str, *, answer_delay_ns: int) -> None:
        head = self.heads[name]
        if self.heads_meet:
            for other in self.heads.values():
                head.learned(NAME, other.highest_of(NAME))
        if self.node.needs_epoch((head.highest_of(NAME),)):
            self.fence(self.node.new_epoch((head.highest_of(NAME), self.node_disk), self.unix_s).epoch)
        self.linked.pop(name, None)
        session = self.node.ask(name, self.now_ns)
        self.pass_time(answer_delay_ns)
        before = head.get(NAME)
        was = before.session if before is not None and before.is_here else NO_SESSION
        ended = head.accept(NAME, session, self.now_ns)
        if ended is None:
            self.node.refused(name)
            return
        assert not was.epoch or [each.session for each in ended] == [was], "two incarnations are accepted at once"
        self.disks[name] = head.highest
        self.pass_time(answer_delay_ns)
        if self.node.welcomed(name, session, self.now_ns):
            self.linked[name] = session

    def beat(self, name: str) -> None:
        number = self.node.beat(name, self.now_ns)
        if number is not None and name in self.linked:
            self.flight.append(("beat", name, self.linked[name], number))

    def deliver(self, index: int) -> None:
        if not self.flight:
            return
        kind, name, session, number = self.flight.pop(index % len(self.flight))
        if kind == "beat":
            if self.heads[name].heard(NAME, session, self.now_ns):
                self.flight.append(("ack", name, session, number))
        elif not self.is_frozen:
            self.node.acknowledged(name, session, number, self.now_ns)

    def pass_time(self, ns: int) -> None:
        """In steps in which both notice what is over; a frozen node notices nothing."""
        while ns > 0:
            step = min(ns, S // 10)
            self.now_ns += step
            self.unix_s += step / S
            ns -= step
            self.tick()

    def restart_node(self, *, lost_disk: bool) -> None:
        self.processes += 1
        if lost_disk:
            self.node_disk = 0
            told = max((epoch for disk in self.disks.values() for epoch in disk.values()), default=0)
            self.epochs = [epoch for epoch in self.epochs if epoch <= told]  # one that no head heard of is gone with it
        self.pass_time(S // 5)  # no process starts faster
        self.node = NodeMembership(0, sessions_of_process(self.processes))
        self.linked.clear()

    def restart_head(self, name: str, *, lost_disk: bool) -> None:
        if lost_disk:
            self.disks.pop(name, None)
        self.heads[name] = HeadMembers(self.disks.get(name, {}))


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("time"), st.integers(1, 7 * S)),
        st.tuples(st.just("join"), st.integers(0, 1), st.integers(0, 4 * S)),
        st.tuples(st.just("beat"), st.integers(0, 1)),
        st.tuples(st.just("deliver"), st.integers(0, 9)),
        st.tuples(st.just("lose"), st.integers(0, 9)),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("thaw")),
        st.tuples(st.just("restart node"), st.booleans()),
        st.tuples(st.just("restart head"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("clock back"), st.integers(1, 100)),
        st.tuples(st.just("heads part")),
        st.tuples(st.just("heads meet")),
    ),
    max_size=40,
)


def play(world: World, move: tuple) -> None:  # type: ignore[type-arg]
    match move:
        case ("time", ns):
            world.pass_time(ns)
        case ("join", index, delay_ns) if not world.is_frozen:
            world.join(f"h{index % world.num_heads}", answer_delay_ns=delay_ns)
        case ("beat", index) if not world.is_frozen:
            world.beat(f"h{index % world.num_heads}")
        case ("deliver", index):
            world.deliver(index)
        case ("lose", index) if world.flight:
            world.flight.pop(index % len(world.flight))
        case ("freeze",):
            world.is_frozen = True
        case ("thaw",):
            world.is_frozen = False
            world.tick()  # the first thing after a thaw
        case ("restart node", lost) if not world.is_frozen:
            world.restart_node(lost_disk=lost)
        case ("restart head", index, lost):
            world.restart_head(f"h{index % world.num_heads}", lost_disk=lost and world.node_disk > 0)
        case ("clock back", seconds):
            world.unix_s = max(0.0, world.unix_s - seconds)
        case ("heads part",) | ("heads meet",):
            world.heads_meet = move[0] == "heads meet"


@settings(max_examples=150, deadline=None)
@given(num_heads=st.integers(1, 2), moves=MOVES)
def test_a_node_has_let_go_before_any_head_gives_it_up(num_heads: int, moves: list[tuple]) -> None:  # type: ignore[type-arg]
    """`lost_disk` on one side at a time: the other side remembers. A node that lost its disk and whose clock was set
    back has its last epoch from the head that it joins, or from another one that this head can ask."""
    world, was_set_back, have_parted = World(num_heads=num_heads), False, False
    for move in moves:
        if move[0] == "restart node" and move[1] and was_set_back and have_parted:
            continue
        if move[0] == "restart node" and move[1] and not any(disk for disk in world.disks.values()):
            continue  # nothing of it is left anywhere but the time
        if move[0] == "clock back" and not world.node_disk:
            continue
        was_set_back |= move[0] == "clock back"
        have_parted |= move[0] == "heads part"
        play(world, move)
        for name, session in world.linked.items():
            if world.node.may_serve(name, session, world.now_ns):
                member = world.heads[name].get(NAME)
                assert member is None or member.state is not MemberState.GONE or member.session != session
    assert world.epochs == sorted(set(world.epochs)), "epochs grow"


def test_a_lease_runs_from_when_the_heartbeat_was_sent() -> None:
    """Red when it runs from when the answer came: a slow network would then lengthen it beyond the head's patience."""
    node, head = NodeMembership(7), HeadMembers()
    session = node.ask("h", 0)
    assert head.accept(NAME, session, 0) == []
    assert node.welcomed("h", session, 0)
    number = node.beat("h", 1 * S)
    assert number is not None
    assert head.heard(NAME, session, 1 * S)
    assert node.acknowledged("h", session, number, 3 * S - 1) == 2.0 - 1e-9
    assert node.may_serve("h", session, 1 * S + FENCE_NS - 1)
    assert not node.may_serve("h", session, 1 * S + FENCE_NS)
    assert node.tick(1 * S + FENCE_NS, 0.0) == [CloseLinks("h"), Fence(8)]
    assert FENCE_S < GONE_S


def test_a_frozen_node_fences_itself_before_it_says_anything() -> None:
    node = NodeMembership(7)
    session = node.ask("h", 0)
    assert node.welcomed("h", session, 0)
    assert not node.may_serve("h", session, 600 * S)
    late = node.beat("h", 600 * S)
    assert late is not None
    assert node.acknowledged("h", session, late, 600 * S + 1) is None, "a lease that is over is not revived"
    assert node.state is not NodeState.FENCED
    assert Fence(8) in node.tick(600 * S + 2, 0.0)
    assert node.state is NodeState.FENCED


def test_a_node_that_loses_one_of_two_heads_keeps_the_requests_of_the_other() -> None:
    node = NodeMembership(7)
    sessions = {name: node.ask(name, 0) for name in ("a", "b")}
    assert all(node.welcomed(name, session, 0) for name, session in sessions.items())
    number = node.beat("b", 2 * S)
    assert number is not None
    node.acknowledged("b", sessions["b"], number, 2 * S)
    assert node.tick(FENCE_NS, 0.0) == [CloseLinks("a")], "no fence: b answers"
    again = node.ask("a", FENCE_NS)
    assert again.epoch == 7
    assert again > sessions["a"]
    assert node.may_serve("b", sessions["b"], FENCE_NS)


def test_a_head_that_is_alone_serves_its_own_gateways() -> None:
    node = NodeMembership(7, is_head=True)
    session = node.ask("other", 0)
    assert node.welcomed("other", session, 0)
    assert node.tick(FENCE_NS, 0.0) == [CloseLinks("other")]
    assert node.epoch == 7


def test_a_head_accepts_nothing_older_and_says_when_it_is_over() -> None:
    head = HeadMembers({NAME: 5})
    assert head.accept(NAME, Session(4, 9), 0) is None, "its disk remembers a later one"
    assert head.accept(NAME, Session(5, 1), 0) == []
    assert head.accept(NAME, Session(5, 1), 0) is None, "the same again"
    ended = head.accept(NAME, Session(6, 2), S)
    assert ended is not None
    assert [each.session for each in ended] == [Session(5, 1)]
    assert not head.heard(NAME, Session(5, 1), S)
    assert head.heard(NAME, Session(6, 2), S)
    assert not head.accepts(NAME, Session(6, 2), S + GONE_NS), "over, also if nobody has looked yet"
    assert not head.heard(NAME, Session(6, 2), S + GONE_NS)
    assert [each.name for each in head.tick(S + GONE_NS)] == [NAME]
    assert head.tick(S + GONE_NS) == [], "said once"
    assert head.accept(NAME, Session(6, 3), 9 * S) == [], "back under the epoch that only this head had lost"


def test_leaving_needs_no_patience() -> None:
    head = HeadMembers()
    assert head.accept(NAME, Session(1, 1), 0) == []
    assert [each.reason for each in head.left(NAME, Session(1, 1), 1)] == ["it has left"]
    assert head.left(NAME, Session(1, 1), 2) == []
    assert not head.heard(NAME, Session(1, 1), 2)


@given(st.lists(st.integers(0, 2**40)), st.floats(0, 2**40))
def test_an_epoch_is_above_all_that_are_known(known: list[int], unix_s: float) -> None:
    epoch = next_epoch(known, unix_s)
    assert epoch >= 1
    assert all(epoch > each for each in known)


@given(st.integers(1, 2**40), st.integers(1, 2**16 - 1))
def test_a_workers_epoch_names_its_node_and_its_process(node_epoch: int, incarnation: int) -> None:
    epoch = worker_epoch(node_epoch, incarnation)
    assert (node_epoch_of(epoch), incarnation_of(epoch)) == (node_epoch, incarnation)
    assert worker_epoch(node_epoch + 1, 1) > epoch
    assert worker_epoch(node_epoch, epoch) == epoch
    assert node_epoch_of(incarnation) == 0
