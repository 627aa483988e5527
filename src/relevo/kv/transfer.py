"""Sender side of every transport: what a transfer has moved so far, and the events the step loop will poll.

Owns: byte and time accounts per reservation, and the event queue with its wake-up. Does not know how bytes travel.
The time of a transfer runs while something of it is under way: from the first write after a quiet phase to the
acknowledgement that leaves nothing outstanding. Waiting for the next chunk to be computed is not counted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relevo.core.cut import CutBlock, LocalBlock
from relevo.core.events import TransferEvent, TransferFailed, TransferSealed, WritesEnded
from relevo.core.ids import BlockId
from relevo.core.kv import Reservation

MAX_IDLE_TRANSFERS = 1024  # arbitrary; a transfer that was forgotten only starts its account anew


@dataclass(slots=True, eq=False)
class Transfer:
    """Account of one reservation. `num_outstanding` counts writes and seals asked for and not yet answered."""

    reservation: Reservation
    num_bytes: int = 0
    transfer_s: float = 0.0
    num_outstanding: int = 0
    failed: TransferFailed | None = None
    _busy_since_s: float = field(default=0.0, repr=False)
    _is_reported: bool = field(default=False, repr=False)

    def begin(self, num_bytes: int, now_s: float) -> None:
        if self.num_outstanding == 0:
            self._busy_since_s = now_s
        self.num_outstanding += 1
        self.num_bytes += num_bytes

    def end(self, now_s: float) -> None:
        self.num_outstanding -= 1
        if self.num_outstanding == 0:
            self.transfer_s += now_s - self._busy_since_s

    def abandon(self, now_s: float) -> None:
        """Nothing of the transfer is under way any more, answered or not."""
        if self.num_outstanding:
            self.num_outstanding = 1
            self.end(now_s)

    def fail(self, reason: str, *, stale: bool) -> None:
        """The first failure counts."""
        if self.failed is None:
            self.failed = TransferFailed(self.reservation, reason, stale)

    def failure_to_report(self) -> TransferFailed | None:
        """The failure, once, and not before the last outstanding write is answered."""
        if self.failed is None or self._is_reported or self.num_outstanding:
            return None
        self._is_reported = True
        return self.failed

    def sealed(self, num_tokens: int, now_s: float) -> TransferSealed:
        running = now_s - self._busy_since_s if self.num_outstanding else 0.0
        return TransferSealed(self.reservation, num_tokens, self.num_bytes, self.transfer_s + running)


class TransferLedger:
    """Transfers by reservation, bounded. Not thread-safe: its transport holds a lock around it."""

    def __init__(self) -> None:
        self._transfers: OrderedDict[Reservation, Transfer] = OrderedDict()

    def open(self, reservation: Reservation) -> Transfer:
        """The account of the reservation, made if there is none. Beyond a bound the longest quiet one is forgotten."""
        transfer = self._transfers.get(reservation)
        if transfer is None:
            transfer = self._transfers[reservation] = Transfer(reservation)
            if len(self._transfers) > MAX_IDLE_TRANSFERS:
                self._forget_oldest_idle(transfer)
        self._transfers.move_to_end(reservation)
        return transfer

    def find(self, reservation: Reservation) -> Transfer | None:
        return self._transfers.get(reservation)

    def forget(self, reservation: Reservation) -> Transfer | None:
        return self._transfers.pop(reservation, None)

    def _forget_oldest_idle(self, but: Transfer) -> None:
        for reservation, transfer in self._transfers.items():
            if transfer.num_outstanding == 0 and transfer is not but:
                del self._transfers[reservation]
                return


def whole(local_blocks: Sequence[LocalBlock]) -> tuple[BlockId, ...]:
    """Of a transport that cuts none. ValueError for a cut one."""
    block_ids = tuple(block for block in local_blocks if not isinstance(block, CutBlock))
    if len(block_ids) < len(local_blocks):
        raise ValueError("a transport that copies whole blocks was given cut ones")
    return block_ids


class EventQueue:
    """Completions for the step loop. Thread-safe; `on_wake` is called after an event has become visible to `poll`."""

    def __init__(self, on_wake: Callable[[], None]) -> None:
        self._on_wake = on_wake
        self._lock = threading.Lock()
        self._events: deque[TransferEvent] = deque()

    def put(self, *events: TransferEvent) -> None:
        self.add(*events)
        self.wake()

    def add(self, *events: TransferEvent) -> None:
        """Make events visible; the caller owes a `wake` once it holds no lock."""
        with self._lock:
            self._events.extend(events)

    def wake(self) -> None:
        """Call `on_wake` if there is anything to poll."""
        with self._lock:
            is_empty = not self._events
        if not is_empty:
            self._on_wake()

    def take(self) -> list[TransferEvent]:
        if not self._events:  # what comes a moment later has its own wake
            return []
        with self._lock:
            events = list(self._events)
            self._events.clear()
        return events

    def drop(self, reservation: Reservation) -> None:
        """Forget completions that are not wanted any more."""
        with self._lock:
            kept = [e for e in self._events if isinstance(e, WritesEnded) or e.reservation != reservation]
            self._events = deque(kept)


def check_write(
    reservation: Reservation, first_index: int, local_blocks: Sequence[LocalBlock], own_block_size: int
) -> None:
    """ValueError if the write leaves the reservation or touches blocks that the receiver already has, or if its blocks
    have not the receiver's size."""
    if any(isinstance(block, CutBlock) == (own_block_size == reservation.block_size) for block in local_blocks):
        raise ValueError(
            f"request {reservation.request_id} is for blocks of {reservation.block_size} tokens: those of "
            f"{own_block_size} have to be cut if, and only if, these are two sizes"
        )
    last = first_index + len(local_blocks)
    if first_index < reservation.num_hit_blocks or last > len(reservation.block_ids):
        raise ValueError(
            f"blocks [{first_index}, {last}) of request {reservation.request_id} are not open: the reservation has "
            f"{len(reservation.block_ids)} blocks, of which the first {reservation.num_hit_tokens} tokens are hits"
        )
