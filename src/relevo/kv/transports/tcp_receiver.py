"""Receiving half of the TCP transport: one blocking thread per stream of a sender stores blocks.

Bytes go from the socket straight into arena blocks, or are deciphered into them, in pieces that are here already and
with the grant's lock held; waiting for the network happens without it (tcp_channel). A write whose grant is closed, or
closes half-way, is read to nowhere and refused. Owns: the connections of senders that have proved themselves
(`tcp_acceptor` owns the others), their number, the count of refused writes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import zlib
from collections.abc import Callable

from relevo.core.errors import LayoutMismatch, ProtocolError
from relevo.core.ids import WorkerRef
from relevo.core.kv import KVRefusal
from relevo.kv.arena import Arena
from relevo.kv.grants import GrantTable
from relevo.kv.layout_check import check_layout
from relevo.kv.transports.tcp_acceptor import TcpAcceptor
from relevo.kv.transports.tcp_answered import AnsweredTickets, LinksOfSenders
from relevo.kv.transports.tcp_channel import Channel, open_channel
from relevo.kv.transports.tcp_credentials import Credentials
from relevo.kv.transports.tcp_frames import (
    Accepted,
    AnyFrame,
    Applied,
    Connect,
    Ping,
    Pong,
    Probe,
    Probed,
    Refused,
    Rejected,
    Seal,
    WriteBlocks,
    receive_frame,
    send_frame,
    skip_payload,
    tune,
)
from relevo.kv.transports.tcp_handshake import Session

MAX_SENDERS = 1024  # streams: of as many workers as a topology may have (policy.host.topology), and more of busy ones
CONNECT_TIMEOUT_S = 5.0  # arbitrary; from the handshake to the first frame
MAX_PROBE_BYTES = 64 * 1024 * 1024  # arbitrary; of one answer
CHECK_EVERY_S = 1.0  # arbitrary; how long one that was revoked goes on writing
_PROBE_PIECE = memoryview(bytes(64 * 1024))


class TcpReceiver:
    """Listens from construction to `close`."""

    def __init__(
        self,
        arena: Arena,
        grants: GrantTable,
        listener: socket.socket,
        credentials: Credentials,
        own: WorkerRef,
        handshake_timeout_s: float,
    ) -> None:
        self._arena = arena
        self._grants = grants
        self._credentials = credentials
        self._own = own
        self._links = LinksOfSenders()
        self._lock = threading.Lock()
        self._threads: dict[socket.socket, threading.Thread] = {}  # some have ended: `close` waits for those too
        self._closing = False
        self.num_refused_writes = 0
        self.acceptor = TcpAcceptor(
            listener,
            credentials,
            own,
            has_room=self._has_room,
            admit=self._admit,
            on_stale=self._count_refused,
            handshake_timeout_s=handshake_timeout_s,
        )

    @property
    def num_senders(self) -> int:
        with self._lock:
            return sum(thread.is_alive() for thread in self._threads.values())

    def take_epoch(self, epoch: int) -> None:
        """From here on senders have to want that incarnation; those of the former one are sent away, their threads end
        soon. What they still receive has no right any more."""
        with self._lock:
            self._own = self.acceptor.own = self._own._replace(epoch=epoch)
        self._end_all(time.monotonic())

    def close(self, timeout_s: float) -> None:
        """Stop listening, end every connection, wait for the threads until the time is up."""
        deadline_s = time.monotonic() + timeout_s
        self.acceptor.close(timeout_s)
        with self._lock:
            self._closing = True
        self._end_all(deadline_s)

    def _end_all(self, deadline_s: float) -> None:
        with self._lock:
            threads = dict(self._threads)
        for sock in threads:
            with contextlib.suppress(OSError):  # it may have ended by itself
                sock.shutdown(socket.SHUT_RDWR)
        self._links.end_all()
        for thread in threads.values():
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _has_room(self) -> bool:
        return self.num_senders < MAX_SENDERS

    def _admit(self, sock: socket.socket, session: Session, own: WorkerRef) -> None:
        with self._lock:
            if self._closing or own != self._own:
                sock.close()
                return
            self._threads = {each: thread for each, thread in self._threads.items() if thread.is_alive()}
            thread = threading.Thread(target=self._serve, args=(sock, session), name="kv-receive", daemon=True)
            self._threads[sock] = thread
            thread.start()

    def _serve(self, sock: socket.socket, session: Session) -> None:
        answered: AnsweredTickets | None = None
        try:
            tune(sock)
            channel = open_channel(sock, session)
            answered = self._agree(channel)
            if answered is not None:
                checked_s = time.monotonic()
                connection = _Connection(channel, self._arena, self._grants, answered, self._count_refused)
                while True:
                    frame, payload_bytes = receive_frame(channel)
                    if time.monotonic() - checked_s > CHECK_EVERY_S:
                        checked_s = time.monotonic()
                        if not self._is_still_admitted(session):
                            return
                    connection.answer(frame, payload_bytes)
        except ProtocolError as error:
            self.acceptor.refused(KVRefusal.PROTOCOL, f"a sender that had proved itself then failed: {error.message}")
        except OSError:
            pass  # it left, or this worker closes
        finally:
            if answered is not None:
                self._links.leave(answered)
            sock.close()

    def _is_still_admitted(self, session: Session) -> bool:
        try:
            self._credentials.check(session.peer)
        except ProtocolError as error:
            self.acceptor.refused(KVRefusal.CERTIFICATE, f"a sender was sent away: {error.message}")
            return False
        return True

    def _agree(self, channel: Channel) -> AnsweredTickets | None:
        """What was answered on the sender's link; None if its blocks do not fit. Probes come before or instead."""
        channel.sock.settimeout(CONNECT_TIMEOUT_S)
        try:
            frame, payload_bytes = receive_frame(channel)
            while isinstance(frame, Probe):
                answer_probe(channel, frame, payload_bytes)
                frame, payload_bytes = receive_frame(channel)
        except TimeoutError:
            self.acceptor.refused(KVRefusal.TIMEOUT, f"it sent no frame in {CONNECT_TIMEOUT_S:g} s")
            return None
        if not isinstance(frame, Connect):
            raise ProtocolError(f"a connection begins with Connect, not with {type(frame).__name__}")
        reason = None
        try:
            check_layout(self._arena.layout, frame.layout, "The sender")
        except LayoutMismatch as error:
            reason = error.message
        if reason is not None:
            self.acceptor.refused(KVRefusal.LAYOUT, reason)
        send_frame(channel, Accepted() if reason is None else Rejected(reason))
        channel.sock.settimeout(None)
        return self._links.join(frame.link_id) if reason is None else None

    def _count_refused(self) -> None:
        with self._lock:
            self.num_refused_writes += 1


class _Connection:
    """Answers the frames of one stream, in order."""

    def __init__(
        self,
        channel: Channel,
        arena: Arena,
        grants: GrantTable,
        answered: AnsweredTickets,
        count_refused: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._arena = arena
        self._grants = grants
        self._answered = answered
        self._count_refused = count_refused

    def answer(self, frame: AnyFrame, payload_bytes: int) -> None:
        match frame:
            case WriteBlocks():
                answer: Applied | Refused = self._write(frame, payload_bytes)
            case Seal():
                answer = self._seal(frame)
            case Ping():
                send_frame(self._channel, Pong())
                return
            case Probe():
                answer_probe(self._channel, frame, payload_bytes)
                return
            case _:
                raise ProtocolError(f"a sender may not send {type(frame).__name__}")
        self._answered.add(frame.ticket)
        send_frame(self._channel, answer)

    def _write(self, frame: WriteBlocks, payload_bytes: int) -> Applied | Refused:
        if payload_bytes != len(frame.block_ids) * self._arena.bytes_per_block:
            raise ProtocolError(f"{payload_bytes} bytes were announced for {len(frame.block_ids)} blocks")
        if frame.checksums and len(frame.checksums) != len(frame.block_ids):
            raise ProtocolError(f"{len(frame.checksums)} checksums were sent for {len(frame.block_ids)} blocks")
        grant = self._grants.find(frame.request_id, frame.epoch, frame.first_index, frame.block_ids, frame.generations)
        if grant is None:
            skip_payload(self._channel, payload_bytes)
        if grant is None or not self._channel.store(self._arena.spans(frame.block_ids), grant):
            self._count_refused()
            return Refused(frame.ticket, "the receiver has withdrawn the blocks", stale=True)
        for block_id, checksum in zip(frame.block_ids, frame.checksums, strict=False):
            if zlib.crc32(self._arena.block(block_id)) != checksum:
                self._count_refused()
                return Refused(frame.ticket, f"block {block_id} arrived with a wrong checksum", stale=False)
        return Applied(frame.ticket)

    def _seal(self, frame: Seal) -> Applied | Refused:
        if frame.after > frame.ticket:  # it would wait for what is sent after it
            raise ProtocolError(
                f"frame {frame.ticket} seals frames below {frame.after}, and can only seal earlier ones"
            )
        self._answered.wait_for_all_below(frame.after)
        grant = self._grants.find(frame.request_id, frame.epoch, frame.index, (frame.block_id,), (frame.generation,))
        if grant is None:
            return Refused(frame.ticket, "the receiver has withdrawn the blocks", stale=True)
        return Applied(frame.ticket)


def answer_probe(channel: Channel, frame: Probe, payload_bytes: int) -> None:
    if not 0 <= frame.num_answer_bytes <= MAX_PROBE_BYTES or payload_bytes > MAX_PROBE_BYTES:
        raise ProtocolError(f"a probe moves {MAX_PROBE_BYTES} bytes at most")
    skip_payload(channel, payload_bytes)
    send_frame(channel, Probed(), probe_payload(frame.num_answer_bytes))


def probe_payload(num_bytes: int) -> list[memoryview]:
    whole, rest = divmod(num_bytes, len(_PROBE_PIECE))
    return [_PROBE_PIECE] * whole + ([_PROBE_PIECE[:rest]] if rest else [])
