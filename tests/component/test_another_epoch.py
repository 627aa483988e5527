"""A worker that is told to be another incarnation: everything of the old one goes, process and cached content stay."""

from __future__ import annotations

from random import Random

from relevo.build.clock import MonotonicClock
from relevo.core.events import StepCosts
from relevo.core.ids import RequestId, WorkerId
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.fake_runner import FakeRunner, fake_layout
from relevo.engine.hello import WorkerIdentity
from relevo.engine.loop import EngineLoop
from relevo.kv.arena import Arena
from relevo.kv.transport_set import TransportSet
from relevo.kv.transports.shm import ShmTransport
from relevo.policy.perf.step_costs import StepCostModel
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig
from relevo.wire import messages as wire
from relevo.wire.in_process_links import InProcessLinks

COSTS = StepCosts(base_s=0.0, per_token_s=0.0, per_kv_token_s=0.0)


class Worker:
    def __init__(self) -> None:
        self.arena = Arena.create(fake_layout(4), 32, shared=False)
        self.links = InProcessLinks()
        self.transport = ShmTransport(self.arena)
        config = SchedulerConfig(
            worker_id=WorkerId("w"),
            epoch=1,
            first_block_id=0,
            num_blocks=32,
            block_size=4,
            max_batched_tokens=64,
            max_prefill_tokens=64,
            max_running=8,
            max_model_len=64,
            vocab_size=256,
        )
        self.loop = EngineLoop(
            identity=WorkerIdentity(worker_id=WorkerId("w"), epoch=1, pid=1, role="unified", model_name="fake"),
            scheduler=Scheduler(config),
            runner=FakeRunner(self.arena, costs=COSTS, vocab_size=256, max_model_len=64),
            transports=TransportSet([self.transport], self.arena.identity),
            links=self.links,
            costs=StepCostModel(),
            clock=MonotonicClock(),
        )
        self.links.on_connect = self.loop.hello

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.loop.turn(0.0)


class Gateway:
    def __init__(self, worker: Worker) -> None:
        self.heard: list[wire.ToGateway] = []
        self.is_closed = False
        self._worker = worker
        self.peer = worker.links.connect(self.heard.append, self._closed)

    def _closed(self) -> None:
        self.is_closed = True

    def asks(self, message: wire.ToWorker) -> None:
        self._worker.links.deliver(self.peer, message)
        self._worker.turn()

    def last(self, kind: type[wire.Message]) -> wire.Message:
        return next(message for message in reversed(self.heard) if isinstance(message, kind))


def request(name: str, num_tokens: int = 10) -> EngineRequest:
    prompt = tuple(Random(name).randrange(256) for _ in range(num_tokens))
    sampling = SamplingParams(max_tokens=40, seed=0, temperature=0, ignore_eos=True)
    return EngineRequest(request_id=RequestId(name), prompt_token_ids=prompt, sampling=sampling, arrived_at_ns=1)


def test_another_epoch_drops_everything_and_keeps_the_process() -> None:
    """Red when a request, a room or a right to write outlives the incarnation, or a gateway is not told."""
    worker = Worker()
    node, gateway = Gateway(worker), Gateway(worker)
    gateway.asks(wire.Submit(request("running")))
    gateway.asks(wire.Reserve(request("arriving")))
    worker.turn(3)
    reserved = gateway.last(wire.Reserved)
    assert isinstance(reserved, wire.Reserved)
    assert worker.transport.may_write(reserved.reservation)
    node.asks(wire.SetEpoch(9 << 16 | 1))
    hello = node.last(wire.Hello)
    assert isinstance(hello, wire.Hello)
    assert hello.epoch == 9 << 16 | 1
    assert hello.orphans == (RequestId("arriving"),), "a writer that shares memory may still be at work there"
    assert gateway.is_closed
    assert not node.is_closed
    assert worker.loop.core.num_requests == 0
    assert not worker.transport.may_write(reserved.reservation), "nothing of the old epoch is accepted"
    again = Gateway(worker)
    first = again.heard[0]
    assert isinstance(first, wire.Hello)
    assert first.epoch == hello.epoch
    again.asks(wire.Reserve(request("new")))
    worker.turn(2)
    granted = again.last(wire.Reserved)
    assert isinstance(granted, wire.Reserved)
    assert granted.reservation.epoch == hello.epoch


def test_an_epoch_that_is_not_above_its_own_changes_nothing() -> None:
    worker = Worker()
    node, gateway = Gateway(worker), Gateway(worker)
    node.asks(wire.SetEpoch(5))
    assert gateway.is_closed
    other = Gateway(worker)
    for stale in (5, 4):
        node.asks(wire.SetEpoch(stale))
    hello = node.last(wire.Hello)
    assert isinstance(hello, wire.Hello)
    assert (hello.epoch, other.is_closed) == (5, False)
