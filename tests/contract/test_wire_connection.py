"""A real WorkerConnection against a real WireServer that runs its poll loop in a thread, as a worker does."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from wire_samples import HELLO, RID, SAMPLES

from relevo.core.errors import ProtocolError, SettingsError, WorkerLost
from relevo.core.ids import PeerId
from relevo.wire import messages as wire
from relevo.wire.client import WorkerConnection
from relevo.wire.framing import encode_frame
from relevo.wire.gateway_links import PeerGone
from relevo.wire.server import WireServer

WAIT_S = 10.0  # a deadline, not a measurement


class EchoWorker:
    """Answers Ping with Pong; does what `on_message` says about everything else."""

    def __init__(self, address: str, on_message: Callable[[WireServer, PeerId, object], None] | None = None) -> None:
        self.server = WireServer(lambda: HELLO)
        self.server.listen(address)
        self.address = address
        self.arrived: list[tuple[PeerId, object]] = []
        self.num_polls = 0
        self._on_message = on_message
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            self.num_polls += 1
            for peer, message in self.server.poll(None):
                self.arrived.append((peer, message))
                if isinstance(message, wire.Ping):
                    self.server.send(peer, wire.Pong(message.nonce))
                elif self._on_message is not None:
                    self._on_message(self.server, peer, message)
        self.server.close()

    def stop(self) -> None:
        self._stopping = True
        self.server.wake()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


@pytest.fixture
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"unix:{tmp_path_factory.mktemp('s')}/w"


@pytest.fixture
def worker(address: str) -> Iterator[EchoWorker]:
    worker = EchoWorker(address)
    yield worker
    worker.stop()


@pytest.fixture
async def connection(worker: EchoWorker) -> AsyncIterator[WorkerConnection]:
    connection = await WorkerConnection.open(worker.address)
    yield connection
    connection.close()


async def pong(connection: WorkerConnection, nonce: int) -> None:
    connection.send(wire.Ping(nonce))
    async with asyncio.timeout(WAIT_S):
        assert await connection.receive() == wire.Pong(nonce)


async def test_hello_comes_first_and_everything_arrives_in_order(
    worker: EchoWorker, connection: WorkerConnection
) -> None:
    assert connection.hello == HELLO
    sent = [m for m in SAMPLES if isinstance(m, wire.Submit | wire.Prefill | wire.StartDecode | wire.Abort)] * 50
    for message in sent:
        connection.send(message)
    await pong(connection, 1)
    assert [message for _, message in worker.arrived[:-1]] == sent


async def test_large_messages_pass_both_ways(address: str) -> None:
    """Red if a partly sent frame is lost, or sent twice, when a socket is full."""
    big = "x" * 8_000_000
    worker = EchoWorker(address, lambda server, peer, m: server.send(peer, wire.Refused(m.request_id, "c", big)))
    connection = await WorkerConnection.open(worker.address)
    for index in range(3):
        connection.send(wire.Abort(wire.RequestId(f"{index}" + big)))
    async with asyncio.timeout(WAIT_S):
        for index in range(3):
            assert await connection.receive() == wire.Refused(wire.RequestId(f"{index}" + big), "c", big)
    connection.close()
    worker.stop()


async def test_many_sends_in_one_turn_leave_in_one_write(
    worker: EchoWorker, connection: WorkerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[bytes] = []
    transport = connection._stream.transport
    assert transport is not None
    write = transport.write
    monkeypatch.setattr(transport, "write", lambda data: (writes.append(data), write(data)), raising=True)
    for nonce in range(100):
        connection.send(wire.Ping(nonce))
    async with asyncio.timeout(WAIT_S):
        for nonce in range(100):
            assert await connection.receive() == wire.Pong(nonce)
    assert len(writes) == 1


async def test_two_gateways_are_two_peers(worker: EchoWorker, connection: WorkerConnection) -> None:
    other = await WorkerConnection.open(worker.address)
    await pong(other, 1)
    await pong(connection, 2)
    other.close()
    await pong(connection, 3)
    assert len({peer for peer, message in worker.arrived if isinstance(message, wire.Ping)}) == 2


async def test_the_worker_hears_of_a_gateway_that_left_after_its_last_message(address: str) -> None:
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    worker = EchoWorker(
        address, lambda _s, _p, m: isinstance(m, PeerGone) and loop.call_soon_threadsafe(gone.set) and None
    )
    connection = await WorkerConnection.open(worker.address)
    connection.send(wire.Abort(RID))
    connection.close()
    async with asyncio.timeout(WAIT_S):
        await gone.wait()
    assert [type(m) for _, m in worker.arrived] == [wire.Abort, PeerGone]
    with pytest.raises(WorkerLost):
        connection.send(wire.Abort(RID))
    with pytest.raises(WorkerLost):
        await connection.receive()
    worker.stop()


async def test_messages_before_the_end_are_still_received(address: str) -> None:
    def answer_and_leave(server: WireServer, peer: PeerId, _message: object) -> None:
        server.send(peer, wire.Dropped(RID))
        server.close()

    worker = EchoWorker(address, answer_and_leave)
    connection = await WorkerConnection.open(worker.address)
    worker._stopping = True
    connection.send(wire.Abort(RID))
    async with asyncio.timeout(WAIT_S):
        assert await connection.receive() == wire.Dropped(RID)
        with pytest.raises(WorkerLost):
            await connection.receive()
    worker._thread.join(WAIT_S)


async def test_nonsense_from_a_gateway_costs_only_its_own_connection(
    worker: EchoWorker, connection: WorkerConnection
) -> None:
    with socket.socket(socket.AF_UNIX) as vandal:
        vandal.connect(worker.address.removeprefix("unix:"))
        vandal.sendall(b"GET / HTTP/1.1\r\n\r\n")
        await asyncio.to_thread(drain, vandal)  # until the worker hangs up
    await pong(connection, 1)


def drain(sock: socket.socket) -> None:
    sock.settimeout(WAIT_S)
    while sock.recv(4096):
        pass


@pytest.mark.parametrize(
    ("first", "error"),
    [
        (encode_frame(wire.Pong(1)), ProtocolError),
        (encode_frame(msgspec.structs.replace(HELLO, protocol_version=99)), ProtocolError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError),
        (b"", WorkerLost),
    ],
)
async def test_a_server_that_does_not_greet_as_agreed_is_refused(
    first: bytes, error: type[Exception], address: str
) -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(greet, address.removeprefix("unix:"))
    with pytest.raises(error):
        await WorkerConnection.open(address)
    server.close()


async def test_no_worker_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        await WorkerConnection.open(f"unix:{tmp_path}/none")


async def test_a_worker_that_does_not_read_is_given_up(address: str) -> None:
    """Red if sends to a stalled worker pile up without a bound."""
    server = WireServer(lambda: HELLO)
    server.listen(address)
    opening = asyncio.create_task(WorkerConnection.open(address, max_unsent_bytes=1_000_000))
    while not opening.done():
        server.poll(0)
        await asyncio.sleep(0)
    connection = opening.result()
    with pytest.raises(WorkerLost, match="unread"):
        for _ in range(1000):
            connection.send(wire.Abort(wire.RequestId("x" * 100_000)))
            await asyncio.sleep(0)
    with pytest.raises(WorkerLost):
        connection.send(wire.Abort(RID))
    server.close()


def greeted(server: WireServer, address: str) -> socket.socket:
    """A gateway that is connected and reads nothing."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(address.removeprefix("unix:"))
    while not server._peers:
        server.poll(0)
    return sock


def test_a_gateway_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    server = WireServer(lambda: HELLO, max_unsent_bytes=1_000_000)
    server.listen(f"unix:{tmp_path}/w")
    with greeted(server, f"unix:{tmp_path}/w"):
        peer = next(iter(server._peers))
        for _ in range(100):
            server.send(peer, wire.Refused(RID, "c", "x" * 100_000))
        arrived = server.poll(None)
        assert [(p, type(m)) for p, m in arrived] == [(peer, PeerGone)]
        server.send(peer, wire.Dropped(RID))  # too late, and harmless
        assert server.poll(0) == []
    server.close()


def test_a_dead_workers_socket_file_is_taken_over_and_a_living_ones_is_not(tmp_path: Path) -> None:
    path = f"unix:{tmp_path}/w"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path.removeprefix("unix:"))
    living = WireServer(lambda: HELLO)
    living.listen(path)
    other = WireServer(lambda: HELLO)
    with pytest.raises(SettingsError, match="cannot listen"):
        other.listen(path)
    other.close()
    living.close()
    living.close()  # idempotent
    assert not (tmp_path / "w").exists()


async def test_an_idle_worker_sleeps(worker: EchoWorker, connection: WorkerConnection) -> None:
    """Red if poll returns without cause: the loop would spin."""
    await pong(connection, 1)
    polls = worker.num_polls
    worker.server.wake()
    await pong(connection, 2)
    assert worker.num_polls - polls <= 3  # the wake, the ping, and the poll that waits now
