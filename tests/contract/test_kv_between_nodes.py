"""KV between boxes: nodes of one cluster hand over to each other, all others get nothing, whoever sits between sees
nothing, and an incarnation that is gone is gone."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from node_identities import TestCluster
from transport_rigs import WAIT_S, make_layout

from relevo.core.errors import ProtocolError
from relevo.core.events import TransferEvent, TransferFailed, TransferSealed, WritesEnded
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.kv import KVRefusal, Reservation
from relevo.kv.arena import Arena
from relevo.kv.door import KVDoor
from relevo.kv.link_probe import probe_link
from relevo.kv.transports import tcp_receiver
from relevo.kv.transports.tcp import TcpTransport
from relevo.kv.transports.tcp_address import split_address
from relevo.kv.transports.tcp_channel import PlainChannel
from relevo.kv.transports.tcp_handshake import StaleTarget
from relevo.kv.transports.tcp_sealed_channel import SealedChannel
from relevo.kv.transports.tcp_sender import TcpOptions

LAYOUT = make_layout(4096)
SIZE = LAYOUT.bytes_per_block
SECRET_TEXT = b"what the prompt of a tenant said"
P, D = WorkerRef(WorkerId("p/prefill-0"), 1), WorkerRef(WorkerId("d/decode-0"), 5)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> TestCluster:
    return TestCluster(tmp_path_factory.mktemp("cluster"))


class End:
    """A worker's transport with its arena."""

    def __init__(self, door: KVDoor, worker: WorkerRef, **options: Any) -> None:
        self.woken = threading.Event()
        self.arena = Arena.create(LAYOUT, 16, shared=False)
        self.transport = TcpTransport(
            self.arena,
            secret=b"",
            identity=worker,
            door=door,
            options=TcpOptions(frame_bytes=2 * SIZE, **options),
            on_wake=self.woken.set,
        )

    @property
    def address(self) -> str:
        return self.transport.address()

    def hand_over(self, reservation: Reservation, address: str) -> TransferEvent:
        count = len(reservation.block_ids)
        for block_id in range(count):
            self.arena.block(block_id)[:] = (SECRET_TEXT * SIZE)[: SIZE - 1] + bytes([block_id])
        self.transport.write(reservation, address, 0, list(range(count)))
        self.transport.seal(reservation, address, 4 * count)
        while not (events := [event for event in self.transport.poll() if not isinstance(event, WritesEnded)]):
            assert self.woken.wait(WAIT_S)
            self.woken.clear()
        self.transport.cancel(reservation)
        return events[0]

    def close(self) -> None:
        self.transport.close()
        self.arena.close()


@contextmanager
def two(
    cluster: TestCluster, encrypts: tuple[bool, bool] = (True, True), num_streams: int = 3, **options: Any
) -> Iterator[tuple[End, End]]:
    with (
        closing(End(cluster.door("p", encrypts=encrypts[0], num_streams=num_streams), P, **options)) as p,
        closing(End(cluster.door("d", encrypts=encrypts[1]), D)) as d,
    ):
        yield p, d


def room(name: str = "r", epoch: int = D.epoch, count: int = 8) -> Reservation:
    ids = tuple(range(count))
    return Reservation(
        request_id=RequestId(name),
        worker_id=D.worker_id,
        epoch=epoch,
        block_size=4,
        block_ids=ids,
        generations=ids,
        num_hit_tokens=0,
    )


@contextmanager
def between(
    address: str, change: Callable[[bytes, int], bytes] = lambda data, at: data
) -> Iterator[tuple[str, bytearray]]:
    """(an address, all that went to the receiver): a stranger who passes everything on. `change`: of what the sender
    says, with its place in the stream."""
    place = split_address(address)
    seen = bytearray()
    with ExitStack() as held, socket.create_server(("127.0.0.1", 0)) as listener:

        def pump(source: socket.socket, target: socket.socket, is_sender: bool) -> None:
            try:
                while data := source.recv(65536):
                    if is_sender:
                        data, at = change(data, len(seen)), len(seen)
                        seen.extend(data)
                        del at
                    target.sendall(data)
            except OSError:
                pass
            for sock in (source, target):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

        def accept() -> None:
            try:
                while True:
                    one, _ = listener.accept()
                    other = socket.create_connection((place.host, place.port))
                    for pair in ((one, other, True), (other, one, False)):
                        held.callback(pair[0].close)
                        threading.Thread(target=pump, args=pair, daemon=True).start()
            except OSError:
                return

        threading.Thread(target=accept, daemon=True).start()
        yield str(place._replace(port=listener.getsockname()[1])), seen
        listener.shutdown(socket.SHUT_RDWR)


def eventually(condition: Callable[[], bool]) -> None:
    never = threading.Event()
    for _ in range(10_000):
        if condition():
            return
        never.wait(0.001)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize(
    ("encrypts", "is_encrypted"),
    [((True, True), True), ((True, False), True), ((False, True), True), ((False, False), False)],
)
def test_bytes_are_encrypted_unless_both_ends_say_no(
    cluster: TestCluster, encrypts: tuple[bool, bool], is_encrypted: bool
) -> None:
    """Red if one node with encryption off could talk another out of it: who listens between would read prompts."""
    with two(cluster, encrypts) as (p, d), between(d.address) as (address, seen):
        d.transport.reserve(room())
        assert isinstance(p.hand_over(room(), address), TransferSealed)
        assert all(d.arena.block(i)[SIZE - 1] == i for i in range(8))
        assert (SECRET_TEXT in seen) is not is_encrypted
        kind = SealedChannel if is_encrypted else PlainChannel
        link = next(iter(p.transport._sender._links.values()))
        assert all(isinstance(stream.channel, kind) for stream in link._streams)


def test_what_was_changed_on_its_way_is_refused(cluster: TestCluster) -> None:
    """Red if what was altered on its way is computed with."""
    with two(cluster) as (p, d):

        def flip(data: bytes, at: int) -> bytes:
            place = 12_000  # behind the handshake, inside blocks
            return data if not at <= place < at + len(data) else data[: place - at] + b"\0" + data[place - at + 1 :]

        with between(d.address, flip) as (address, seen):
            d.transport.reserve(room())
            event = p.hand_over(room(), address)
            assert len(seen) > 12_000
        if isinstance(event, TransferSealed):  # it was sent again over a fresh connection, on which nothing is changed
            assert all(bytes(d.arena.block(i)) == bytes(p.arena.block(i)) for i in range(8))
        else:
            assert not event.stale
        eventually(lambda: d.transport.num_refused_connections.get(KVRefusal.PROTOCOL, 0) > 0)
        d.transport.reserve(room("again"))
        assert isinstance(p.hand_over(room("again"), d.address), TransferSealed)


def test_a_recorded_connection_says_nothing_again(cluster: TestCluster) -> None:
    """Red if bytes of an earlier connection are worth anything on another."""
    with two(cluster) as (p, d):
        with between(d.address) as (address, seen):
            d.transport.reserve(room())
            assert isinstance(p.hand_over(room(), address), TransferSealed)
        d.arena.buffer[:] = bytes(len(d.arena.buffer))
        num_refused = sum(d.transport.num_refused_connections.values())  # a cut amid a handshake counts as one
        place = split_address(d.address)
        with socket.create_connection((place.host, place.port)) as sock:
            sock.settimeout(WAIT_S)
            try:
                sock.sendall(seen)
                while sock.recv(65536):
                    pass
            except ConnectionError:
                pass
        eventually(lambda: sum(d.transport.num_refused_connections.values()) > num_refused)
        assert not any(d.arena.buffer)


def test_strangers_get_nothing(cluster: TestCluster, tmp_path: Path) -> None:
    """Without a certificate, with one of another cluster, with the secret of a start, with plain frames."""
    stranger = TestCluster(tmp_path / "other")
    with two(cluster) as (p, d):
        d.transport.reserve(room())
        with closing(End(stranger.door("p"), P)) as other:
            event = other.hand_over(room(), d.address)
            assert isinstance(event, TransferFailed)
            assert "certificate" in event.reason
            assert split_address(d.address).host not in event.reason
        place = split_address(d.address)
        blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection((place.host, place.port)) as sock, pytest.raises(OSError):
            sock.settimeout(WAIT_S)
            with blind.wrap_socket(sock) as tls:
                assert tls.recv(100)  # in TLS 1.3 the refusal comes after the handshake
                raise OSError("it answered")
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"RLKV" + bytes(60), b"\x16\x03\x01\xff\xff" + bytes(99)):
            with socket.create_connection((place.host, place.port)) as sock:
                sock.settimeout(WAIT_S)
                sock.sendall(said)
                with suppress(ConnectionResetError):
                    assert sock.recv(100) == b""
        eventually(lambda: sum(d.transport.num_refused_connections.values()) >= 5)
        assert d.transport.num_refused_connections[KVRefusal.CERTIFICATE] >= 1
        assert not any(d.arena.buffer)
        assert isinstance(p.hand_over(room(), d.address), TransferSealed)
        with closing(Arena.create(LAYOUT, 16, shared=False)) as arena:
            local = TcpTransport(arena, secret=b"s" * 32, identity=P)
            with closing(local), pytest.raises(ProtocolError, match="of no cluster"):
                local._sender.connect(d.address, D)
            with pytest.raises(ProtocolError, match="shows no certificate"):
                p.transport._sender.connect(local.address(), P)


def test_a_node_is_written_to_by_name_and_not_by_address(cluster: TestCluster) -> None:
    """Red if another node of the same cluster, at the address of the one that was meant, is told a prompt's KV."""
    with two(cluster) as (p, d), closing(End(cluster.door("e"), D)) as e:
        e.transport.reserve(room())
        wrong = str(split_address(e.address)._replace(node="d"))
        event = p.hand_over(room(), wrong)
        assert isinstance(event, TransferFailed)
        assert "node e answers where node d was meant" in event.reason
        with pytest.raises(ProtocolError, match="a worker of node d does not receive at node e"):
            p.transport._sender.connect(e.address, D)
        assert not any(e.arena.buffer)
        assert not any(d.arena.buffer)


def test_one_that_is_revoked_is_sent_away_and_not_let_in_again(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red if a connection that was good once stays good."""
    monkeypatch.setattr(tcp_receiver, "CHECK_EVERY_S", 0.0)
    with closing(End(cluster.door("gone"), P)) as p, closing(End(cluster.door("d"), D)) as d:
        d.transport.reserve(room())
        assert isinstance(p.hand_over(room(), d.address), TransferSealed)
        cluster.revoke("gone", at="d")
        d.transport.reserve(room("second"))
        assert isinstance(p.hand_over(room("second"), d.address), TransferFailed)
        event = p.hand_over(room("third"), d.address)
        assert isinstance(event, TransferFailed)
        assert "expired or was revoked" in event.reason
        eventually(lambda: d.transport.num_refused_connections[KVRefusal.CERTIFICATE] >= 2)


def test_an_incarnation_that_begins_anew_ends_rights_and_connections(cluster: TestCluster) -> None:
    """Red if a writer of the former epoch reaches blocks of the new one, over an old connection or a new one."""
    with two(cluster) as (p, d):
        d.transport.reserve(room())
        assert isinstance(p.hand_over(room(), d.address), TransferSealed)
        d.arena.buffer[:] = bytes(len(d.arena.buffer))
        d.transport.take_epoch(D.epoch + 1)
        eventually(lambda: d.transport.num_connections[0] == 0)
        late = p.hand_over(room(), d.address)
        assert isinstance(late, TransferFailed)
        if not late.stale:  # it went over the connection that was just ended
            late = p.hand_over(room(), d.address)
            assert isinstance(late, TransferFailed)
        assert late.stale
        assert not any(d.arena.buffer)
        with pytest.raises(StaleTarget):
            p.transport._sender.connect(d.address, D)
        fresh = room(epoch=D.epoch + 1)
        d.transport.reserve(fresh)
        assert isinstance(p.hand_over(fresh, d.address), TransferSealed)
        p.transport.take_epoch(2)
        d.transport.reserve(fresh := replace(fresh, request_id=RequestId("next")))
        assert isinstance(p.hand_over(fresh, d.address), TransferSealed)


def test_a_busy_link_has_several_streams_and_a_seal_speaks_for_all(cluster: TestCluster) -> None:
    """Red if a seal overtakes writes of another stream: the decode would read blocks that have not come."""
    with two(cluster) as (p, d):
        p.transport.warm(d.address, D)
        for number in range(30):
            reservation = room(str(number), count=16)
            d.arena.buffer[:] = bytes(len(d.arena.buffer))
            d.transport.reserve(reservation)
            assert isinstance(p.hand_over(reservation, d.address), TransferSealed)
            assert [d.arena.block(i)[SIZE - 1] for i in range(16)] == list(range(16))
            d.transport.release(reservation)
        (link,) = p.transport._sender._links.values()
        assert 1 < link.num_streams <= 3


def test_an_idle_connection_says_that_it_is_there_and_is_replaced_when_it_is_not(cluster: TestCluster) -> None:
    """Red if the first handoff after a silent loss waits for a connection that no packet passes any more."""
    with two(cluster, heartbeat_s=0.05, silence_s=0.2) as (p, d):
        stalled = threading.Event()

        def stall(data: bytes, at: int) -> bytes:
            while stalled.is_set():
                time.sleep(0.01)
            return data

        with between(d.address, stall) as (address, seen):
            d.transport.reserve(room())
            assert isinstance(p.hand_over(room(), address), TransferSealed)
            (link,) = p.transport._sender._links.values()
            quiet = len(seen)
            eventually(lambda: len(seen) > quiet)  # a sign of life
            assert not link.is_lost
            stalled.set()
            eventually(lambda: link.is_lost)
            stalled.clear()
            d.transport.reserve(room("after"))
            assert isinstance(p.hand_over(room("after"), address), TransferSealed)


def test_what_a_lost_idle_connection_carried_is_sent_again_once(cluster: TestCluster) -> None:
    """Red if the network's forgetting a connection costs a request: nothing was answered, so nothing is lost.
    One stream: another that is opening could be the one that is forgotten."""
    forgotten = threading.Event()

    def drop(data: bytes, at: int) -> bytes:
        if forgotten.is_set():
            forgotten.clear()
            raise ConnectionResetError  # what was on its way is gone
        return data

    with two(cluster, num_streams=1, heartbeat_s=60.0) as (p, d), between(d.address, drop) as (address, _):
        d.transport.reserve(room())
        assert isinstance(p.hand_over(room(), address), TransferSealed)
        (link,) = p.transport._sender._links.values()
        forgotten.set()
        d.transport.reserve(room("after"))
        assert isinstance(p.hand_over(room("after"), address), TransferSealed)
        assert not forgotten.is_set()
        assert next(iter(p.transport._sender._links.values())) is not link


def test_a_probe_tells_what_the_way_carries(cluster: TestCluster) -> None:
    with two(cluster) as (_, d):
        door = cluster.door("p")
        found = probe_link(door, d.address, D)
        assert found.failure == ""
        assert found.rate > 0
        assert found.rate_back > 0
        assert found.round_trip_s > 0
        assert found.max_segment_bytes > 500
        assert found.is_encrypted
        assert "GB/s encrypted" in str(found)
        assert "not there any more" in probe_link(door, d.address, D._replace(epoch=1)).failure
        where = d.address
    assert "no connection to 127.0.0.1" in probe_link(door, where, D).failure
