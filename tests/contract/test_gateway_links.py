"""What a worker's step loop may rely on from its connections to gateways, over sockets and without.

Red when the two differ: then what is simulated is not what is served.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from wire_samples import HELLO, RID, SAMPLES

from relevo.core.ids import PeerId
from relevo.wire import messages as wire
from relevo.wire.address import unix_path
from relevo.wire.framing import encode_frame, gateway_side_decoder
from relevo.wire.gateway_links import GatewayLinks, PeerGone
from relevo.wire.in_process_links import InProcessLinks
from relevo.wire.server import WireServer

WAIT_S = 10.0  # a deadline, not a measurement


class Gateway(Protocol):
    """The other end of one connection."""

    peer_id: PeerId

    def send(self, message: wire.ToWorker) -> None: ...
    def receive(self) -> wire.ToGateway | None:
        """The next message; None: the worker closed the connection."""
        ...

    def close(self) -> None: ...


class SocketGateway:
    def __init__(self, server: WireServer, address: str) -> None:
        before = server.peer_ids
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(WAIT_S)
        self._socket.connect(unix_path(address))
        while server.peer_ids == before:
            assert server.poll(0.0) == []
        (self.peer_id,) = set(server.peer_ids) - set(before)
        self._decoder = gateway_side_decoder()
        self._messages: list[wire.ToGateway] = []

    def send(self, message: wire.ToWorker) -> None:
        self._socket.sendall(encode_frame(message))

    def receive(self) -> wire.ToGateway | None:
        while not self._messages:
            data = self._socket.recv(65536)
            if not data:
                return None
            self._messages += self._decoder.feed(data)
        return self._messages.pop(0)

    def close(self) -> None:
        self._socket.close()


class InProcessGateway:
    def __init__(self, links: InProcessLinks) -> None:
        self._links = links
        self._messages: list[wire.ToGateway | None] = []
        self.peer_id = links.connect(self._messages.append, lambda: self._messages.append(None))

    def send(self, message: wire.ToWorker) -> None:
        self._links.deliver(self.peer_id, message)

    def receive(self) -> wire.ToGateway | None:
        return self._messages.pop(0)

    def close(self) -> None:
        self._links.disconnect(self.peer_id)


Connect = Callable[[], Gateway]


@pytest.fixture(params=["sockets", "in process"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[GatewayLinks, Connect]]:
    if request.param == "in process":
        links = InProcessLinks(lambda: HELLO)
        yield links, lambda: InProcessGateway(links)
        return
    address, gateways = f"unix:{tmp_path}/w", []
    server = WireServer(lambda: HELLO)
    server.listen(address)

    def connect() -> Gateway:
        gateways.append(SocketGateway(server, address))
        return gateways[-1]

    yield server, connect
    for gateway in gateways:
        gateway.close()
    server.close()


@pytest.fixture
def links(rig: tuple[GatewayLinks, Connect]) -> GatewayLinks:
    return rig[0]


@pytest.fixture
def connect(rig: tuple[GatewayLinks, Connect]) -> Connect:
    return rig[1]


def arrivals(links: GatewayLinks, num: int) -> list[tuple[PeerId, object]]:
    arrived: list[tuple[PeerId, object]] = []
    while len(arrived) < num:
        arrived += links.poll(0.0)
    return arrived


def test_a_gateway_is_greeted_before_anything_else_and_hears_in_order(links: GatewayLinks, connect: Connect) -> None:
    gateway = connect()
    said = [message for message in SAMPLES if isinstance(message, wire.ToGateway)]
    for message in said:
        links.send(gateway.peer_id, message)
    assert gateway.receive() == HELLO
    assert [gateway.receive() for _ in said] == said
    links.poll(0.0)
    assert links.num_unsent_bytes(gateway.peer_id) == 0


def test_messages_arrive_once_in_order_and_with_their_peer(links: GatewayLinks, connect: Connect) -> None:
    one, two = connect(), connect()
    assert links.peer_ids == (one.peer_id, two.peer_id)
    asked = [message for message in SAMPLES if isinstance(message, wire.ToWorker)]
    for message in asked:
        one.send(message)
        two.send(message)
    arrived = arrivals(links, 2 * len(asked))
    for peer in links.peer_ids:
        assert [message for sender, message in arrived if sender == peer] == asked
    assert links.poll(0.0) == []


def test_what_a_gateway_said_before_it_went_is_heard_and_its_end_comes_last(
    links: GatewayLinks, connect: Connect
) -> None:
    gone, stays = connect(), connect()
    gone.send(wire.Abort(RID))
    gone.close()
    arrived = arrivals(links, 2)
    assert arrived[0] == (gone.peer_id, wire.Abort(RID))
    assert arrived[1][0] == gone.peer_id and isinstance(arrived[1][1], PeerGone)
    assert links.peer_ids == (stays.peer_id,)
    links.send(gone.peer_id, wire.Pong(1))  # no effect
    assert links.num_unsent_bytes(gone.peer_id) == 0
    assert links.poll(0.0) == []


def test_the_name_of_a_gateway_that_went_is_never_given_again(links: GatewayLinks, connect: Connect) -> None:
    """Red when a newcomer gets what was meant for a gateway that is gone, or loses its requests with it."""
    gone = connect()
    gone.close()
    arrivals(links, 1)
    assert connect().peer_id != gone.peer_id


def test_wake_ends_one_wait(links: GatewayLinks) -> None:
    links.wake()
    assert links.poll(WAIT_S) == []  # at once


def test_nothing_is_waited_for_while_something_has_arrived(links: GatewayLinks, connect: Connect) -> None:
    gateway = connect()
    gateway.send(wire.Ping(7))
    assert links.poll(None) == [(gateway.peer_id, wire.Ping(7))]


def test_a_closed_worker_ends_every_connection(links: GatewayLinks, connect: Connect) -> None:
    gateway = connect()
    links.close()
    links.close()
    assert (gateway.receive(), gateway.receive()) == (HELLO, None)
    assert links.peer_ids == ()


def test_nothing_is_refused_unless_a_stranger_came(links: GatewayLinks, connect: Connect) -> None:
    connect()
    assert links.num_refused_connections == {}


def test_a_worker_ends_a_connection_and_hears_of_it_once(links: GatewayLinks, connect: Connect) -> None:
    one, two = connect(), connect()
    links.drop(one.peer_id, "enough")
    links.drop(one.peer_id, "again")
    links.send(one.peer_id, wire.Pong(1))
    assert one.receive() == HELLO
    assert one.receive() is None
    assert links.poll(0.0) == [(one.peer_id, PeerGone("enough"))]
    assert links.peer_ids == (two.peer_id,)
