"""What membership may rely on from a link to a worker, over a socket and in a simulated world."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
from wire_samples import HELLO

from relevo.core.errors import WorkerLost
from relevo.orchestrator.ports import WorkerLink
from relevo.sim.gateway import SimLink
from relevo.sim.kernel import Kernel
from relevo.wire import messages as wire
from relevo.wire.client import WorkerConnection
from relevo.wire.gateway_links import GatewayLinks, PeerGone
from relevo.wire.in_process_links import InProcessLinks
from relevo.wire.server import WireServer

WAIT_S = 10.0  # a deadline, not a measurement
PINGS = [wire.Ping(number) for number in range(5)]
PONGS = [wire.Pong(number) for number in range(5)]


class Rig(Protocol):
    """A link and the worker at its other end."""

    heard: list[object]  # at the gateway; None: the link has ended

    @property
    def link(self) -> WorkerLink: ...

    @property
    def worker(self) -> GatewayLinks: ...

    def do(self, call: Callable[[], None]) -> None:
        """At the gateway."""
        ...

    def arrived(self, num_messages: int) -> list[object]:
        """At the worker, so many."""
        ...

    def until_heard(self, num: int) -> None: ...

    def end_worker(self) -> None: ...


class SocketRig:
    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.worker = WireServer(lambda: HELLO)
        self.worker.listen(f"unix:{folder}/w")
        self.heard: list[object] = []
        self.has_ended = False
        self._arrived: list[object] = []
        opening = self.loop.create_task(WorkerConnection.open(f"unix:{folder}/w"))
        self._until(opening.done)
        self.link = opening.result()
        self._reading = self.loop.create_task(self._read())

    async def _read(self) -> None:
        try:
            while True:
                self.heard.append(await self.link.receive())
        except WorkerLost:
            self.heard.append(None)

    def do(self, call: Callable[[], None]) -> None:
        async def on_the_loop() -> None:
            call()

        self.loop.run_until_complete(on_the_loop())

    def arrived(self, num_messages: int) -> list[object]:
        self._until(lambda: len(self._arrived) >= num_messages)
        return self._arrived

    def until_heard(self, num: int) -> None:
        self._until(lambda: len(self.heard) >= num)

    def end_worker(self) -> None:
        self.worker.poll(0.0)  # what it has said leaves
        self.worker.close()
        self.has_ended = True

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s
            if not self.has_ended:
                self._arrived += [message for _, message in self.worker.poll(0.0)]
            self.loop.run_until_complete(asyncio.sleep(0))

    def close(self) -> None:
        self.do(self.link.close)
        self._until(self._reading.done)
        self.worker.close()
        self.loop.close()


@dataclass
class Worker:
    """Of a simulated world, as far as its links."""

    links: InProcessLinks = field(default_factory=lambda: InProcessLinks(lambda: HELLO))
    told_ends: Sequence[int] = ()


class SimRig:
    def __init__(self) -> None:
        self.kernel, worker = Kernel(), Worker()
        self.worker = worker.links
        self.heard: list[object] = []
        self._arrived: list[object] = []
        self.link = SimLink(
            self.kernel, cast(Any, worker), ((), ()), lambda _, message: self._hear(message), lambda _: self._hear(None)
        )
        self.kernel.run()

    def _hear(self, message: wire.ToGateway | None) -> None:
        if not isinstance(message, wire.Hello):
            self.heard.append(message)

    def do(self, call: Callable[[], None]) -> None:
        call()

    def arrived(self, num_messages: int) -> list[object]:
        self.kernel.run()
        self._arrived += [message for _, message in self.worker.poll(0.0)]
        return self._arrived

    def until_heard(self, num: int) -> None:
        self.kernel.run()

    def end_worker(self) -> None:
        self.worker.close()

    def close(self) -> None:
        self.link.close()


@pytest.fixture(params=["socket", "simulated"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made: SocketRig | SimRig = SocketRig(tmp_path) if request.param == "socket" else SimRig()
    yield made
    made.close()


def send_all(link: WorkerLink) -> None:
    for ping in PINGS:
        link.send(ping)


def test_a_link_knows_who_is_at_its_other_end(rig: Rig) -> None:
    assert rig.link.hello == HELLO


def test_messages_arrive_in_the_order_of_sending_both_ways(rig: Rig) -> None:
    rig.do(lambda: send_all(rig.link))
    assert rig.arrived(len(PINGS)) == PINGS
    for pong in PONGS:
        rig.worker.send(rig.worker.peer_ids[0], pong)
    rig.until_heard(len(PONGS))
    assert rig.heard == PONGS


def test_what_the_worker_said_before_its_end_is_heard_and_nothing_can_be_sent_after(rig: Rig) -> None:
    """Red when last tokens are lost with the worker, or a request is sent to one that is gone and waits for ever."""
    rig.worker.send(rig.worker.peer_ids[0], PONGS[0])
    rig.end_worker()
    rig.until_heard(2)
    assert rig.heard == [PONGS[0], None]
    with pytest.raises(WorkerLost):
        rig.do(lambda: rig.link.send(PINGS[0]))


def test_a_closed_link_carries_what_was_sent_before_and_then_its_end(rig: Rig) -> None:
    """Red when the worker goes on with requests of a gateway that has left."""

    def close() -> None:
        send_all(rig.link)
        rig.link.close()
        rig.link.close()

    rig.do(close)
    arrived = rig.arrived(len(PINGS) + 1)
    assert arrived[:-1] == PINGS and isinstance(arrived[-1], PeerGone)
    with pytest.raises(WorkerLost):
        rig.do(lambda: rig.link.send(PINGS[0]))
