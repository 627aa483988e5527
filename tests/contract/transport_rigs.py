"""One receiver and several senders over each transport, and a way to wait for their events without sleeping."""

from __future__ import annotations

import atexit
import functools
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from guide_transport import GUIDE
from node_identities import TestCluster

from relevo.core.events import TransferEvent
from relevo.core.handoff import Reach
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.kv import KVGroup, KVLayout, Reservation
from relevo.core.ports import KVTransport
from relevo.kv.arena import Arena
from relevo.kv.transports import tcp_frames
from relevo.kv.transports.fake import FakeHub, Faults
from relevo.kv.transports.registry import OwnEnd
from relevo.kv.transports.shm import ShmTransport
from relevo.kv.transports.tcp import TcpTransport
from relevo.kv.transports.tcp_address import split_address
from relevo.kv.transports.tcp_channel import PlainChannel
from relevo.kv.transports.tcp_sender import TcpOptions
from relevo.sim.kernel import Kernel
from relevo.sim.network import Link, LinkTraits
from relevo.sim.transport import KVNetwork

WAIT_S = 10.0  # a deadline, not a measurement
NUM_BLOCKS = 16
SECRET = b"of one start of one server, only"


def make_layout(block_bytes: int = 64, block_size: int = 4) -> KVLayout:
    group = KVGroup.full([0], 1, block_bytes // (8 * block_size))
    return KVLayout(model_hash="m", dtype="float32", block_size=block_size, groups=(group,))


def make_reservation(
    block_ids: list[int],
    *,
    name: str = "r",
    epoch: int = 1,
    generation: int = 0,
    hits: int = 0,
    block_size: int = 4,
) -> Reservation:
    return Reservation(
        request_id=RequestId(name),
        worker_id=WorkerId("d"),
        epoch=epoch,
        block_size=block_size,
        block_ids=tuple(block_ids),
        generations=tuple(generation + i for i in range(len(block_ids))),
        num_hit_tokens=hits,
    )


@contextmanager
def connected(receiver: TcpTransport, target: WorkerRef) -> Iterator[socket.socket]:
    """A sender that has proved itself, whose every byte the test decides from then on."""
    channel, _ = receiver._sender.connect(receiver.address(), target)
    with channel.sock as sock:
        yield sock


def receive_frame(sock: socket.socket) -> tuple[tcp_frames.AnyFrame, int]:
    return tcp_frames.receive_frame(PlainChannel(sock))


def send_frame(sock: socket.socket, frame: tcp_frames.AnyFrame) -> None:
    tcp_frames.send_frame(PlainChannel(sock), frame)


@functools.cache
def one_cluster() -> TestCluster:
    folder = tempfile.TemporaryDirectory(prefix="relevo-cluster-")
    atexit.register(folder.cleanup)
    return TestCluster(Path(folder.name))


@dataclass
class Worker:
    """A transport with its arena, and what it has reported so far."""

    transport: KVTransport
    arena: Arena
    woken: threading.Event
    events: list[TransferEvent] = field(default_factory=list)

    @property
    def is_zero_copy(self) -> bool:
        return self.transport.reach is Reach.ARENA

    def compute(self, reservation: Reservation, address: str, first_index: int, contents: list[bytes]) -> None:
        """Compute block contents where this transport wants them, and write them to the receiver."""
        targets = list(reservation.block_ids[first_index : first_index + len(contents)])
        local = targets if self.is_zero_copy else list(range(first_index, first_index + len(contents)))
        if not self.is_zero_copy or self.transport.may_write(reservation):
            for block_id, content in zip(local, contents, strict=True):
                self.arena.block(block_id)[:] = content
        self.transport.write(reservation, address, first_index, local)


class Rig:
    """Makes workers of one kind. `pump` lets virtual time pass where there is any."""

    def __init__(self, kind: str, layout: KVLayout | None = None, faults: Faults | None = None, seed: int = 0) -> None:
        self.kind = kind
        self.layout = layout or make_layout()
        self.hub = FakeHub(seed, faults or Faults(delay_ns=(1, 1000)))
        self.kernel = Kernel(seed)
        link = Link(
            "wire", LinkTraits(latency_s=1e-4, jitter_s=1e-4, bandwidth_bytes_per_s=1e9), self.kernel.rng("wire")
        )
        self.simulated = KVNetwork(self.kernel, lambda _from, _to: (link,))
        self.shared: Arena | None = None
        self.epoch = 1  # of the receiver
        self.workers: list[Worker] = []
        self.receiver = self.join()

    def join(self, address: str | None = None, layout: KVLayout | None = None) -> Worker:
        woken = threading.Event()
        layout = layout or self.layout
        transport: KVTransport
        if self.kind == "shm":
            if self.shared is None:
                self.shared = Arena.create(layout, NUM_BLOCKS, shared=True)
            arena = Arena.attach(self.shared.fd, layout, NUM_BLOCKS)
            if not self.workers or address:
                arena.close_to_writers(range(NUM_BLOCKS))
            transport = ShmTransport(arena, on_wake=woken.set)
        elif self.kind == "tcp":
            arena = Arena.create(layout, NUM_BLOCKS, shared=False)
            options = TcpOptions(frame_bytes=3 * layout.bytes_per_block, max_in_flight_bytes=1, checksum=True)
            port = int(address.rpartition(":")[2]) if address else 0
            self.epoch += bool(address)
            identity = WorkerRef(WorkerId("d" if not self.workers or address else "p"), self.epoch)
            transport = TcpTransport(
                arena, secret=SECRET, identity=identity, port=port, options=options, on_wake=woken.set
            )
        elif self.kind == "tcp-nodes":
            arena = Arena.create(layout, NUM_BLOCKS, shared=False)
            options = TcpOptions(frame_bytes=3 * layout.bytes_per_block, checksum=True)
            port = split_address(address).port if address else 0
            self.epoch += bool(address)
            is_receiver = not self.workers or bool(address)
            door = one_cluster().door("d" if is_receiver else "p")
            transport = TcpTransport(
                arena,
                secret=b"",
                identity=WorkerRef(WorkerId("d" if is_receiver else "p"), self.epoch),
                door=replace(door, ports=range(port, port + 1)),
                options=options,
                on_wake=woken.set,
            )
        elif self.kind == "sim":
            arena = Arena.create(layout, NUM_BLOCKS, shared=False)
            name = address.removeprefix("sim-network:box/") if address else str(len(self.workers))
            transport = self.simulated.join("box", name, layout, woken.set, arena=arena)
        elif self.kind == "heap":
            arena = Arena.create(layout, NUM_BLOCKS, shared=False)
            worker_id = WorkerId(address.removeprefix("heap:") if address else f"{id(self)}-{len(self.workers)}")
            own = OwnEnd(worker=WorkerRef(worker_id, 1), arena=arena, secret=b"", on_wake=woken.set)
            transport = GUIDE.open(own)
        else:
            arena = Arena.create(layout, NUM_BLOCKS, shared=False)
            transport = self.hub.endpoint(address or f"fake:{len(self.workers)}", arena, woken.set)
        worker = Worker(transport, arena, woken)
        self.workers.append(worker)
        return worker

    def restart_receiver(self) -> None:
        """The receiver's process dies; another one comes up at the same address, over the same or new memory."""
        address = self.receiver.transport.address()
        self.receiver.transport.close()
        self.receiver = self.join(address)

    @property
    def address(self) -> str:
        return self.receiver.transport.address()

    def pump(self) -> None:
        self.hub.advance(self.hub.now_ns + 1_000_000)
        self.kernel.run(self.kernel.now_ns() + 1_000_000)

    def next_event(self, worker: Worker) -> TransferEvent:
        """The next event of the worker in order of arrival; fails the test if none comes."""
        while not worker.events:
            self.pump()
            assert worker.woken.wait(WAIT_S), "no event arrived"
            worker.woken.clear()
            worker.events.extend(worker.transport.poll())
        return worker.events.pop(0)

    def close(self) -> None:
        for worker in self.workers:
            worker.transport.close()
            worker.arena.close()
        if self.shared is not None:
            self.shared.close()
