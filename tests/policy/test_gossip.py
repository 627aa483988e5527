"""What gateways tell each other: whatever is delivered late, twice or never, in the end all believe the same."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.policy.routing.charges import ChargeLedger
from relevo.policy.routing.gossip import MAX_USES, Batch, ChangeLog, PeerState
from relevo.policy.routing.prefix_index import PrefixIndex
from relevo.policy.routing.router import Use
from relevo.policy.routing.worker_choice import WorkerChooser

WORKERS = tuple(WorkerRef(WorkerId(f"w{i}"), 1) for i in range(3))
PREFIXES = tuple(tuple(bytes([name]) * (i + 1) for i in range(3)) for name in range(3))


@dataclass
class Gateway:
    name: str
    in_flight: ChargeLedger = field(default_factory=ChargeLedger)
    index: PrefixIndex = field(default_factory=PrefixIndex)
    chooser: WorkerChooser = field(default_factory=WorkerChooser)
    own: set[RequestId] = field(default_factory=set)
    followers: dict[str, deque[Batch]] = field(default_factory=dict)  # what is on its way to them

    def __post_init__(self) -> None:
        self.change_log = ChangeLog(self.in_flight, self.index)
        self.peer_state = PeerState(self.in_flight, self.index, self.chooser)

    def flush(self) -> None:
        batch = self.change_log.batch()
        if batch is not None:
            for queue in self.followers.values():
                queue.append(batch)

    def followed_by(self, name: str) -> None:
        self.flush()
        self.followers[name] = deque([self.change_log.snapshot()])

    @property
    def view(self) -> list[object]:
        ledger = self.in_flight
        seen: list[object] = [
            (ledger.prefill_tokens(w), ledger.decode_tokens(w), ledger.asked_tokens(w), ledger.num_decodes(w))
            for w in WORKERS
        ]
        return seen + [self.index.matches(prefix) for prefix in PREFIXES]

    @property
    def is_idle(self) -> bool:
        return self.in_flight.is_empty and not self.index.has_expectations and not self.index.num_blocks


workers = st.sampled_from(WORKERS)
prefixes = st.sampled_from(PREFIXES)
indices = st.integers(0, 2)


class Gossiping(RuleBasedStateMachine):
    """Three gateways, a queue between each two, connections that break and gateways that die."""

    @initialize()
    def start(self) -> None:
        self.gateways: dict[int, Gateway] = {}
        self.num_started = 0
        self.num_requests = 0
        for index in range(3):
            self._start(index)

    def _start(self, index: int) -> None:
        gateway = self.gateways[index] = Gateway(f"g{index}")
        for other in self.gateways.values():
            if other is not gateway:
                other.followed_by(gateway.name)
                gateway.followed_by(other.name)

    @rule(index=indices, worker=workers, decode=workers, prefix=prefixes, num_tokens=st.integers(1, 50))
    def choose(self, index: int, worker: WorkerRef, decode: WorkerRef, prefix: tuple[bytes, ...], num_tokens: int):
        gateway, request_id = self.gateways[index], RequestId(f"r{self.num_requests}")
        self.num_requests += 1
        gateway.own.add(request_id)
        gateway.in_flight.charge_decode(request_id, decode, num_tokens)
        gateway.in_flight.charge_prefill(request_id, worker, num_tokens)
        gateway.index.expect(request_id, "decode", decode, prefix)
        gateway.change_log.chosen(request_id, "decode", Use(decode.worker_id, num_tokens, prefix[-1]))

    @rule(index=indices, worker=workers, prefix=prefixes, data=st.data())
    def choose_again(self, index: int, worker: WorkerRef, prefix: tuple[bytes, ...], data: st.DataObject) -> None:
        gateway = self.gateways[index]
        if gateway.own:
            request_id = data.draw(st.sampled_from(sorted(gateway.own)))
            gateway.in_flight.charge_prefill(request_id, worker, 9)
            gateway.index.expect(request_id, "prefill", worker, prefix)
            gateway.index.expect(request_id, "decode", worker, prefix)
            gateway.change_log.chosen(request_id, "prefill", None)

    @rule(index=indices, data=st.data(), num_tokens=st.integers(1, 60), is_over=st.booleans())
    def progress(self, index: int, data: st.DataObject, num_tokens: int, is_over: bool) -> None:
        gateway = self.gateways[index]
        if gateway.own:
            request_id = data.draw(st.sampled_from(sorted(gateway.own)))
            gateway.in_flight.prefill_left(request_id, num_tokens)
            gateway.in_flight.gave_tokens(request_id, 1)
            if is_over:
                gateway.in_flight.end(request_id)
                gateway.index.withdraw(request_id)
                gateway.own.discard(request_id)
            gateway.change_log.changed(request_id)

    @rule(index=indices)
    def flush(self, index: int) -> None:
        self.gateways[index].flush()

    @rule(teller=indices, listener=indices, is_twice=st.booleans())
    def deliver(self, teller: int, listener: int, is_twice: bool) -> None:
        source, target = self.gateways[teller], self.gateways[listener]
        queue = source.followers.get(target.name)
        if queue:
            batch = queue.popleft()
            is_whole = target.peer_state.take(source.name, batch)
            if is_twice and not batch.is_snapshot:
                target.peer_state.take(source.name, batch)
            if not is_whole:
                self._follow_anew(source, target)

    @rule(teller=indices, listener=indices)
    def lose_a_batch(self, teller: int, listener: int) -> None:
        queue = self.gateways[teller].followers.get(self.gateways[listener].name)
        if queue and len(queue) > 1 and not queue[0].is_snapshot:
            queue.popleft()

    @rule(teller=indices, listener=indices)
    def break_a_connection(self, teller: int, listener: int) -> None:
        if teller != listener:
            self._follow_anew(self.gateways[teller], self.gateways[listener])

    @rule(index=indices)
    def die(self, index: int) -> None:
        """And come back, knowing nothing."""
        self._die_for_good(index)
        self._start(index)

    def _die_for_good(self, index: int) -> None:
        dead = self.gateways.pop(index)
        for other in self.gateways.values():
            other.followers.pop(dead.name)
            other.peer_state.withdraw(dead.name)

    @invariant()
    def counts_are_never_negative(self) -> None:
        for gateway in self.gateways.values():
            assert all(gateway.in_flight.prefill_tokens(worker) >= 0 for worker in WORKERS)

    def teardown(self) -> None:
        """Everything is delivered: one view. One dies and stays dead, everything else is over: nothing is left."""
        if not hasattr(self, "gateways"):
            return
        self._settle()
        first, *others = self.gateways.values()
        assert all(other.view == first.view for other in others)
        self._die_for_good(0)
        for gateway in self.gateways.values():
            for request_id in gateway.own:
                gateway.in_flight.end(request_id)
                gateway.index.withdraw(request_id)
                gateway.change_log.changed(request_id)
        self._settle()
        assert all(gateway.is_idle for gateway in self.gateways.values())

    def _follow_anew(self, source: Gateway, target: Gateway) -> None:
        target.peer_state.withdraw(source.name)
        source.followed_by(target.name)

    def _settle(self) -> None:
        for source in self.gateways.values():
            source.flush()
        for source in self.gateways.values():
            for target in self.gateways.values():
                queue = source.followers.get(target.name, deque())
                while queue:
                    if not target.peer_state.take(source.name, queue.popleft()):
                        self._follow_anew(source, target)
                        queue = source.followers[target.name]


TestGossiping = Gossiping.TestCase
TestGossiping.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_hashes_are_told_once() -> None:
    """Red when every change of a long prompt's charges carries its block hashes again."""
    gateway = Gateway("a")
    gateway.in_flight.charge_prefill(RequestId("r"), WORKERS[0], 9)
    gateway.index.expect(RequestId("r"), "decode", WORKERS[0], PREFIXES[0])
    gateway.change_log.chosen(RequestId("r"), "decode", None)
    batches = [gateway.change_log.batch()]
    gateway.change_log.changed(RequestId("r"))
    batches.append(gateway.change_log.batch())
    assert [batch.standings[0].hashes for batch in batches if batch] == [PREFIXES[0], None]
    assert gateway.change_log.snapshot().standings[0].hashes == PREFIXES[0]
    assert gateway.change_log.batch() is None


def test_a_router_that_hears_of_uses_copies_a_hot_prefix_as_soon_as_one_that_made_them() -> None:
    """Red when picks of other gateways do not count as uses."""
    from random import Random

    from relevo.policy.routing.router import HOT_AFTER, Candidate, Router

    first: Router[str] = Router()
    second: Router[str] = Router()
    holder = Candidate(key="a", name="a", cost_s=0.1, num_hit_tokens=90, prefix=b"p")
    other = Candidate(key="b", name="b", cost_s=0.2)
    for _ in range(HOT_AFTER):
        pick = first.pick([holder, other], 100, b"", Random(0))
        assert pick.candidate is holder
        second.heard(pick.use)
    assert second.pick([holder, other], 100, b"", Random(0)).candidate is other


def told(gateway: Gateway, number: int = 0) -> RequestId:
    """A request that this gateway chose for and that its next batch tells."""
    request_id = RequestId(f"{gateway.name}{number}")
    gateway.in_flight.charge_prefill(request_id, WORKERS[0], 9)
    gateway.index.expect(request_id, "decode", WORKERS[1], PREFIXES[0])
    gateway.index.expect(request_id, "prefill", WORKERS[0], PREFIXES[0])
    gateway.change_log.chosen(request_id, "decode", Use(WORKERS[1].worker_id, 9, PREFIXES[0][-1]))
    return request_id


def pair() -> tuple[Gateway, Gateway]:
    """The second one follows the first, and has heard of nothing yet."""
    first, second = Gateway("a"), Gateway("b")
    assert second.peer_state.take("a", first.change_log.snapshot())
    return first, second


def hear(first: Gateway, second: Gateway) -> bool:
    batch = first.change_log.batch()
    assert batch is not None
    return second.peer_state.take("a", batch)


def test_what_a_gateway_told_is_withdrawn_with_it() -> None:
    """Red when the charges or the expectations of a gateway that died stay, or when those of others go with it."""
    first, second = pair()
    own = told(second)
    before = second.view
    told(first)
    assert hear(first, second) and second.view != before
    for _ in range(2):
        second.peer_state.withdraw("a")
        assert second.view == before
    assert second.index.expected_by(own)


def test_after_a_withdrawal_only_a_snapshot_is_believed() -> None:
    """Red when a batch of a connection that has ended counts as the next one."""
    first, second = pair()
    second.peer_state.withdraw("a")
    told(first)
    assert not hear(first, second)
    assert second.is_idle


def test_a_snapshot_ends_what_it_does_not_name() -> None:
    first, second = pair()
    request_id = told(first)
    assert hear(first, second) and not second.is_idle
    first.in_flight.end(request_id)
    first.index.withdraw(request_id)
    first.change_log.changed(request_id)
    first.change_log.batch()  # lost
    assert second.peer_state.take("a", first.change_log.snapshot())
    assert second.is_idle


def test_after_one_lost_batch_nothing_is_taken() -> None:
    """Red when a gap of a single batch goes unnoticed."""
    first, second = pair()
    told(first, 0)
    first.change_log.batch()  # lost
    told(first, 1)
    assert not hear(first, second)
    assert second.is_idle


def test_a_promise_that_ended_with_its_worker_is_not_kept_by_others() -> None:
    """Red when a change replaces what a request promises role by role, so that a role it has no more stays."""
    first, second = pair()
    request_id = told(first)
    assert hear(first, second)
    first.index.forget(WORKERS[0])
    first.in_flight.forget(WORKERS[0])
    first.change_log.all_changed()
    assert hear(first, second)
    assert second.index.expected_by(request_id) == first.index.expected_by(request_id)
    assert second.index.expected_by(request_id).keys() == {"decode"}
    assert second.in_flight.prefill_tokens(WORKERS[0]) == 0


def test_what_routers_remember_is_told_once_in_order_and_bounded() -> None:
    """Red when choices of one gateway do not reach the routers of the others, or pile up while nobody listens."""
    first, second = pair()
    heard: list[tuple[str, Use]] = []
    second.chooser.heard = lambda kind, use: heard.append((kind, use))  # type: ignore[method-assign]
    uses = [Use("w0", number) for number in range(MAX_USES + 5)]
    for use in uses:
        first.change_log.chosen(RequestId("r"), "prefill", use)
    batch = first.change_log.batch()
    assert batch is not None
    assert second.peer_state.take("a", batch) and second.peer_state.take("a", batch)
    assert heard == [("prefill", use) for use in uses[-MAX_USES:]]
