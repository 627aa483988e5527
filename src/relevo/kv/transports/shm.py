"""Handoff inside one box: all workers map one arena, so blocks change hands and no byte moves.

The prefill worker computes straight into the blocks that the decode worker reserved. The right to do so is two words
per block in the arena's head, (epoch, generation): `reserve` publishes them, `release` closes them, `may_write`
compares. The check cannot stop a step that is already computing: before blocks are released under a live writer, it is
asked to let go (policy.handoff).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from relevo.core.cut import LocalBlock
from relevo.core.events import TransferEvent
from relevo.core.handoff import Reach
from relevo.core.kv import KVRefusal, Reservation
from relevo.kv.arena import Arena
from relevo.kv.arena_file import NO_GENERATION
from relevo.kv.transfer import EventQueue, Transfer, TransferLedger, check_write, whole
from relevo.kv.transports.registry import OwnEnd


def open_transport(own: OwnEnd) -> ShmTransport:
    return ShmTransport(own.arena, on_wake=own.on_wake)


class ShmTransport:
    """Implements core.ports.KVTransport. Call it from one thread, the step loop."""

    name = "shm"
    reach = Reach.ARENA

    def __init__(self, arena: Arena, *, on_wake: Callable[[], None] = lambda: None) -> None:
        """Rights that an earlier incarnation granted on this worker's blocks have ended: `Arena.close_to_writers`."""
        self._arena = arena
        self._address = f"shm:{arena.identity}"
        self._events = EventQueue(on_wake)
        self._ledger = TransferLedger()
        self.num_refused_writes = 0
        self.num_refused_connections: dict[KVRefusal, int] = {}  # peers do not connect

    def address(self) -> str:
        return self._address

    def take_epoch(self, epoch: int) -> None:
        """Rights name the epoch that granted them."""

    def reserve(self, reservation: Reservation) -> None:
        ids, generations = self._open_part(reservation)
        self._arena.epochs[ids] = reservation.epoch
        self._arena.generations[ids] = generations

    def release(self, reservation: Reservation) -> None:
        ids, generations = self._open_part(reservation)
        mine = (self._arena.generations[ids] == generations) & (self._arena.epochs[ids] == reservation.epoch)
        self._arena.generations[ids[mine]] = NO_GENERATION

    def may_write(self, reservation: Reservation) -> bool:
        ids, generations = self._open_part(reservation)
        same = self._arena.generations[ids] == generations
        return bool(same.all() and (self._arena.epochs[ids] == reservation.epoch).all())

    def write(
        self, reservation: Reservation, address: str, first_index: int, local_blocks: Sequence[LocalBlock]
    ) -> None:
        """Account for the blocks. Where the sender computed elsewhere in the arena, copy them to their place."""
        check_write(reservation, first_index, local_blocks, self._arena.layout.block_size)
        started_s = time.perf_counter()
        transfer = self._ledger.open(reservation)
        if self._fails(transfer, address):
            return
        transfer.begin(len(local_blocks) * self._arena.bytes_per_block, started_s)
        for source, target in zip(whole(local_blocks), reservation.block_ids[first_index:], strict=False):
            if source != target:
                self._arena.copy_block(source, target)
        transfer.end(time.perf_counter())

    def seal(self, reservation: Reservation, address: str, num_tokens: int) -> None:
        transfer = self._ledger.open(reservation)
        if not self._fails(transfer, address):
            self._events.put(transfer.sealed(num_tokens, time.perf_counter()))

    def cancel(self, reservation: Reservation) -> bool:
        self._ledger.forget(reservation)
        self._events.drop(reservation)
        return True

    def poll(self) -> list[TransferEvent]:
        return self._events.take()

    def close(self) -> None:
        self._events.take()

    def _open_part(self, reservation: Reservation) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        first = reservation.num_hit_blocks
        ids = np.asarray(reservation.block_ids[first:], dtype=np.int64)
        return ids, np.asarray(reservation.generations[first:], dtype=np.uint64)

    def _fails(self, transfer: Transfer, address: str) -> bool:
        """True if the transfer has failed; reports it once."""
        if transfer.failed is not None:
            return True
        if address != self._address:
            transfer.fail(f"{address} is another arena than {self._address}", stale=False)
        elif not self.may_write(transfer.reservation):
            self.num_refused_writes += 1
            transfer.fail("the receiver has withdrawn the blocks", stale=True)
        failure = transfer.failure_to_report()
        if failure is not None:
            self._events.put(failure)
        return failure is not None
