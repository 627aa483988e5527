"""A prompt on its way to a worker that does not take it in: its writer's streams go on, and its gateway hears that the
writer has let go when nothing is under way any more."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from random import Random

import pytest

from relevo.build.clock import MonotonicClock
from relevo.core.events import StepCosts
from relevo.core.handoff import KVPath, Link
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.kv import Reservation
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.fake_runner import FakeRunner, fake_layout
from relevo.engine.hello import WorkerIdentity
from relevo.engine.loop import EngineLoop
from relevo.kv.arena import Arena
from relevo.kv.transport_set import TransportSet
from relevo.kv.transports.tcp import TcpTransport
from relevo.kv.transports.tcp_sender import TcpOptions
from relevo.policy.perf.step_costs import StepCostModel
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig
from relevo.wire import messages as wire
from relevo.wire.in_process_links import InProcessLinks

WAIT_S = 20.0  # a deadline, not a measurement
BLOCK_SIZE, NUM_BLOCKS = 4, 32
SECRET = os.urandom(32)
P, D = WorkerRef(WorkerId("p"), 1), WorkerRef(WorkerId("d"), 1)


class Prefiller:
    """A worker with one gateway, whose turns the test takes."""

    def __init__(self, arena: Arena, transport: TcpTransport, woken: threading.Event) -> None:
        self.links, self.transport, self._woken = InProcessLinks(), transport, woken
        config = SchedulerConfig(
            worker_id=P.worker_id,
            epoch=P.epoch,
            first_block_id=0,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            max_batched_tokens=64,
            max_prefill_tokens=64,
            max_running=8,
            max_model_len=64,
            vocab_size=256,
        )
        costs = StepCosts(base_s=0.0, per_token_s=0.0, per_kv_token_s=0.0)
        self.loop = EngineLoop(
            identity=WorkerIdentity(worker_id=P.worker_id, epoch=P.epoch, pid=1, role="prefill", model_name="fake"),
            scheduler=Scheduler(config),
            runner=FakeRunner(arena, costs=costs, vocab_size=256, max_model_len=64),
            transports=TransportSet([transport], arena.identity),
            links=self.links,
            costs=StepCostModel(),
            clock=MonotonicClock(),
        )
        self.links.on_connect = self.loop.hello
        self.heard: list[wire.ToGateway] = []
        self.gateway = self.links.connect(self.heard.append, lambda: None)

    def asks(self, message: wire.ToWorker) -> None:
        self.links.deliver(self.gateway, message)
        self.loop.turn(0.0)

    def until_heard(self, kind: type[wire.Message]) -> None:
        """In turns, as transports call for them."""
        while not any(isinstance(message, kind) for message in self.heard):
            assert self._woken.wait(WAIT_S), f"no {kind.__name__}"
            self._woken.clear()
            self.loop.turn(0.0)


@contextmanager
def pair() -> Iterator[tuple[Prefiller, TcpTransport]]:
    """A prefill worker, and the transport of a decode worker."""
    woken = threading.Event()
    options = TcpOptions(drain_timeout_s=10 * WAIT_S)
    with (
        closing(Arena.create(fake_layout(BLOCK_SIZE), NUM_BLOCKS, shared=False)) as here,
        closing(Arena.create(fake_layout(BLOCK_SIZE), NUM_BLOCKS, shared=False)) as there,
        closing(TcpTransport(there, secret=SECRET, identity=D)) as receiver,
        closing(TcpTransport(here, secret=SECRET, identity=P, options=options, on_wake=woken.set)) as sender,
    ):
        yield Prefiller(here, sender, woken), receiver


def request(name: str, num_tokens: int) -> EngineRequest:
    prompt = tuple(Random(name).randrange(256) for _ in range(num_tokens))
    sampling = SamplingParams(max_tokens=40, seed=0, temperature=0, ignore_eos=True)
    return EngineRequest(request_id=RequestId(name), prompt_token_ids=prompt, sampling=sampling, arrived_at_ns=1)


def room(name: str, num_blocks: int) -> Reservation:
    return Reservation(
        request_id=RequestId(name),
        worker_id=D.worker_id,
        epoch=D.epoch,
        block_size=BLOCK_SIZE,
        block_ids=tuple(range(num_blocks)),
        generations=(1,) * num_blocks,
        num_hit_tokens=0,
    )


def eventually_under_way(prefiller: Prefiller, reservation: Reservation) -> None:
    sender = prefiller.transport._sender
    with sender.changed:
        transfer = sender.ledger.find(reservation)
        assert transfer is not None
        links = sender._links.values()
        assert sender.changed.wait_for(lambda: any(link.carries(transfer) for link in links), WAIT_S)


@pytest.mark.parametrize("how", ["abort", "fence"])
def test_streams_go_on_while_a_receiver_is_silent(how: str) -> None:
    """Red if the step loop waits for a box that is cut off, or says that nothing is written any more while something
    may still arrive."""
    with pair() as (prefiller, receiver):
        reservation = room("moved", 2)
        receiver.reserve(reservation)
        prefiller.asks(wire.Submit(request("stays", 4)))
        grant = receiver._grants._by_block[0]
        with grant.lock:  # it stands still in the middle of a write
            path = KVPath(transport="tcp", address=receiver.address(), link=Link.NETWORK)
            prefiller.asks(wire.Prefill(request("moved", 8), reservation, path, 0))
            eventually_under_way(prefiller, reservation)
            before = len(prefiller.heard)
            if how == "abort":
                prefiller.asks(wire.Abort(RequestId("moved"), False))
            else:
                prefiller.asks(wire.Fence(D.worker_id, D.epoch + 1, 7))
            for _ in range(5):
                prefiller.loop.turn(0.0)
            outputs = [each for each in prefiller.heard[before:] if isinstance(each, wire.StepOutputs)]
            assert len(outputs) >= 5
            assert not any(isinstance(each, wire.Dropped | wire.RequestFailed) for each in prefiller.heard)
            assert prefiller.loop.core.num_requests == 1
        prefiller.until_heard(wire.Dropped if how == "abort" else wire.RequestFailed)
