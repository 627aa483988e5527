"""Handoff between boxes, or without a shared arena: blocks travel over TCP connections between pairs of workers.

Puts the two halves together. Each end proves to the other who it is before a frame is read: inside a box that it
belongs to the same start of the same server (tcp_handshake), between boxes which node it is of (tcp_node_handshake).
The receiver's grants decide what may land (relevo.kv.grants); a sender learns that it is too late from the refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from relevo.core.cut import LocalBlock
from relevo.core.events import TransferEvent
from relevo.core.handoff import Reach
from relevo.core.ids import WorkerRef
from relevo.core.kv import KVRefusal, Reservation
from relevo.kv.arena import Arena
from relevo.kv.door import KVDoor
from relevo.kv.grants import GrantTable
from relevo.kv.transfer import EventQueue
from relevo.kv.transports.registry import OwnEnd
from relevo.kv.transports.tcp_address import TcpAddress, listen
from relevo.kv.transports.tcp_credentials import Credentials, SecretCredentials
from relevo.kv.transports.tcp_receiver import TcpReceiver
from relevo.kv.transports.tcp_sender import TcpOptions, TcpSender

CLOSE_TIMEOUT_S = 2.0
HEARTBEAT_S = 1.0  # between boxes, where a network may forget connections; inside one there is nothing that would
_LOOPBACK = "127.0.0.1"


def open_transport(own: OwnEnd) -> TcpTransport:
    return TcpTransport(own.arena, secret=own.secret, identity=own.worker, on_wake=own.on_wake, door=own.door)


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
        port: int = 0,
        door: KVDoor | None = None,
        options: TcpOptions | None = None,
        on_wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Without a door, listen at the loopback; port 0 takes a free one.

        `secret`: without a door, the same in every worker of one start of a server, and nowhere else. `identity`: whom
        reservations of this worker name; a sender that wants another incarnation is refused. ValueError for a secret
        that could be guessed, StartError if no port is free.
        """
        options = options or TcpOptions()
        if door is not None:
            options = replace(options, num_streams=door.num_streams, heartbeat_s=options.heartbeat_s or HEARTBEAT_S)
        credentials = _credentials(secret, door)
        self._arena = arena
        self._grants = GrantTable()
        self._events = EventQueue(on_wake)
        self._sender = TcpSender(arena, self._events, options, credentials)
        listener = listen(_LOOPBACK, range(port, port + 1)) if door is None else listen(door.host, door.ports)
        self._receiver = TcpReceiver(arena, self._grants, listener, credentials, identity, options.handshake_timeout_s)
        host, node = (_LOOPBACK, "") if door is None else (door.advertised_host, door.keys.name)
        self._address = str(TcpAddress(host, self._receiver.acceptor.port, node))

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
        """Every right that was granted ends, transfers that are under way fail, and a sender that wants an earlier
        incarnation is refused. Connections of both directions end soon: their threads are not waited for."""
        self._grants.withdraw_all()
        self._receiver.take_epoch(epoch)
        self._sender.leave_all("this worker has begun anew")

    def warm(self, address: str, target: WorkerRef) -> None:
        """Connect to that receiver now, so that the first handoff to it does not wait for the handshake."""
        self._sender.warm(address, target)

    def reserve(self, reservation: Reservation) -> None:
        self._grants.open(reservation)

    def release(self, reservation: Reservation) -> None:
        """When this returns no byte of a write under this reservation lands any more."""
        self._grants.withdraw(reservation)

    def may_write(self, reservation: Reservation) -> bool:
        """False once the receiver has refused something of the transfer, or it has failed otherwise."""
        return not self._sender.has_failed(reservation)

    def write(
        self, reservation: Reservation, address: str, first_index: int, local_blocks: Sequence[LocalBlock]
    ) -> None:
        self._sender.write(reservation, address, first_index, local_blocks)

    def seal(self, reservation: Reservation, address: str, num_tokens: int) -> None:
        self._sender.seal(reservation, address, num_tokens)

    def cancel(self, reservation: Reservation) -> bool:
        return self._sender.cancel(reservation)

    def poll(self) -> list[TransferEvent]:
        return self._events.take()

    def close(self) -> None:
        self._sender.leave_all("this worker is closing")
        self._sender.join(CLOSE_TIMEOUT_S)
        self._receiver.close(CLOSE_TIMEOUT_S)


def _credentials(secret: bytes, door: KVDoor | None) -> Credentials:
    if door is None:
        return SecretCredentials(secret)
    from relevo.kv.transports.tcp_node_handshake import NodeCredentials  # OpenSSL, between boxes only

    return NodeCredentials(door)
