"""Handoff between boxes, or without a shared arena: blocks travel over one TCP connection per pair of workers.

Puts the two halves together. The receiver's grants decide what may land (relevo.kv.grants); a sender learns that it
is too late from the refusal. Nothing polls: every thread of an idle transport is blocked in the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relevo.core.errors import HandoffFailed, ProtocolError
from relevo.core.events import TransferEvent
from relevo.core.ids import BlockId
from relevo.core.kv import Reservation
from relevo.kv.arena import Arena
from relevo.kv.grants import GrantTable
from relevo.kv.transfer import EventQueue
from relevo.kv.transports.tcp_frames import Blocks, ReadBlocks, Rejected, receive_frame, receive_into, send_frame
from relevo.kv.transports.tcp_receiver import TcpReceiver
from relevo.kv.transports.tcp_sender import TcpOptions, TcpSender

CLOSE_TIMEOUT_S = 2.0


class TcpTransport:
    """Implements core.ports.KVTransport. The local blocks of a write stay untouched until it is sealed or cancelled."""

    name = "tcp"
    zero_copy = False

    def __init__(
        self,
        arena: Arena,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        advertised_host: str | None = None,
        options: TcpOptions | None = None,
        on_wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Listen at (host, port); port 0 takes a free one. Senders are told `advertised_host`, or else `host`."""
        options = options or TcpOptions()
        self._arena = arena
        self._grants = GrantTable()
        self._events = EventQueue(on_wake)
        self._sender = TcpSender(arena, self._events, options)
        self._receiver = TcpReceiver(arena, self._grants, host, port, options.secret)
        self._address = f"tcp:{advertised_host or host}:{self._receiver.port}"

    @property
    def num_refused_writes(self) -> int:
        """Writes that arrived under an old epoch or generation, or damaged, and were refused here."""
        return self._receiver.num_refused_writes

    def address(self) -> str:
        return self._address

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

    def read(self, address: str, block_ids: Sequence[BlockId], local_block_ids: Sequence[BlockId]) -> None:
        """Pull blocks over a connection of their own. HandoffFailed if the peer refuses or cannot be reached."""
        views = self._arena.spans(local_block_ids)
        if len(block_ids) != len(local_block_ids):
            raise ValueError(f"{len(block_ids)} blocks cannot be read into {len(local_block_ids)}")
        try:
            with self._sender.connect(address) as sock:
                send_frame(sock, ReadBlocks(tuple(block_ids)))
                answer, payload_bytes = receive_frame(sock)
                if isinstance(answer, Rejected):
                    raise HandoffFailed(f"{address} refused to share blocks: {answer.reason}.")
                if not isinstance(answer, Blocks) or payload_bytes != sum(view.nbytes for view in views):
                    raise ProtocolError(f"ReadBlocks was answered with {type(answer).__name__}, {payload_bytes} bytes")
                receive_into(sock, views)
        except (OSError, ProtocolError) as error:
            raise HandoffFailed(f"blocks could not be read from {address}: {error}.") from error

    def cancel(self, reservation: Reservation) -> None:
        self._sender.cancel(reservation)

    def poll(self) -> list[TransferEvent]:
        return self._events.take()

    def close(self) -> None:
        self._sender.close(CLOSE_TIMEOUT_S)
        self._receiver.close(CLOSE_TIMEOUT_S)
