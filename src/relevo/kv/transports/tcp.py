"""Handoff between boxes, or without a shared arena: blocks travel over one TCP connection per pair of workers.

Puts the two halves together. Each end proves to the other that it belongs to the same start of the same server before
a frame is read (tcp_handshake). The receiver's grants decide what may land (relevo.kv.grants); a sender learns that it
is too late from the refusal. Nothing polls: every thread of an idle transport is blocked in the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relevo.core.events import TransferEvent
from relevo.core.handoff import Reach
from relevo.core.ids import BlockId, WorkerRef
from relevo.core.kv import KVRefusal, Reservation
from relevo.kv.arena import Arena
from relevo.kv.grants import GrantTable
from relevo.kv.transfer import EventQueue
from relevo.kv.transports.registry import OwnEnd
from relevo.kv.transports.tcp_receiver import TcpReceiver
from relevo.kv.transports.tcp_sender import TcpOptions, TcpSender

CLOSE_TIMEOUT_S = 2.0


def open_transport(own: OwnEnd) -> TcpTransport:
    return TcpTransport(own.arena, secret=own.secret, identity=own.worker, on_wake=own.on_wake)


class TcpTransport:
    """Implements core.ports.KVTransport. The local blocks of a write stay untouched until it is sealed or cancelled."""

    name = "tcp"
    reach = Reach.NETWORK

    def __init__(
        self,
        arena: Arena,
        *,
        secret: bytes,
        identity: WorkerRef,
        host: str = "127.0.0.1",
        port: int = 0,
        advertised_host: str | None = None,
        options: TcpOptions | None = None,
        on_wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Listen at (host, port); port 0 takes a free one. Senders are told `advertised_host`, or else `host`.

        `secret`: the same in every worker of one start of a server, and nowhere else. `identity`: whom reservations
        of this worker name; a sender that wants another incarnation is refused. ValueError for a secret that could be
        guessed.
        """
        options = options or TcpOptions()
        self._arena = arena
        self._grants = GrantTable()
        self._events = EventQueue(on_wake)
        self._sender = TcpSender(arena, self._events, options, secret)
        self._receiver = TcpReceiver(arena, self._grants, (host, port), secret, identity, options.handshake_timeout_s)
        self._address = f"tcp:{advertised_host or host}:{self._receiver.acceptor.port}"

    @property
    def num_refused_writes(self) -> int:
        """Writes that arrived under an old epoch or generation, or damaged, and were refused here."""
        return self._receiver.num_refused_writes

    @property
    def num_refused_connections(self) -> dict[KVRefusal, int]:
        return self._receiver.acceptor.num_refused

    @property
    def num_connections(self) -> tuple[int, int]:
        """(of senders that have proved themselves, of strangers) as of now."""
        return self._receiver.num_senders, self._receiver.acceptor.num_strangers

    def address(self) -> str:
        return self._address

    def take_epoch(self, epoch: int) -> None:
        self._receiver.acceptor.take_epoch(epoch)

    def reserve(self, reservation: Reservation) -> None:
        self._grants.open(reservation, self._arena.layout.block_size)

    def release(self, reservation: Reservation) -> None:
        """When this returns no byte of a write under this reservation lands any more."""
        self._grants.withdraw(reservation)

    def may_write(self, reservation: Reservation) -> bool:
        """False once the receiver has refused something of the transfer, or it has failed otherwise."""
        return not self._sender.has_failed(reservation)

    def write(
        self, reservation: Reservation, address: str, first_index: int, local_block_ids: Sequence[BlockId]
    ) -> None:
        self._sender.write(reservation, address, first_index, local_block_ids)

    def seal(self, reservation: Reservation, address: str, num_tokens: int) -> None:
        self._sender.seal(reservation, address, num_tokens)

    def cancel(self, reservation: Reservation) -> None:
        self._sender.cancel(reservation)

    def poll(self) -> list[TransferEvent]:
        return self._events.take()

    def close(self) -> None:
        self._sender.close(CLOSE_TIMEOUT_S)
        self._receiver.close(CLOSE_TIMEOUT_S)
