"""What only the TCP transport can get wrong: bytes on a wire, half-sent frames, stalled and hostile peers."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from transport_rigs import SECRET, WAIT_S, connected, make_layout, make_reservation, receive_frame, send_frame

from relevo.core.errors import ProtocolError
from relevo.core.events import TransferFailed, TransferSealed, WritesEnded
from relevo.core.ids import WorkerId, WorkerRef
from relevo.core.kv import KVLayout, Reservation
from relevo.kv.arena import Arena
from relevo.kv.transports import tcp
from relevo.kv.transports import tcp_frames as frames
from relevo.kv.transports import tcp_handshake as handshakes
from relevo.kv.transports.tcp import TcpTransport
from relevo.kv.transports.tcp_address import split_address
from relevo.kv.transports.tcp_channel import PlainChannel
from relevo.kv.transports.tcp_sender import TcpOptions

LAYOUT = make_layout(64 * 1024)
SIZE = LAYOUT.bytes_per_block
OWN = WorkerRef(WorkerId("d"), 1)


@pytest.fixture
def arena() -> Iterator[Arena]:
    with closing(Arena.create(LAYOUT, 16, shared=False)) as arena:
        yield arena


@pytest.fixture
def receiver(arena: Arena) -> Iterator[TcpTransport]:
    with closing(transport(arena)) as receiver:
        yield receiver


def transport(arena: Arena, **more: Any) -> TcpTransport:
    return TcpTransport(arena, secret=SECRET, identity=OWN, **more)


def write_frame(reservation: Reservation, **changes: object) -> frames.WriteBlocks:
    fields = {
        "ticket": 7,
        "request_id": reservation.request_id,
        "epoch": reservation.epoch,
        "first_index": 0,
        "block_ids": reservation.block_ids,
        "generations": reservation.generations,
    }
    return frames.WriteBlocks(**(fields | changes))  # type: ignore[arg-type]


def frame_bytes(frame: frames.AnyFrame, num_payload_bytes: int) -> bytes:
    head = frames._encoder.encode(frame)
    return frames._PREFIX.pack(b"RLKV", frames.KV_PROTOCOL_VERSION, 0, len(head), num_payload_bytes) + head


NESTED = frames._PREFIX.pack(b"RLKV", frames.KV_PROTOCOL_VERSION, 0, 10_010, 0) + (
    b"\x93\xa7Applied\x01" + b"\x91" * 9_999 + b"\xc0"
)  # a field nobody asked for, nested without end


def eventually(condition: Callable[[], bool]) -> None:
    never = threading.Event()
    for _ in range(10_000):
        if condition():
            return
        never.wait(0.001)
    raise AssertionError("it did not happen")


def test_release_in_the_middle_of_a_write_ends_it_at_once(receiver: TcpTransport, arena: Arena) -> None:
    """Red if the rest of a block that has begun to arrive is stored after release, or if release waits for it."""
    reservation = make_reservation([3, 4])
    receiver.reserve(reservation)
    with connected(receiver, OWN) as sock:
        sock.sendall(frame_bytes(write_frame(reservation), 2 * SIZE) + b"\x11" * (SIZE + SIZE // 2))
        eventually(lambda: arena.block(4)[SIZE // 2 - 1] == 0x11)
        receiver.release(reservation)  # the sender has stopped in mid-block
        arena.block(3)[:] = arena.block(4)[:] = b"\xee" * SIZE  # the new owner
        sock.sendall(b"\x11" * (SIZE // 2))
        answer, _ = receive_frame(sock)
        assert answer == frames.Refused(7, "the receiver has withdrawn the blocks", stale=True)
        assert bytes(arena.block(3)) == bytes(arena.block(4)) == b"\xee" * SIZE
        assert receiver.num_refused_writes == 1
        again = make_reservation([5], generation=8)  # the connection is still good
        receiver.reserve(again)
        sock.sendall(frame_bytes(write_frame(again), SIZE) + b"\x22" * SIZE)
        assert receive_frame(sock)[0] == frames.Applied(7)


@pytest.mark.parametrize(
    "changes",
    [{"first_index": 1}, {"block_ids": (3, 3)}, {"block_ids": (4, 3)}, {"block_ids": (3, 999)}, {"block_ids": (-1, 3)}],
)
def test_blocks_other_than_the_reserved_ones_are_refused(
    receiver: TcpTransport, arena: Arena, changes: dict[str, object]
) -> None:
    reservation = make_reservation([3, 4])
    receiver.reserve(reservation)
    with connected(receiver, OWN) as sock:
        sock.sendall(frame_bytes(write_frame(reservation, **changes), 2 * SIZE) + b"\x11" * 2 * SIZE)
        answer, _ = receive_frame(sock)
        assert isinstance(answer, frames.Refused)
    assert not any(arena.buffer)


def test_a_damaged_block_is_refused(receiver: TcpTransport) -> None:
    reservation = make_reservation([3])
    receiver.reserve(reservation)
    content = b"\x33" * SIZE
    with connected(receiver, OWN) as sock:
        for checksum, want in ((zlib.crc32(content), frames.Applied), (zlib.crc32(content) ^ 1, frames.Refused)):
            sock.sendall(frame_bytes(write_frame(reservation, checksums=(checksum,)), SIZE) + content)
            answer, _ = receive_frame(sock)
            assert isinstance(answer, want)
    assert receiver.num_refused_writes == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack("<4sHHIQ", b"RLKV", 99, 0, 1, 0) + b"\xc0",
        struct.pack("<4sHHIQ", b"RLKV", frames.KV_PROTOCOL_VERSION, 0, frames.MAX_HEAD_BYTES + 1, 0),
        struct.pack("<4sHHIQ", b"RLKV", frames.KV_PROTOCOL_VERSION, 0, 1, 0) + b"\xc1",
        frame_bytes(frames.Applied(1), 0),
        frame_bytes(frames.Seal(1, "r", 1, 0, 3, 0), 5),
        frame_bytes(write_frame(make_reservation([3])), SIZE + 1),
        frame_bytes(write_frame(make_reservation([3]), checksums=(1, 2)), SIZE),
        frame_bytes(frames.Seal(1, "r", 1, 0, 3, 0, after=2), 0),
        frame_bytes(frames.Seal(1, "r", 1, 0, 3, 0, after=2**63), 0),
    ],
)
def test_nonsense_ends_the_connection_and_nothing_else(receiver: TcpTransport, nonsense: bytes) -> None:
    with connected(receiver, OWN) as sock:
        sock.sendall(nonsense)
        with pytest.raises(ConnectionError):
            receive_frame(sock)
    with connected(receiver, OWN):
        pass


def test_a_connection_that_cannot_be_accepted_is_not_the_last(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if a moment without a free descriptor is the end of all handoffs to this worker."""
    accept, failures = socket.socket.accept, iter([errno.EMFILE, errno.EHOSTUNREACH])

    def failing_accept(sock: socket.socket) -> object:
        code = next(failures, None)
        if code is not None:
            raise OSError(code, os.strerror(code))
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", failing_accept)
    with closing(transport(arena)) as receiver, connected(receiver, OWN):
        assert next(failures, None) is None


def test_a_broken_address_is_named() -> None:
    for wrong in ("tcp:host", "unix:/x", "tcp:host:http"):
        with pytest.raises(ProtocolError, match="is not the address"):
            split_address(wrong)


def welcome(sock: socket.socket, layout: KVLayout = LAYOUT) -> None:
    """What a receiver does until a sender's Connect has come."""
    handshake = handshakes.ReceiverHandshake(SECRET, OWN, os.urandom(handshakes.NONCE_BYTES))
    deadline_s = time.monotonic() + WAIT_S
    sock.sendall(handshake.challenge(frames.receive_exactly(sock, handshakes.OPENING_BYTES, deadline_s)))
    verdict = handshake.judge(frames.receive_exactly(sock, handshakes.PROOF_BYTES, deadline_s))
    sock.sendall(handshake.told(verdict))
    sock.settimeout(WAIT_S)
    connect, _ = receive_frame(sock)
    assert isinstance(connect, frames.Connect)
    assert connect.layout == layout


_HELD: dict[str, list[socket.socket]] = {}


def held_by(address: str) -> list[socket.socket]:
    """Connections of a mute receiver: the test may speak for it."""
    return _HELD[address]


@contextmanager
def mute_receiver(layout: KVLayout = LAYOUT) -> Iterator[str]:
    """Accepts a connection and greets; then reads nothing and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        held = _HELD[address] = []

        def greet() -> None:
            sock, _ = listener.accept()
            welcome(sock, layout)
            send_frame(sock, frames.Accepted())
            held.append(sock)

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        yield address
        thread.join(WAIT_S)
        for sock in _HELD.pop(address):
            sock.close()


def test_a_mute_receiver_is_given_up_after_cancel_and_not_waited_for(arena: Arena) -> None:
    """Red if cancel waits for an answer: the step loop, and every stream of the worker, would stand still with it. Or
    if a receiver that never answers keeps a gateway from hearing that the worker has let go."""
    woken = threading.Event()
    options = TcpOptions(drain_timeout_s=0.05, max_in_flight_bytes=4 * SIZE, frame_bytes=SIZE)
    cancelled, other = make_reservation(list(range(10))), make_reservation([11], name="other")
    with mute_receiver() as address, closing(transport(arena, options=options, on_wake=woken.set)) as sender:
        sender.write(cancelled, address, 0, list(range(10)))
        sender.write(other, address, 0, [11])
        link = sender._sender._links[address, OWN]
        eventually(lambda: bool(link._unanswered))
        was_quiet = sender.cancel(cancelled)  # if it has been silent for so long already
        eventually(lambda: link.is_lost)
        assert woken.wait(WAIT_S)
        eventually(lambda: sender._sender._watcher is None)
        failed = TransferFailed(other, "d: the receiver did not answer in time", stale=False)
        wanted = {failed} if was_quiet else {failed, WritesEnded(cancelled)}
        assert set(sender.poll()) == wanted


def test_what_was_sent_of_a_cancelled_transfer_is_what_was_meant(arena: Arena) -> None:
    """Red if cancel waits, if a frame that is half sent goes on from blocks that are others' by now, or if the worker
    is said to have let go while something is under way."""
    woken = threading.Event()
    layout = make_layout(16 * 1024 * 1024)  # more than sockets hold, so that the frame is half sent
    size = layout.bytes_per_block
    options = TcpOptions(drain_timeout_s=10 * WAIT_S)
    reservation, other = make_reservation([3, 4]), make_reservation([5], name="other")
    with (
        mute_receiver(layout) as address,
        closing(Arena.create(layout, 2, shared=False)) as large,
        closing(transport(large, options=options, on_wake=woken.set)) as sender,
    ):
        large.buffer[:] = b"\x40" * len(large.buffer)
        sender.write(reservation, address, 0, [0, 1])
        link = sender._sender._links[address, OWN]
        eventually(lambda: bool(link._streams) and link._streams[0].lent is not None)
        _, lent = link._streams[0].lent  # type: ignore[misc]
        eventually(lambda: 0 < sum(view.nbytes for view in lent.rest) < size)
        assert not sender.cancel(reservation)
        assert not sender.cancel(reservation), "it is under way still"
        assert not link.is_lost
        assert sender.poll() == []
        large.buffer[:] = b"\xff" * len(large.buffer)  # another request's
        (receiver,) = held_by(address)
        frame, num_bytes = receive_frame(receiver)
        assert isinstance(frame, frames.WriteBlocks)
        got = bytearray(num_bytes)
        PlainChannel(receiver).receive_into([memoryview(got)])
        assert got == b"\x40" * size
        assert sender.poll() == []
        send_frame(receiver, frames.Applied(frame.ticket))
        assert woken.wait(WAIT_S)
        assert sender.poll() == [WritesEnded(reservation)]
        assert sender.cancel(reservation)
        sender.write(other, address, 0, [0])
        frame, _ = receive_frame(receiver)
        assert isinstance(frame, frames.WriteBlocks)
        assert frame.request_id == other.request_id, "what was only queued was sent"


def test_a_link_that_has_been_silent_is_lost_with_the_cancel(arena: Arena) -> None:
    """Red if the requests of a box that is cut off wait, each in turn, until its silence has been noticed again."""
    options = TcpOptions(drain_timeout_s=0.0, frame_bytes=SIZE)
    reservation = make_reservation([0])
    with mute_receiver() as address, closing(transport(arena, options=options)) as sender:
        sender.write(reservation, address, 0, [0])
        link = sender._sender._links[address, OWN]
        eventually(lambda: bool(link._unanswered))
        assert sender.cancel(reservation)
        assert link.is_lost
        assert sender.poll() == []


def test_what_was_cancelled_is_not_sent_again_over_a_fresh_connection(arena: Arena) -> None:
    """Red if a connection that the network forgot is replaced, and blocks that are others' by now go out over it."""
    options = TcpOptions(drain_timeout_s=10 * WAIT_S, frame_bytes=SIZE, connect_timeout_s=10 * WAIT_S)
    woken = threading.Event()
    first, cancelled, other = (make_reservation([each], name=str(each)) for each in range(3))
    with closing(transport(arena, options=options, on_wake=woken.set)) as sender, mute_receiver() as address:
        sender.write(first, address, 0, [0])
        eventually(lambda: bool(held_by(address)))
        (receiver,) = held_by(address)
        frame, num_bytes = receive_frame(receiver)
        frames.skip_payload(PlainChannel(receiver), num_bytes)
        assert isinstance(frame, frames.WriteBlocks)
        send_frame(receiver, frames.Applied(frame.ticket))
        link = sender._sender._links[address, OWN]
        eventually(lambda: not link._unanswered)
        sender.write(cancelled, address, 0, [1])
        sender.write(other, address, 0, [2])
        transfer = sender._sender.ledger.find(cancelled)
        assert transfer is not None
        eventually(lambda: link.carries(transfer))
        assert not sender.cancel(cancelled)
        receiver.shutdown(socket.SHUT_RDWR)
        eventually(lambda: sender._sender._links.get((address, OWN)) not in (link, None))
        fresh = sender._sender._links[address, OWN]
        with sender._sender.changed:
            left = [*fresh._unanswered.values(), *fresh.queued]
        assert [job.transfer.reservation for job in left] == [other]
        assert woken.wait(WAIT_S)
        assert WritesEnded(cancelled) in sender.poll()


def test_another_epoch_waits_for_no_connection(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if a worker that rejoins stands still while a thread of it connects to a box that is cut off."""
    monkeypatch.setattr(tcp, "CLOSE_TIMEOUT_S", 10 * WAIT_S)
    connecting, may_end = threading.Event(), threading.Event()

    def connect(*_: object) -> None:
        connecting.set()
        may_end.wait(20 * WAIT_S)
        raise TimeoutError

    with closing(transport(arena)) as sender:
        monkeypatch.setattr(sender._sender, "connect", connect)
        sender.warm("tcp:127.0.0.1:1", OWN)
        assert connecting.wait(WAIT_S)
        beginning = threading.Thread(target=sender.take_epoch, args=(2,))
        beginning.start()
        beginning.join(WAIT_S)
        is_waiting = beginning.is_alive()
        may_end.set()
        assert not is_waiting


@pytest.mark.parametrize("num_greetings", [0, 1])
def test_a_receiver_that_answers_nonsense_is_given_up(arena: Arena, num_greetings: int) -> None:
    """Red if a thread of the link ends without a word: nothing would ever go to that address again."""
    woken = threading.Event()
    reservation = make_reservation([0])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        address = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        with closing(transport(arena, on_wake=woken.set)) as sender:
            sender.write(reservation, address, 0, [0])
            sock, _ = listener.accept()
            with sock:
                welcome(sock)
                for _ in range(num_greetings):
                    send_frame(sock, frames.Accepted())
                sock.sendall(NESTED)
                assert woken.wait(WAIT_S)
            (event,) = sender.poll()
            assert isinstance(event, TransferFailed)
            sender.cancel(reservation)
            sender.write(reservation, address, 0, [0])
            listener.accept()[0].close()


def test_credit_bounds_what_is_in_flight(arena: Arena) -> None:
    """Red if a receiver that does not answer is sent more than its credit."""
    options = TcpOptions(drain_timeout_s=0.05, max_in_flight_bytes=2 * SIZE, frame_bytes=SIZE)
    with mute_receiver() as address, closing(transport(arena, options=options)) as sender:
        sender.write(make_reservation(list(range(10))), address, 0, list(range(10)))
        link = sender._sender._links[address, OWN]
        eventually(lambda: len(link._unanswered) == 2)
        assert link._in_flight_bytes == 2 * SIZE
        assert len(link.queued) == 8


def test_cancelling_what_is_only_queued_costs_nobody_anything(arena: Arena) -> None:
    """Red if cancel cuts a link, or waits, for writes that were never sent."""
    options = TcpOptions(max_in_flight_bytes=SIZE, frame_bytes=SIZE, drain_timeout_s=10 * WAIT_S)
    running, waiting = make_reservation([0]), make_reservation([1, 2], name="waiting")
    with mute_receiver() as address, closing(transport(arena, options=options)) as sender:
        sender.write(running, address, 0, [0])
        link = sender._sender._links[address, OWN]
        eventually(lambda: bool(link._unanswered))
        sender.write(waiting, address, 0, [1, 2])
        sender.seal(waiting, address, 8)
        sender.cancel(waiting)
        assert not link.queued
        assert not link.is_lost


def test_a_failure_is_reported_when_nothing_of_the_transfer_is_in_flight(arena: Arena) -> None:
    """Red if the sender hears of the refusal, and reuses its blocks, while a later frame is still being sent."""
    options = TcpOptions(frame_bytes=SIZE)
    reservation = make_reservation([0, 1])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        with closing(transport(arena, options=options)) as sender:
            sender.write(reservation, address, 0, [0, 1])
            sock, _ = listener.accept()
            with sock:
                welcome(sock)
                send_frame(sock, frames.Accepted())
                link = sender._sender._links[address, OWN]
                eventually(lambda: len(link._unanswered) == 2)
                send_frame(sock, frames.Refused(0, "why", stale=True))
                eventually(lambda: len(link._unanswered) == 1)
                with sender._sender.changed:
                    assert sender.poll() == []
                send_frame(sock, frames.Applied(1))
                eventually(lambda: not link._unanswered)
                with sender._sender.changed:
                    assert sender.poll() == [TransferFailed(reservation, "why", stale=True)]


def test_one_refusal_is_reported_once(receiver: TcpTransport, arena: Arena) -> None:
    """Red if every refused frame is an event, or if a cancelled transfer cannot be tried again."""
    woken = threading.Event()
    options = TcpOptions(frame_bytes=SIZE)
    with (
        closing(Arena.create(LAYOUT, 16, shared=False)) as mine,
        closing(transport(mine, options=options, on_wake=woken.set)) as sender,
    ):
        stale = make_reservation(list(range(12)))
        for _ in range(2):
            sender.write(stale, receiver.address(), 0, list(range(12)))
            sender.seal(stale, receiver.address(), 48)
        events: list[object] = []
        while not events:
            assert woken.wait(WAIT_S)
            woken.clear()
            events += sender.poll()
        transfer = sender._sender.ledger.find(stale)
        assert transfer is not None
        assert transfer.num_outstanding == 0
        assert len(events) == 1
        sender.cancel(stale)
        receiver.reserve(stale)  # the same right, granted after all
        sender.write(stale, receiver.address(), 0, list(range(12)))
        sender.seal(stale, receiver.address(), 48)
        while not (events := list(sender.poll())):
            assert woken.wait(WAIT_S)
            woken.clear()
        assert isinstance(events[0], TransferSealed)
        assert events[0].num_bytes == 12 * SIZE


def test_close_leaves_no_thread(arena: Arena) -> None:
    before = set(threading.enumerate())
    receiver, sender = transport(arena), transport(arena)
    reservation = make_reservation([1])
    receiver.reserve(reservation)
    sender.write(reservation, receiver.address(), 0, [2])
    sender.close()
    receiver.close()
    receiver.close()  # idempotent
    assert set(threading.enumerate()) <= before
