"""The way to one incarnation of a receiver: one connection, and more beside it while there is much to send.

A link has for each of its streams one thread that connects and sends, and one that reads answers; both sleep while
there is nothing to do, and a sender between boxes says from time to time that it is there. What is queued goes to
whichever stream is free; the receiver answers a seal once all before it was answered on any of them. A stream that is
lost takes the link and its transfers with it: except that what was sent over a connection that had been idle, and of
which nothing was answered, is sent once more over a fresh one (the network may have forgotten the connection).

Owns queues, credit, tickets and sockets. Does not know grants.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relevo.core.cut import LocalBlock
from relevo.core.errors import ProtocolError
from relevo.core.ids import WorkerRef
from relevo.kv.cut_blocks import lend
from relevo.kv.lent_blocks import LentBlocks
from relevo.kv.transfer import Transfer
from relevo.kv.transports.tcp_channel import Channel
from relevo.kv.transports.tcp_frames import (
    Applied,
    Ping,
    Pong,
    Refused,
    Seal,
    WriteBlocks,
    receive_frame,
    send_frame,
)
from relevo.kv.transports.tcp_handshake import StaleTarget
from relevo.policy.routing.link_pace import LinkPace

if TYPE_CHECKING:
    from relevo.kv.transports.tcp_sender import TcpSender


@dataclass(slots=True, eq=False)
class Job:
    """A run of blocks to write (`blocks` not empty), or a seal."""

    transfer: Transfer
    first_index: int
    blocks: tuple[LocalBlock, ...]
    num_bytes: int
    num_tokens: int = 0


class Link:
    """Everything but the socket calls happens under the sender's lock."""

    def __init__(self, sender: TcpSender, address: str, target: WorkerRef) -> None:
        self._sender = sender
        self._address = address
        self._target = target
        self._link_id = secrets.token_bytes(16)
        self._tickets = itertools.count()
        self._unanswered: dict[int, Job] = {}
        self._in_flight_bytes = 0
        self._num_answered = 0  # since something was sent while nothing was unanswered
        self._is_tried = False  # it has answered something before that
        self._streams: list[_Stream] = []
        self._threads: list[threading.Thread] = []
        self._num_opening = 0
        self._most_streams = max(1, sender.options.num_streams)
        self.pace = LinkPace(sender.options.frame_bytes, sender.options.max_in_flight_bytes)
        self.queued: deque[Job] = deque()
        self.heard_s = 0.0  # its last sign of life, or when the first of what is unanswered was taken
        self.is_lost = False
        self._open_stream()

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    @property
    def is_running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def carries(self, transfer: Transfer) -> bool:
        return any(job.transfer is transfer for job in self._unanswered.values())

    def drop(self, transfer: Transfer) -> None:
        """What is queued of it; nothing more is read from its blocks. Lock held."""
        self._drop_queued(transfer)
        for stream in self._streams:
            if stream.lent is not None and stream.lent[0] is transfer:
                stream.lent[1].give_back()

    def _drop_queued(self, transfer: Transfer) -> None:
        kept: deque[Job] = deque()
        for job in self.queued:
            if job.transfer is transfer:
                transfer.end(time.perf_counter())
            else:
                kept.append(job)
        self.queued = kept

    def lose(self, reason: str, *, stale: bool = False) -> None:
        """End the link and every transfer that has something queued or in flight on it. Idempotent; lock held.
        `stale`: the receiver has ended their rights."""
        jobs = self._end_streams()
        for job in jobs:
            job.transfer.fail(f"{self._target.worker_id}: {reason}", stale=stale)
            self._end(job)
        self._sender.changed.notify_all()

    def join(self, deadline_s: float) -> None:
        for thread in list(self._threads):
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _end_streams(self) -> list[Job]:
        """All that was not answered, in order; none if the link was lost before."""
        if self.is_lost:
            return []
        self.is_lost = True
        jobs = [*self._unanswered.values(), *self.queued]
        self._unanswered.clear()
        self.queued.clear()
        for stream in self._streams:
            with contextlib.suppress(OSError):  # the peer may have closed it already
                stream.channel.sock.shutdown(socket.SHUT_RDWR)
        return jobs

    # ---- streams

    def _open_stream(self) -> None:
        self._num_opening += 1
        thread = threading.Thread(target=self._run_stream, name="kv-send", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run_stream(self) -> None:
        """Owns the socket: nothing else closes it, so that its number is never reused under a running call."""
        stream: _Stream | None = None
        try:
            stream = self._connect()
            while stream is not None and (next_job := self._take(stream)) is not None:
                if isinstance(next_job, Ping):
                    self._sender.credentials.check(stream.peer)
                    send_frame(stream.channel, next_job)
                else:
                    self._send(stream.channel, *next_job)
        except (OSError, ProtocolError) as error:
            self._failed(error, is_extra=stream is None and bool(self._streams))
        finally:
            if stream is not None:
                stream.thread.join()
                stream.channel.sock.close()

    def _connect(self) -> _Stream | None:
        try:
            channel, peer = self._sender.connect(self._address, self._target, self._link_id)
        finally:
            with self._sender.changed:
                self._num_opening -= 1
        channel.sock.settimeout(None)
        with self._sender.changed:
            if self.is_lost:
                channel.sock.close()
                return None
            stream = _Stream(channel, peer, heard_s=time.monotonic())
            stream.thread = threading.Thread(target=self._answer_loop, args=(stream,), name="kv-ack", daemon=True)
            self._streams.append(stream)
            self._threads.append(stream.thread)
            stream.thread.start()
            self._sender.changed.notify_all()
        return stream

    def _take(self, stream: _Stream) -> tuple[int, Job, LentBlocks] | Ping | None:
        """The next job, in flight from now on; or a sign of life that is due; None once the link is lost."""
        with self._sender.changed:
            while not self.is_lost:
                if self.queued and self._has_credit():
                    return self._taken(stream)
                pause_s = self._pause_s(stream)
                if pause_s is not None and pause_s <= 0.0:
                    stream.asked_s = time.monotonic()
                    return Ping()
                self._sender.changed.wait(pause_s)
            return None

    def _pause_s(self, stream: _Stream) -> float | None:
        """Until it has to ask for a sign of life (0: now), or to give up; None: it has not. TimeoutError if one that it
        asked for has not come. While something is unanswered the kernel watches (TCP_USER_TIMEOUT)."""
        options, now_s = self._sender.options, time.monotonic()
        if not options.heartbeat_s or self._unanswered:
            return None
        if not stream.asked_s:
            return max(0.0, stream.heard_s + options.heartbeat_s - now_s)
        if (left_s := stream.asked_s + options.silence_s - now_s) <= 0.0:
            raise TimeoutError("the receiver does not answer")
        return left_s

    def _taken(self, stream: _Stream) -> tuple[int, Job, LentBlocks]:
        job = self.queued.popleft()
        ticket = next(self._tickets)
        if not self._unanswered:
            self._is_tried |= self._num_answered > 0
            self._num_answered = 0
            self.heard_s = now_s = time.monotonic()
            self.pace.begins(now_s)
        self._unanswered[ticket] = job
        self._in_flight_bytes += job.num_bytes
        is_behind = sum(each.num_bytes for each in itertools.islice(self.queued, 2)) > 0
        if is_behind and self._has_credit() and not self._num_opening and len(self._streams) < self._most_streams:
            self._open_stream()
        lent = lend(self._sender.arena, job.blocks, job.transfer.reservation.block_size)
        stream.lent = job.transfer, lent
        return ticket, job, lent

    def _has_credit(self) -> bool:
        ahead = self._in_flight_bytes
        return ahead == 0 or ahead + self.queued[0].num_bytes <= self.pace.in_flight_bytes

    def _send(self, channel: Channel, ticket: int, job: Job, lent: LentBlocks) -> None:
        mine, first, last = job.transfer.reservation, job.first_index, job.first_index + len(job.blocks)
        if not job.blocks:
            block_id, generation = mine.block_ids[first], mine.generations[first]
            seal = Seal(ticket, mine.request_id, mine.epoch, first, block_id, generation, after=ticket)
            send_frame(channel, seal)
            return
        checksums: tuple[int, ...] = ()
        lent.put_together()
        if self._sender.options.checksum:
            checksums = lent.checksums(job.num_bytes // len(job.blocks))
        targets, generations = mine.block_ids[first:last], mine.generations[first:last]
        frame = WriteBlocks(ticket, mine.request_id, mine.epoch, first, targets, generations, checksums)
        send_frame(channel, frame, blocks=lent)

    # ---- answers

    def _answer_loop(self, stream: _Stream) -> None:
        try:
            while True:
                answer, _ = receive_frame(stream.channel)
                with self._sender.changed:
                    self.heard_s = stream.heard_s = time.monotonic()
                    stream.asked_s = 0.0
                    match answer:
                        case Applied() | Refused():
                            self._take_answer(answer)
                        case Pong():
                            pass
                        case _:
                            raise ProtocolError(f"a receiver may not send {type(answer).__name__}")
                    self._sender.changed.notify_all()
                self._sender.events.wake()
        except (OSError, ProtocolError) as error:
            self._failed(error)

    def _take_answer(self, answer: Applied | Refused) -> None:
        job = self._unanswered.pop(answer.ticket, None)
        if job is None:
            return
        self._num_answered += 1
        self._in_flight_bytes -= job.num_bytes
        self.pace.acknowledged(job.num_bytes, time.monotonic(), is_last=not self._unanswered)
        if isinstance(answer, Refused):
            job.transfer.fail(answer.reason, stale=answer.stale)
            self._drop_queued(job.transfer)
        self._end(job)

    def _end(self, job: Job) -> None:
        """Close the account of a job, and report a seal or the end of a failed transfer, unless it was cancelled."""
        transfer = job.transfer
        transfer.end(time.perf_counter())
        if self._is_cancelled(transfer):
            self._sender.left(transfer)
            return
        if transfer.failed is None and not job.blocks:
            self._sender.events.add(transfer.sealed(job.num_tokens, time.perf_counter()))
        elif (failure := transfer.failure_to_report()) is not None:
            self._sender.events.add(failure)

    def _is_cancelled(self, transfer: Transfer) -> bool:
        return self._sender.ledger.find(transfer.reservation) is not transfer

    def _failed(self, error: OSError | ProtocolError, *, is_extra: bool = False) -> None:
        with self._sender.changed:
            if is_extra and not isinstance(error, StaleTarget):  # those that are there suffice
                self._most_streams = len(self._streams)
                return
            was_forgotten = isinstance(error, OSError) and (self._is_tried or self._num_answered > 0)
            if was_forgotten and self._unanswered and self._num_answered == 0 and not self.is_lost:
                jobs = self._end_streams()
                for job in jobs:
                    if self._is_cancelled(job.transfer):  # its blocks are others' by now
                        self._end(job)
                again = [job for job in jobs if not self._is_cancelled(job.transfer)]
                self._sender.requeue(self._address, self._target, again)
            else:
                self.lose(_words(error), stale=isinstance(error, StaleTarget))
        self._sender.events.wake()


@dataclass(slots=True, eq=False)
class _Stream:
    """One connection, once it is proved."""

    channel: Channel
    peer: Any
    heard_s: float
    thread: threading.Thread = None  # type: ignore[assignment] # reads answers; set before the stream is known to others
    asked_s: float = 0.0  # 0: no sign of life is waited for
    lent: tuple[Transfer, LentBlocks] | None = None  # of the frame that it took last


def _words(error: OSError | ProtocolError) -> str:
    """Without an address: clients are told the reason."""
    if isinstance(error, ProtocolError):
        return error.message
    return error.strerror or str(error) or type(error).__name__
