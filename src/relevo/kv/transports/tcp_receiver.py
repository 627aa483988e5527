"""Receiving half of the TCP transport: one blocking thread per connected sender stores blocks.

Bytes go from the socket straight into arena blocks, in pieces that the kernel already holds and with the grant's lock
held; waiting for the network happens without it. A write whose grant is closed, or closes half-way, is read to
scratch and refused. Owns: the connections of senders that have proved themselves (`tcp_acceptor` owns the others),
their number, the count of refused writes.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
import zlib
from collections.abc import Callable

from relevo.core.errors import LayoutMismatch, ProtocolError
from relevo.core.ids import WorkerRef
from relevo.core.kv import KVRefusal
from relevo.kv.arena import Arena
from relevo.kv.grants import Grant, GrantTable
from relevo.kv.layout_check import check_layout
from relevo.kv.transports.tcp_acceptor import TcpAcceptor
from relevo.kv.transports.tcp_frames import (
    MAX_IO_VECTORS,
    Accepted,
    AnyFrame,
    Applied,
    Connect,
    Refused,
    Rejected,
    Seal,
    WriteBlocks,
    advance,
    receive_frame,
    receive_into,
    send_frame,
    tune,
)

MAX_SENDERS = 512  # as many workers as a topology may have (policy.host.topology); each has a thread once it is there
CONNECT_TIMEOUT_S = 5.0  # arbitrary; from the handshake to the first frame
_SCRATCH_BYTES = 64 * 1024


class TcpReceiver:
    """Listens from construction to `close`."""

    def __init__(
        self,
        arena: Arena,
        grants: GrantTable,
        address: tuple[str, int],
        secret: bytes,
        own: WorkerRef,
        handshake_timeout_s: float,
    ) -> None:
        self._arena = arena
        self._grants = grants
        self._lock = threading.Lock()
        self._threads: dict[socket.socket, threading.Thread] = {}  # some have ended: `close` waits for those too
        self._closing = False
        self.num_refused_writes = 0
        self.acceptor = TcpAcceptor(
            address,
            secret,
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

    def close(self, timeout_s: float) -> None:
        """Stop listening, end every connection, wait for the threads until the time is up."""
        deadline_s = time.monotonic() + timeout_s
        self.acceptor.close(timeout_s)
        with self._lock:
            self._closing = True
            threads = dict(self._threads)
        for sock in threads:
            with contextlib.suppress(OSError):  # it may have ended by itself
                sock.shutdown(socket.SHUT_RDWR)
        for thread in threads.values():
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _has_room(self) -> bool:
        return self.num_senders < MAX_SENDERS

    def _admit(self, sock: socket.socket) -> None:
        with self._lock:
            if self._closing:
                sock.close()
                return
            self._threads = {each: thread for each, thread in self._threads.items() if thread.is_alive()}
            thread = threading.Thread(target=self._serve, args=(sock,), name="kv-receive", daemon=True)
            self._threads[sock] = thread
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            tune(sock)
            if self._agree(sock):
                connection = _Connection(sock, self._arena, self._grants, self._count_refused)
                while True:
                    connection.answer(*receive_frame(sock))
        except ProtocolError as error:
            self.acceptor.refused(KVRefusal.PROTOCOL, f"a sender that had proved itself then failed: {error.message}")
        except OSError:
            pass  # it left, or this worker closes
        finally:
            sock.close()

    def _agree(self, sock: socket.socket) -> bool:
        """Whether the sender's blocks fit."""
        sock.settimeout(CONNECT_TIMEOUT_S)
        try:
            frame, _ = receive_frame(sock)
        except TimeoutError:
            self.acceptor.refused(KVRefusal.TIMEOUT, f"it sent no frame in {CONNECT_TIMEOUT_S:g} s")
            return False
        if not isinstance(frame, Connect):
            raise ProtocolError(f"a connection begins with Connect, not with {type(frame).__name__}")
        reason = None
        try:
            check_layout(self._arena.layout, frame.layout, "The sender")
        except LayoutMismatch as error:
            reason = error.message
        if reason is not None:
            self.acceptor.refused(KVRefusal.LAYOUT, reason)
        send_frame(sock, Accepted() if reason is None else Rejected(reason))
        sock.settimeout(None)
        return reason is None

    def _count_refused(self) -> None:
        with self._lock:
            self.num_refused_writes += 1


class _Connection:
    """Answers the frames of one sender, in order."""

    def __init__(
        self, sock: socket.socket, arena: Arena, grants: GrantTable, count_refused: Callable[[], None]
    ) -> None:
        self._sock = sock
        self._arena = arena
        self._grants = grants
        self._count_refused = count_refused
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)

    def answer(self, frame: AnyFrame, payload_bytes: int) -> None:
        match frame:
            case WriteBlocks():
                send_frame(self._sock, self._write(frame, payload_bytes))
            case Seal():
                send_frame(self._sock, self._seal(frame))
            case _:
                raise ProtocolError(f"a sender may not send {type(frame).__name__}")

    def _write(self, frame: WriteBlocks, payload_bytes: int) -> Applied | Refused:
        if payload_bytes != len(frame.block_ids) * self._arena.bytes_per_block:
            raise ProtocolError(f"{payload_bytes} bytes were announced for {len(frame.block_ids)} blocks")
        grant = self._grants.find(frame.request_id, frame.epoch, frame.first_index, frame.block_ids, frame.generations)
        missing_bytes = payload_bytes if grant is None else self._store(grant, self._arena.spans(frame.block_ids))
        if grant is None or missing_bytes:
            self._drain(missing_bytes)
            self._count_refused()
            return Refused(frame.ticket, "the receiver has withdrawn the blocks", stale=True)
        for block_id, checksum in zip(frame.block_ids, frame.checksums, strict=False):
            if zlib.crc32(self._arena.block(block_id)) != checksum:
                self._count_refused()
                return Refused(frame.ticket, f"block {block_id} arrived with a wrong checksum", stale=False)
        return Applied(frame.ticket)

    def _store(self, grant: Grant, views: list[memoryview]) -> int:
        """Receive into the views while the grant is open. Returns how many bytes were not stored."""
        while views:
            with grant.lock:
                if not grant.is_open:
                    return sum(view.nbytes for view in views)
                try:
                    count = self._sock.recvmsg_into(views[:MAX_IO_VECTORS], 0, socket.MSG_DONTWAIT)[0]
                except BlockingIOError:
                    count = -1
            if count == 0:
                raise ConnectionError("the sender closed the connection inside a block")
            if count < 0:
                self._readable.poll()
            else:
                views = advance(views, count)
        return 0

    def _drain(self, num_bytes: int) -> None:
        while num_bytes:
            piece = self._scratch[: min(num_bytes, _SCRATCH_BYTES)]
            receive_into(self._sock, [piece])
            num_bytes -= piece.nbytes

    def _seal(self, frame: Seal) -> Applied | Refused:
        grant = self._grants.find(frame.request_id, frame.epoch, frame.index, (frame.block_id,), (frame.generation,))
        if grant is None:
            return Refused(frame.ticket, "the receiver has withdrawn the blocks", stale=True)
        return Applied(frame.ticket)
