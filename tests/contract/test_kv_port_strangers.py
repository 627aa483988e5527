"""Strangers at the KV port: whoever does not belong to this start of this server gets nothing and costs little."""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from transport_rigs import SECRET, WAIT_S, connected, make_layout, make_reservation, receive_frame

from relevo.core.errors import ProtocolError
from relevo.core.events import TransferFailed, TransferSealed
from relevo.core.ids import WorkerId, WorkerRef
from relevo.core.kv import KVRefusal
from relevo.kv.arena import Arena
from relevo.kv.transports import tcp_acceptor, tcp_receiver
from relevo.kv.transports import tcp_frames as frames
from relevo.kv.transports import tcp_handshake as handshakes
from relevo.kv.transports.tcp import TcpTransport
from relevo.kv.transports.tcp_address import split_address
from relevo.kv.transports.tcp_handshake import SenderHandshake, StaleTarget
from relevo.kv.transports.tcp_sender import TcpOptions

LAYOUT = make_layout(4096)
SIZE = LAYOUT.bytes_per_block
OWN = WorkerRef(WorkerId("d"), 2)
OTHER_SECRET = b"of another start of that server!"


@pytest.fixture
def arena() -> Iterator[Arena]:
    with closing(Arena.create(LAYOUT, 16, shared=False)) as arena:
        arena.buffer[:] = b"\x5e" * len(arena.buffer)  # what a victim's prompt left there
        yield arena


@pytest.fixture
def receiver(arena: Arena) -> Iterator[TcpTransport]:
    with closing(TcpTransport(arena, secret=SECRET, identity=OWN)) as receiver:
        yield receiver


def dial(receiver: TcpTransport) -> socket.socket:
    sock = socket.create_connection(split_address(receiver.address())[:2], WAIT_S)
    sock.settimeout(WAIT_S)
    return sock


def everything(sock: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    received = b""
    try:
        while data := sock.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def exactly(sock: socket.socket, num_bytes: int) -> bytes:
    return frames.receive_exactly(sock, num_bytes, time.monotonic() + WAIT_S)


def eventually(condition: Callable[[], bool]) -> None:
    never = threading.Event()
    for _ in range(10_000):
        if condition():
            return
        never.wait(0.001)
    raise AssertionError("it did not happen")


def still_serves(receiver: TcpTransport, arena: Arena) -> None:
    """A worker of this server hands a block over."""
    woken = threading.Event()
    reservation = make_reservation([7], name="after", epoch=OWN.epoch, generation=99)
    receiver.reserve(reservation)
    with (
        closing(Arena.create(LAYOUT, 16, shared=False)) as mine,
        closing(TcpTransport(mine, secret=SECRET, identity=WorkerRef(WorkerId("p"), 1), on_wake=woken.set)) as sender,
    ):
        mine.block(0)[:] = b"\x77" * SIZE
        sender.write(reservation, receiver.address(), 0, [0])
        sender.seal(reservation, receiver.address(), 4)
        while not (events := sender.poll()):
            assert woken.wait(WAIT_S)
            woken.clear()
        assert isinstance(events[0], TransferSealed)
    assert bytes(arena.block(7)) == b"\x77" * SIZE
    receiver.release(reservation)


def refused(receiver: TcpTransport, reason: KVRefusal) -> int:
    return receiver.num_refused_connections.get(reason, 0)


def plain_frame(frame: frames.AnyFrame, num_payload_bytes: int = 0) -> bytes:
    head = frames._encoder.encode(frame)
    return frames._PREFIX.pack(b"RLKV", frames.KV_PROTOCOL_VERSION, 0, len(head), num_payload_bytes) + head


def num_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


WRITE = frames.WriteBlocks(1, "r", OWN.epoch, 0, (3,), (0,))
GREETING = struct.Struct("<4sHH32s")


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + 40 * b" ", id="http"),
        pytest.param(GREETING.pack(b"RLKV", 1, 0, bytes(32)), id="former-version"),
        pytest.param(GREETING.pack(b"RLKV", 99, 0, bytes(32)), id="later-version"),
        pytest.param(b"\xff" * 40, id="garbage"),
        pytest.param(struct.pack("<4sHHIQ", b"RLKV", 1, 0, 2**32 - 1, 2**64 - 1) + bytes(20), id="huge-lengths"),
        pytest.param(plain_frame(frames.Connect(LAYOUT)), id="connect-without-handshake"),
        pytest.param(plain_frame(WRITE, SIZE) + SIZE * b"\x11", id="write-without-handshake"),
    ],
)
def test_nonsense_before_the_handshake_gets_no_block_and_changes_none(
    receiver: TcpTransport, arena: Arena, said: bytes
) -> None:
    """Red if a frame is looked at before its sender is known. What passes for an opening still needs the secret."""
    receiver.reserve(make_reservation([3], epoch=OWN.epoch))
    with dial(receiver) as sock:
        with suppress(OSError):  # it may be sent away before it has finished
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
        answer = everything(sock)
    assert len(answer) in (0, handshakes.CHALLENGE_BYTES)
    assert b"\x5e" * 16 not in answer
    eventually(lambda: sum(receiver.num_refused_connections.values()) == 1)
    assert bytes(arena.buffer) == b"\x5e" * len(arena.buffer)
    still_serves(receiver, arena)


@pytest.mark.parametrize("secret", [OTHER_SECRET, bytes(32), SECRET[:-1] + b"?"])
def test_a_wrong_secret_gets_nothing_but_a_challenge(receiver: TcpTransport, arena: Arena, secret: bytes) -> None:
    """Red if the secret of a former start still opens, or if a refusal says anything that a guess could be tried on."""
    handshake = SenderHandshake(secret, OWN, os.urandom(32))
    with dial(receiver) as sock:
        sock.sendall(handshake.opening)
        sock.sendall(handshake.proof(exactly(sock, handshakes.CHALLENGE_BYTES)))
        assert everything(sock) == b""
    assert refused(receiver, KVRefusal.SECRET) == 1
    still_serves(receiver, arena)


def test_a_recorded_handshake_cannot_be_replayed(receiver: TcpTransport, arena: Arena) -> None:
    """Red if the receiver's nonce is not part of the proof, or is used twice."""
    handshake = SenderHandshake(SECRET, OWN, os.urandom(32))
    with dial(receiver) as sock:
        sock.sendall(handshake.opening)
        proof = handshake.proof(exactly(sock, handshakes.CHALLENGE_BYTES))
        sock.sendall(proof)
        handshake.check(exactly(sock, handshakes.VERDICT_BYTES))
    with dial(receiver) as sock:
        sock.sendall(handshake.opening)
        exactly(sock, handshakes.CHALLENGE_BYTES)
        sock.sendall(proof)
        assert everything(sock) == b""
    assert refused(receiver, KVRefusal.SECRET) == 1


def test_a_challenge_cannot_be_reflected_to_its_maker(receiver: TcpTransport) -> None:
    """Red if both directions prove themselves in the same words: one connection would then answer for another."""
    with dial(receiver) as asked, dial(receiver) as answering:
        asked.sendall(GREETING.pack(b"RLKV", handshakes.KV_PROTOCOL_VERSION, 0, os.urandom(32)))
        challenge = exactly(asked, handshakes.CHALLENGE_BYTES)
        answering.sendall(challenge)  # "prove to me what you asked of me"
        reflected = exactly(answering, handshakes.CHALLENGE_BYTES)
        assert reflected != challenge
        asked.sendall(reflected[8:] + bytes(handshakes.PROOF_BYTES - 32))
        assert everything(asked) == b""
    own = handshakes.ReceiverHandshake(SECRET, OWN, bytes(32))
    own.challenge(SenderHandshake(SECRET, OWN, bytes(32)).opening)
    proof = SenderHandshake(SECRET, OWN, bytes(32)).proof(
        own.challenge(SenderHandshake(SECRET, OWN, bytes(32)).opening)
    )
    own.judge(proof)
    assert own.told(handshakes.Verdict.ACCEPTED)[1:] != proof[32:], "each role has its own proof"


def test_a_sender_tells_nothing_to_who_sits_at_a_workers_former_port(arena: Arena) -> None:
    """Red if a sender trusts an address: a stranger that took the port of a dead worker would be sent the prompt."""
    woken = threading.Event()
    reservation = make_reservation([1], epoch=OWN.epoch)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        address = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        with closing(TcpTransport(arena, secret=SECRET, identity=OWN, on_wake=woken.set)) as sender:
            sender.write(reservation, address, 0, [0])
            sock, _ = listener.accept()
            with sock:
                opening = exactly(sock, handshakes.OPENING_BYTES)
                sock.sendall(opening)
                proof = exactly(sock, handshakes.PROOF_BYTES)
                sock.sendall(b"\0" + proof[32:])  # the sender's own proof, as if it were the receiver's
                assert everything(sock) == b""
            assert woken.wait(WAIT_S)
            (event,) = sender.poll()
    assert isinstance(event, TransferFailed)
    assert not event.stale
    assert b"\x5e" * 16 not in opening + proof
    assert address not in event.reason, "clients are told the reason"


def test_who_passes_a_handshake_on_to_a_living_worker_is_not_written_to(receiver: TcpTransport) -> None:
    """Red if a proof does not name whom it is for: a stranger between could then be given a dead worker's blocks."""
    dead = SenderHandshake(SECRET, WorkerRef(WorkerId("dead"), 1), os.urandom(32))
    with dial(receiver) as sock:
        sock.sendall(dead.opening)
        sock.sendall(dead.proof(exactly(sock, handshakes.CHALLENGE_BYTES)))
        verdict = exactly(sock, handshakes.VERDICT_BYTES)
        with pytest.raises(StaleTarget):
            dead.check(verdict)
        with pytest.raises(ProtocolError, match="has not proved"):
            dead.check(b"\0" + verdict[1:])  # a verdict cannot be turned round on its way
        assert everything(sock) == b""
    assert refused(receiver, KVRefusal.INCARNATION) == 1
    assert receiver.num_refused_writes == 1


def test_a_sender_that_wants_a_former_incarnation_is_told_that_it_is_gone(receiver: TcpTransport) -> None:
    with pytest.raises(StaleTarget, match="epoch 1 is not there any more"):
        receiver._sender.connect(receiver.address(), WorkerRef(OWN.worker_id, OWN.epoch - 1))


def test_half_a_handshake_and_silence_ends_in_time(arena: Arena) -> None:
    """Red if a stranger may hold a place for ever."""
    options = TcpOptions(handshake_timeout_s=0.1)
    with (
        closing(TcpTransport(arena, secret=SECRET, identity=OWN, options=options)) as receiver,
        dial(receiver) as silent,
        dial(receiver) as halfway,
        dial(receiver) as trickling,
    ):
        halfway.sendall(SenderHandshake(SECRET, OWN, os.urandom(32)).opening)
        trickling.sendall(b"RLK")
        assert everything(silent) == everything(trickling) == b""
        assert len(everything(halfway)) in (0, handshakes.CHALLENGE_BYTES)  # 0: the time was over before it was heard
        assert refused(receiver, KVRefusal.TIMEOUT) == 3
        assert receiver.num_connections[1] == 0


def test_silent_strangers_delay_no_worker(arena: Arena) -> None:
    """Red if the acceptor waits for one while others come: these stay as long as the test."""
    options = TcpOptions(handshake_timeout_s=3600)
    with (
        closing(TcpTransport(arena, secret=SECRET, identity=OWN, options=options)) as receiver,
        dial(receiver),
        dial(receiver) as halfway,
    ):
        halfway.sendall(SenderHandshake(SECRET, OWN, os.urandom(32)).opening)
        exactly(halfway, handshakes.CHALLENGE_BYTES)
        still_serves(receiver, arena)
        assert receiver.num_connections[1] == 2


def test_two_thousand_connections_cost_no_thread_and_few_descriptors(receiver: TcpTransport, arena: Arena) -> None:
    """Red if a stranger gets a thread, or if strangers together can take all places of the workers."""
    num_threads = threading.active_count()
    most_descriptors = 0
    before = num_descriptors()
    with ExitStack() as held:
        for number in range(2000):
            sock = dial(receiver)
            if number % 40:  # some are closed, so that this process's own descriptors last
                sock.close()
            else:
                held.enter_context(sock)
            if number % 100 == 0:
                most_descriptors = max(most_descriptors, num_descriptors() - before - number // 40)
        assert threading.active_count() == num_threads
        still_serves(receiver, arena)
        eventually(lambda: sum(receiver.num_refused_connections.values()) >= 2000 - tcp_acceptor.MAX_STRANGERS)
        assert receiver.num_connections[1] <= tcp_acceptor.MAX_STRANGERS
    assert most_descriptors <= tcp_acceptor.MAX_STRANGERS + 60  # and those that are on their way through the backlog


def test_the_longest_there_makes_room_for_the_next(receiver: TcpTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if newcomers are sent away instead: then silent strangers would keep every worker out."""
    monkeypatch.setattr(tcp_acceptor, "MAX_STRANGERS", 3)
    with ExitStack() as held:
        silent = [held.enter_context(dial(receiver)) for _ in range(5)]
        assert everything(silent[0]) == everything(silent[1]) == b""
        assert refused(receiver, KVRefusal.LIMIT) == 2
        with connected(receiver, OWN):
            assert receiver.num_connections[0] == 1


def test_senders_that_have_proved_themselves_are_bounded_too(
    receiver: TcpTransport, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_receiver, "MAX_SENDERS", 2)
    with connected(receiver, OWN), connected(receiver, OWN):
        with pytest.raises(ProtocolError, match="no room"):
            receiver._sender.connect(receiver.address(), OWN)
        eventually(lambda: refused(receiver, KVRefusal.LIMIT) == 1)
    eventually(lambda: receiver.num_connections[0] == 0)
    still_serves(receiver, arena)


@pytest.mark.parametrize(
    "changes", [{"generations": (1,)}, {"epoch": 1}, {"request_id": "another"}, {"block_ids": (4,)}, {"first_index": 1}]
)
def test_the_handshake_is_no_right_to_a_block(receiver: TcpTransport, arena: Arena, changes: dict[str, object]) -> None:
    """Red if a worker of this server may write where it has no reservation."""
    receiver.reserve(make_reservation([3], epoch=OWN.epoch))
    with connected(receiver, OWN) as sock:
        fields = {name: getattr(WRITE, name) for name in WRITE.__struct_fields__} | changes
        frame = frames.WriteBlocks(**fields)
        sock.sendall(plain_frame(frame, SIZE) + SIZE * b"\x11")
        answer, _ = receive_frame(sock)
        assert isinstance(answer, frames.Refused)
    assert bytes(arena.buffer) == b"\x5e" * len(arena.buffer)
    assert receiver.num_refused_writes == 1


def test_no_frame_reads_a_block(receiver: TcpTransport, arena: Arena) -> None:
    """The protocol has no word for it. Red if one comes back without a right that it names."""
    kinds = frames.AnyFrame.__args__  # type: ignore[attr-defined]
    assert {kind.__name__ for kind in kinds if kind.has_payload} == {"WriteBlocks", "Probe", "Probed"}
    with connected(receiver, OWN) as sock:
        sock.sendall(
            struct.pack("<4sHHIQ", b"RLKV", frames.KV_PROTOCOL_VERSION, 0, 14, 0) + b"\x92\xaaReadBlocks\x91\x03"
        )
        assert everything(sock) == b""
    eventually(lambda: refused(receiver, KVRefusal.PROTOCOL) == 1)
    still_serves(receiver, arena)


def test_a_huge_head_is_refused_before_it_is_made_room_for(receiver: TcpTransport, arena: Arena) -> None:
    with connected(receiver, OWN) as sock:
        sock.sendall(struct.pack("<4sHHIQ", b"RLKV", frames.KV_PROTOCOL_VERSION, 0, 2**32 - 1, 0))
        assert everything(sock) == b""
    eventually(lambda: refused(receiver, KVRefusal.PROTOCOL) == 1)
    still_serves(receiver, arena)


def test_a_flood_of_strangers_is_one_log_line_and_a_count(
    receiver: TcpTransport, caplog: pytest.LogCaptureFixture
) -> None:
    """Red if strangers can write the log full, or if a line or an error tells the secret."""
    with caplog.at_level(logging.DEBUG, "relevo"):
        for _ in range(50):
            with dial(receiver) as sock:
                sock.sendall(b"\xff" * 40)
                everything(sock)
        eventually(lambda: refused(receiver, KVRefusal.PROTOCOL) == 50)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "does not speak version" in lines[0]
    assert SECRET.decode() not in lines[0]
    assert SECRET.hex() not in lines[0]


def test_a_secret_that_can_be_guessed_opens_no_port(arena: Arena) -> None:
    for secret in (b"", b"s", b"fifteen bytes!!"):
        with pytest.raises(ValueError, match="can be guessed"):
            TcpTransport(arena, secret=secret, identity=OWN)
