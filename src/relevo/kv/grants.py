"""Receiver side of copying transports: which blocks are open to which writer, and the end of a writer's right.

Owns: the open grants. Bytes of a grant are stored with `Grant.lock` held, in pieces that never wait for the network;
so `withdraw` returns within one such piece, and when it has returned no byte of the grant lands any more.
Does not know sockets or clocks.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from relevo.core.ids import BlockId, RequestId
from relevo.core.kv import Reservation


class Grant:
    """One reservation that is, or was, open. Read and clear `is_open` only with `lock` held."""

    def __init__(self, reservation: Reservation) -> None:
        self.reservation = reservation
        self.lock = threading.Lock()
        self.is_open = True


class GrantTable:
    """Open grants by block. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_block: dict[BlockId, Grant] = {}

    def open(self, reservation: Reservation) -> None:
        """Let writers in, hit blocks excepted. A grant that still held one of the blocks is withdrawn first."""
        grant = Grant(reservation)
        blocks = reservation.block_ids[reservation.num_hit_blocks :]
        with self._lock:
            older = {id(g): g for b in blocks if (g := self._by_block.get(b)) is not None}
            for previous in older.values():
                self._withdraw(previous)
            self._by_block.update(dict.fromkeys(blocks, grant))

    def withdraw(self, reservation: Reservation) -> None:
        """End the writer's right. Idempotent; other grants that took over some of the blocks stay."""
        with self._lock:
            for grant in {id(g): g for b in reservation.block_ids if (g := self._by_block.get(b))}.values():
                if grant.reservation == reservation:
                    self._withdraw(grant)

    def withdraw_all(self) -> None:
        with self._lock:
            for grant in {id(grant): grant for grant in self._by_block.values()}.values():
                self._withdraw(grant)

    def find(
        self,
        request_id: RequestId,
        epoch: int,
        first_index: int,
        block_ids: Sequence[BlockId],
        generations: Sequence[int],
    ) -> Grant | None:
        """The open grant that allows exactly these blocks at these places under these generations."""
        with self._lock:
            grant = self._by_block.get(block_ids[0]) if block_ids else None
            if grant is None or any(self._by_block.get(b) is not grant for b in block_ids):
                return None
        mine = grant.reservation
        last = first_index + len(block_ids)
        same = (mine.request_id, mine.epoch) == (request_id, epoch) and first_index >= 0
        same = same and mine.block_ids[first_index:last] == tuple(block_ids)
        return grant if same and mine.generations[first_index:last] == tuple(generations) else None

    def _withdraw(self, grant: Grant) -> None:
        with grant.lock:
            grant.is_open = False
        for block_id in grant.reservation.block_ids:
            if self._by_block.get(block_id) is grant:
                del self._by_block[block_id]
