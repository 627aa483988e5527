"""Sending half of the TCP transport: one link per receiver, made at the first write to it.

A link has one thread that connects and sends, and one that reads answers; both sleep while there is nothing to do.
A write counts as in flight from the moment its frame is handed to the socket until the receiver has answered it or
the link is lost. At most `max_in_flight_bytes` of a link are in flight, so that `cancel` is quick.
Owns: queues, credit, the account of every transfer. Does not know grants.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from relevo.core.errors import ProtocolError
from relevo.core.ids import BlockId, WorkerRef
from relevo.core.kv import Reservation
from relevo.kv.arena import Arena
from relevo.kv.transfer import EventQueue, Transfer, TransferLedger, check_write
from relevo.kv.transports.tcp_acceptor import HANDSHAKE_TIMEOUT_S
from relevo.kv.transports.tcp_frames import (
    Accepted,
    Applied,
    Connect,
    Refused,
    Rejected,
    Seal,
    WriteBlocks,
    receive_exactly,
    receive_frame,
    send_frame,
    split_address,
    tune,
)
from relevo.kv.transports.tcp_handshake import (
    CHALLENGE_BYTES,
    NONCE_BYTES,
    VERDICT_BYTES,
    SenderHandshake,
    StaleTarget,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpOptions:
    checksum: bool = False  # send a crc32 with every block; the receiver refuses what does not match
    frame_bytes: int = 4 * 1024 * 1024  # blocks of one frame; at least one block
    max_in_flight_bytes: int = 32 * 1024 * 1024
    connect_timeout_s: float = 5.0
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S  # of a receiver for a stranger
    drain_timeout_s: float = 2.0  # cancel waits so long for answers, then cuts the link


@dataclass(slots=True, eq=False)
class _Job:
    """A run of blocks to write (`block_ids` not empty), or a seal."""

    transfer: Transfer
    first_index: int
    block_ids: tuple[BlockId, ...]
    num_bytes: int
    num_tokens: int = 0


class TcpSender:
    """Called from the step loop; answers come in on the links' threads. One lock around all state."""

    def __init__(self, arena: Arena, events: EventQueue, options: TcpOptions, secret: bytes) -> None:
        self.arena = arena
        self.events = events
        self.options = options
        self._secret = secret
        self.changed = threading.Condition()
        self.ledger = TransferLedger()
        self._links: dict[tuple[str, WorkerRef], _Link] = {}  # an address may be another worker's by now

    def write(
        self, reservation: Reservation, address: str, first_index: int, local_block_ids: Sequence[BlockId]
    ) -> None:
        check_write(reservation, first_index, local_block_ids, self.arena.layout.block_size)
        blocks_per_frame = max(1, self.options.frame_bytes // self.arena.bytes_per_block)
        with self.changed:
            transfer = self.ledger.open(reservation)
            for start in range(0, len(local_block_ids), blocks_per_frame):
                ids = tuple(local_block_ids[start : start + blocks_per_frame])
                num_bytes = len(ids) * self.arena.bytes_per_block
                self._queue(address, _Job(transfer, first_index + start, ids, num_bytes))

    def seal(self, reservation: Reservation, address: str, num_tokens: int) -> None:
        with self.changed:
            first_open = reservation.num_hit_tokens // self.arena.layout.block_size
            self._queue(address, _Job(self.ledger.open(reservation), first_open, (), 0, num_tokens))

    def has_failed(self, reservation: Reservation) -> bool:
        with self.changed:
            transfer = self.ledger.find(reservation)
            return transfer is not None and transfer.failed is not None

    def cancel(self, reservation: Reservation) -> None:
        with self.changed:
            transfer = self.ledger.forget(reservation)
            if transfer is not None:
                for link in self._links.values():
                    link.drop_queued(transfer)
                deadline_s = self.options.drain_timeout_s
                if not self.changed.wait_for(lambda: transfer.num_outstanding == 0, deadline_s):
                    for link in list(self._links.values()):
                        if link.carries(transfer):
                            link.lose("the receiver did not answer in time")
            self.events.drop(reservation)
        self.events.wake()

    def close(self, timeout_s: float) -> None:
        with self.changed:
            links = list(self._links.values())
            for link in links:
                link.lose("this worker is closing")
        deadline_s = time.monotonic() + timeout_s
        for link in links:
            link.join(deadline_s)

    def connect(self, address: str, target: WorkerRef) -> socket.socket:
        """A connection to that incarnation, proved from both sides. OSError or ProtocolError otherwise (StaleTarget if
        another incarnation is there)."""
        deadline_s = time.monotonic() + self.options.connect_timeout_s
        sock = socket.create_connection(split_address(address), self.options.connect_timeout_s)
        try:
            tune(sock)
            handshake = SenderHandshake(self._secret, target, secrets.token_bytes(NONCE_BYTES))
            sock.sendall(handshake.opening)
            sock.sendall(handshake.proof(receive_exactly(sock, CHALLENGE_BYTES, deadline_s)))
            handshake.check(receive_exactly(sock, VERDICT_BYTES, deadline_s))
            sock.settimeout(self.options.connect_timeout_s)
            send_frame(sock, Connect(self.arena.layout))
            answer, _ = receive_frame(sock)
            if isinstance(answer, Rejected):
                raise ProtocolError(answer.reason)
            if not isinstance(answer, Accepted):
                raise ProtocolError(f"Connect was answered with {type(answer).__name__}")
        except BaseException:
            sock.close()
            raise
        return sock

    def _queue(self, address: str, job: _Job) -> None:
        if job.transfer.failed is not None:
            return
        target = WorkerRef(job.transfer.reservation.worker_id, job.transfer.reservation.epoch)
        link = self._links.get((address, target))
        if link is None or link.is_lost:
            self._links = {place: link for place, link in self._links.items() if not link.is_lost}
            link = self._links[address, target] = _Link(self, address, target)
        job.transfer.begin(job.num_bytes, time.perf_counter())
        link.queued.append(job)
        self.changed.notify_all()


class _Link:
    """The connection to one incarnation. Everything but the socket calls happens under the sender's lock."""

    def __init__(self, sender: TcpSender, address: str, target: WorkerRef) -> None:
        self._sender = sender
        self._address = address
        self._target = target
        self._tickets = itertools.count()
        self._unanswered: dict[int, _Job] = {}
        self._in_flight_bytes = 0
        self._sock: socket.socket | None = None
        self.queued: deque[_Job] = deque()
        self.is_lost = False
        self._threads = [threading.Thread(target=self._send_loop, name="kv-send", daemon=True)]
        self._threads[0].start()

    def carries(self, transfer: Transfer) -> bool:
        return any(job.transfer is transfer for job in self._unanswered.values())

    def drop_queued(self, transfer: Transfer) -> None:
        kept: deque[_Job] = deque()
        for job in self.queued:
            if job.transfer is transfer:
                transfer.end(time.perf_counter())
            else:
                kept.append(job)
        self.queued = kept

    def lose(self, reason: str, *, stale: bool = False) -> None:
        """End the link and every transfer that has something queued or in flight on it. Idempotent; lock held.
        `stale`: the receiver has ended their rights."""
        if self.is_lost:
            return
        self.is_lost = True
        jobs = [*self._unanswered.values(), *self.queued]
        self._unanswered.clear()
        self.queued.clear()
        for job in jobs:
            job.transfer.fail(f"{self._target.worker_id}: {reason}", stale=stale)
            self._end(job)
        if self._sock is not None:
            with contextlib.suppress(OSError):  # the peer may have closed it already
                self._sock.shutdown(socket.SHUT_RDWR)
        self._sender.changed.notify_all()

    def join(self, deadline_s: float) -> None:
        for thread in list(self._threads):
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _send_loop(self) -> None:
        """Owns the socket: nothing else closes it, so that its number is never reused under a running call."""
        try:
            sock = self._connect()
            while sock is not None and (next_job := self._take()) is not None:
                self._send(sock, *next_job)
        except (OSError, ProtocolError) as error:
            self._lose_and_wake(str(error), stale=isinstance(error, StaleTarget))
        finally:
            if self._sock is not None:
                self._threads[-1].join()
                self._sock.close()

    def _connect(self) -> socket.socket | None:
        sock = self._sender.connect(self._address, self._target)
        sock.settimeout(None)
        with self._sender.changed:
            if self.is_lost:
                sock.close()
                return None
            self._sock = sock
            self._threads.append(threading.Thread(target=self._answer_loop, args=(sock,), name="kv-ack", daemon=True))
            self._threads[-1].start()
        return sock

    def _take(self) -> tuple[int, _Job] | None:
        """The next job, in flight from now on; None once the link is lost."""
        with self._sender.changed:
            self._sender.changed.wait_for(lambda: self.is_lost or (self.queued and self._has_credit()))
            if self.is_lost:
                return None
            job = self.queued.popleft()
            ticket = next(self._tickets)
            self._unanswered[ticket] = job
            self._in_flight_bytes += job.num_bytes
            return ticket, job

    def _has_credit(self) -> bool:
        ahead = self._in_flight_bytes
        return ahead == 0 or ahead + self.queued[0].num_bytes <= self._sender.options.max_in_flight_bytes

    def _send(self, sock: socket.socket, ticket: int, job: _Job) -> None:
        mine, first, last = job.transfer.reservation, job.first_index, job.first_index + len(job.block_ids)
        if not job.block_ids:
            seal = Seal(ticket, mine.request_id, mine.epoch, first, mine.block_ids[first], mine.generations[first])
            send_frame(sock, seal)
            return
        arena = self._sender.arena
        checksums: tuple[int, ...] = ()
        if self._sender.options.checksum:
            checksums = tuple(zlib.crc32(arena.block(b)) for b in job.block_ids)
        targets, generations = mine.block_ids[first:last], mine.generations[first:last]
        frame = WriteBlocks(ticket, mine.request_id, mine.epoch, first, targets, generations, checksums)
        send_frame(sock, frame, arena.spans(job.block_ids))

    def _answer_loop(self, sock: socket.socket) -> None:
        try:
            while True:
                answer, _ = receive_frame(sock)
                if not isinstance(answer, Applied | Refused):
                    raise ProtocolError(f"a receiver may not send {type(answer).__name__}")
                with self._sender.changed:
                    self._take_answer(answer)
                    self._sender.changed.notify_all()
                self._sender.events.wake()
        except (OSError, ProtocolError) as error:
            self._lose_and_wake(str(error))

    def _take_answer(self, answer: Applied | Refused) -> None:
        job = self._unanswered.pop(answer.ticket, None)
        if job is None:
            return
        self._in_flight_bytes -= job.num_bytes
        if isinstance(answer, Refused):
            job.transfer.fail(answer.reason, stale=answer.stale)
            self.drop_queued(job.transfer)
        self._end(job)

    def _end(self, job: _Job) -> None:
        """Close the account of a job, and report a seal or the end of a failed transfer, unless it was cancelled."""
        transfer = job.transfer
        transfer.end(time.perf_counter())
        if self._sender.ledger.find(transfer.reservation) is not transfer:
            return
        if transfer.failed is None and not job.block_ids:
            self._sender.events.add(transfer.sealed(job.num_tokens, time.perf_counter()))
        elif (failure := transfer.failure_to_report()) is not None:
            self._sender.events.add(failure)

    def _lose_and_wake(self, reason: str, *, stale: bool = False) -> None:
        with self._sender.changed:
            self.lose(reason, stale=stale)
        self._sender.events.wake()
