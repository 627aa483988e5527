"""Sending half of the TCP transport: one link per receiver, made at the first write to it.

A write counts as under way from the moment its frame is handed to the socket until the receiver has answered it or the
link is lost. So much of a link is under way as it moves in a quarter of a second, so that what was cancelled ends soon.
No call waits for a receiver: the step loop makes them, and all its streams would stand still with it. What `cancel`
leaves under way is watched by a thread of its own, and a link that stays silent then is lost.
Owns: the links, the account of every transfer. Does not know grants.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relevo.core.cut import LocalBlock
from relevo.core.errors import ProtocolError
from relevo.core.events import WritesEnded
from relevo.core.ids import WorkerRef
from relevo.core.kv import Reservation
from relevo.kv.arena import Arena
from relevo.kv.transfer import EventQueue, Transfer, TransferLedger, check_write
from relevo.kv.transports import tcp_address
from relevo.kv.transports.tcp_acceptor import HANDSHAKE_TIMEOUT_S
from relevo.kv.transports.tcp_address import split_address
from relevo.kv.transports.tcp_channel import Channel, open_channel
from relevo.kv.transports.tcp_credentials import Credentials
from relevo.kv.transports.tcp_frames import (
    Accepted,
    Connect,
    Rejected,
    receive_exactly,
    receive_frame,
    send_frame,
    tune,
)
from relevo.kv.transports.tcp_handshake import SenderSide, Session
from relevo.kv.transports.tcp_link import Job, Link


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpOptions:
    checksum: bool = False  # send a crc32 with every block; the receiver refuses what does not match
    frame_bytes: int = 4 * 1024 * 1024  # blocks of one frame at most; at least one block
    max_in_flight_bytes: int = 32 * 1024 * 1024
    num_streams: int = 1  # connections of one link at most
    connect_timeout_s: float = 5.0
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S  # of a receiver for a stranger
    drain_timeout_s: float = 2.0  # a link so long silent, with something cancelled under way, is lost
    heartbeat_s: float = 0.0  # a stream that has been idle so long asks for a sign of life; 0: none does
    silence_s: float = 3.0  # and is given up so long after it asked


class TcpSender:
    """Called from the step loop; answers come in on the links' threads. One lock around all state."""

    def __init__(self, arena: Arena, events: EventQueue, options: TcpOptions, credentials: Credentials) -> None:
        self.arena = arena
        self.events = events
        self.options = options
        self.credentials = credentials
        self.changed = threading.Condition()
        self.ledger = TransferLedger()
        self._links: dict[tuple[str, WorkerRef], Link] = {}  # an address may be another worker's by now
        self._leaving: list[Transfer] = []  # cancelled, and still under way
        self._watcher: threading.Thread | None = None  # of those
        self._ending: list[Link] = []  # left, their threads may still run

    def write(
        self, reservation: Reservation, address: str, first_index: int, local_blocks: Sequence[LocalBlock]
    ) -> None:
        layout = self.arena.layout
        check_write(reservation, first_index, local_blocks, layout.block_size)
        block_bytes = layout.bytes_of_blocks(reservation.block_size)
        with self.changed:
            transfer = self.ledger.open(reservation)
            if transfer.failed is not None or not local_blocks:
                return
            link = self._link_to(address, reservation.worker)
            blocks_per_frame = max(1, link.pace.frame_bytes // block_bytes)
            for start in range(0, len(local_blocks), blocks_per_frame):
                blocks = tuple(local_blocks[start : start + blocks_per_frame])
                self._queue(link, Job(transfer, first_index + start, blocks, len(blocks) * block_bytes))

    def seal(self, reservation: Reservation, address: str, num_tokens: int) -> None:
        with self.changed:
            transfer = self.ledger.open(reservation)
            if transfer.failed is None:
                seal = Job(transfer, reservation.num_hit_blocks, (), 0, num_tokens)
                self._queue(self._link_to(address, reservation.worker), seal)

    def has_failed(self, reservation: Reservation) -> bool:
        with self.changed:
            transfer = self.ledger.find(reservation)
            return transfer is not None and transfer.failed is not None

    def cancel(self, reservation: Reservation) -> bool:
        """What was sent goes on to its receiver, from copies. False: something was, and `left` follows."""
        with self.changed:
            transfer = self.ledger.forget(reservation)
            if transfer is not None:
                for link in list(self._links.values()):
                    link.drop(transfer)
                self._lose_silent([transfer])
                if transfer.num_outstanding:
                    self._leaving.append(transfer)
                    if self._watcher is None:
                        self._watcher = threading.Thread(target=self._watch_leaving, name="kv-leave", daemon=True)
                        self._watcher.start()
            self.events.drop(reservation)
            is_quiet = all(each.reservation != reservation for each in self._leaving)
        self.events.wake()
        return is_quiet

    def left(self, transfer: Transfer) -> None:
        """Something of a cancelled transfer has ended; lock held."""
        if transfer.num_outstanding or transfer not in self._leaving:
            return
        self._leaving.remove(transfer)
        if all(each.reservation != transfer.reservation for each in self._leaving):
            self.events.add(WritesEnded(transfer.reservation))

    def _lose_silent(self, leaving: Sequence[Transfer]) -> float | None:
        """Lose links that carry something cancelled and have been silent for too long; lock held. Returns when to look
        again, of `time.monotonic()`; None: nothing of it is under way."""
        again_s: float | None = None
        for link in list(self._links.values()):
            if any(link.carries(transfer) for transfer in leaving):
                now_s, silent_s = time.monotonic(), link.heard_s + self.options.drain_timeout_s
                if silent_s <= now_s:
                    link.lose("the receiver did not answer in time")
                silent_s = max(silent_s, now_s)
                again_s = silent_s if again_s is None else min(again_s, silent_s)
        return again_s

    def _watch_leaving(self) -> None:
        while True:
            with self.changed:
                again_s = self._lose_silent(self._leaving)
                if again_s is None:
                    self._watcher = None
                    return
                self.changed.wait(max(0.0, again_s - time.monotonic()))
            self.events.wake()

    def warm(self, address: str, target: WorkerRef) -> None:
        """Connect now, so that the first write does not wait for it. Returns at once; what fails is found out then."""
        with self.changed:
            self._link_to(address, target)

    def leave_all(self, reason: str) -> None:
        """Every link ends, and with it every transfer. Their threads end soon after."""
        with self.changed:
            self._ending = [link for link in self._ending if link.is_running]
            self._ending += self._links.values()
            for link in self._links.values():
                link.lose(reason)
            self._links = {}
        self.events.wake()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads of links that were left."""
        deadline_s = time.monotonic() + timeout_s
        with self.changed:
            links, watcher = list(self._ending), self._watcher
        for link in links:
            link.join(deadline_s)
        if watcher is not None:
            watcher.join(max(0.0, deadline_s - time.monotonic()))

    def connect(self, address: str, target: WorkerRef, link_id: bytes = b"") -> tuple[Channel, Any]:
        """(a connection to that incarnation, proved from both sides; who is there). OSError or ProtocolError otherwise
        (StaleTarget if another incarnation is there)."""
        sock, session = open_session(self.credentials, address, target, self.options.connect_timeout_s)
        try:
            channel = open_channel(sock, session)
            send_frame(channel, Connect(self.arena.layout, link_id))
            answer, _ = receive_frame(channel)
            if isinstance(answer, Rejected):
                raise ProtocolError(answer.reason)
            if not isinstance(answer, Accepted):
                raise ProtocolError(f"Connect was answered with {type(answer).__name__}")
        except BaseException:
            sock.close()
            raise
        return channel, session.peer

    def requeue(self, address: str, target: WorkerRef, jobs: list[Job]) -> None:
        """Over a fresh connection; lock held."""
        link = self._link_to(address, target)
        link.queued.extend(jobs)
        self.changed.notify_all()

    def _link_to(self, address: str, target: WorkerRef) -> Link:
        link = self._links.get((address, target))
        if link is None or link.is_lost:
            self._links = {place: link for place, link in self._links.items() if not link.is_lost}
            link = self._links[address, target] = Link(self, address, target)
        return link

    def _queue(self, link: Link, job: Job) -> None:
        job.transfer.begin(job.num_bytes, time.perf_counter())
        link.queued.append(job)
        self.changed.notify_all()


def open_session(
    credentials: Credentials, address: str, target: WorkerRef, timeout_s: float
) -> tuple[socket.socket, Session]:
    """A connection whose ends have proved themselves; its socket has the time limit still."""
    place = split_address(address)
    side = credentials.as_sender(target, place.node)
    sock = tcp_address.connect(place, timeout_s)
    try:
        return sock, proved(sock, side, timeout_s)
    except BaseException:
        sock.close()
        raise


def proved(sock: socket.socket, side: SenderSide, timeout_s: float) -> Session:
    """Go through the handshake. OSError, ProtocolError."""
    deadline_s = time.monotonic() + timeout_s
    tune(sock)
    sock.sendall(side.opening)
    while (session := side.session) is None:
        message = b""
        while (missing := side.size_of(message) - len(message)) > 0:
            message += receive_exactly(sock, missing, deadline_s)
        sock.sendall(side.take(message))
    sock.settimeout(timeout_s)
    return session
