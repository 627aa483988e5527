"""The worker's end of its connections to gateways. Synchronous: everything happens in calls of the step loop.

Owns: the listening socket, its peers, their buffers. `poll` sleeps in the kernel until a message, a new or lost peer,
or `wake` comes. A peer that does not read is dropped once it is `max_unsent_bytes` behind. Does not know requests.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from relevo.core.errors import ProtocolError, SettingsError
from relevo.core.events import WireRefusal
from relevo.core.ids import PeerId
from relevo.telemetry.limited_log import LimitedLog
from relevo.wire.address import unix_path
from relevo.wire.framing import FrameDecoder, encode_frame, worker_side_decoder
from relevo.wire.gateway_links import PeerGone
from relevo.wire.messages import Hello, ToGateway, ToWorker
from relevo.wire.unix_socket import is_own_user, listen_unix

MAX_PEERS = 256  # arbitrary; one per gateway is needed, and there are 64 at most
MAX_UNSENT_BYTES = 64 * 1024 * 1024  # arbitrary; a gateway this far behind is as good as lost
_READ_BYTES = 1024 * 1024  # per peer and poll, so that a busy peer does not starve the others
_log = logging.getLogger("relevo.wire")


@dataclass(slots=True, eq=False)
class _Peer:
    peer_id: PeerId
    sock: socket.socket
    decoder: FrameDecoder[ToWorker] = field(default_factory=worker_side_decoder)
    unsent: deque[memoryview] = field(default_factory=deque)
    num_unsent_bytes: int = 0
    waits_to_write: bool = False  # the selector calls once the socket takes more


class WireServer:
    """Implements wire.gateway_links.GatewayLinks over a Unix socket. For one thread, `wake` excepted."""

    def __init__(
        self, on_connect: Callable[[], Hello] | None = None, *, max_unsent_bytes: int = MAX_UNSENT_BYTES
    ) -> None:
        """`on_connect` makes the Hello that every new peer gets first; set it before the first `poll`."""
        self.on_connect = on_connect
        self._max_unsent_bytes = max_unsent_bytes
        self._selector = selectors.DefaultSelector()
        self._peers: dict[PeerId, _Peer] = {}
        self._next_id = 0
        self._inbox: list[tuple[PeerId, ToWorker | PeerGone]] = []
        self._listener: socket.socket | None = None
        self._unix_path: Path | None = None
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._take_wake)
        self._is_woken = False
        self._limited_log = LimitedLog(_log)
        self.num_refused_connections: dict[WireRefusal, int] = {}

    def listen(self, address: str) -> None:
        """Listen at `address` for processes of this user. SettingsError if it is taken."""
        path = unix_path(address)
        try:
            listener = listen_unix(path)
        except OSError as error:
            raise SettingsError(f"cannot listen at {address}: {error.strerror}; choose another address") from error
        listener.setblocking(False)
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._unix_path = Path(path)

    def watch(self, fd: int, on_readable: Callable[[], None]) -> None:
        """`poll` calls it whenever there is something to read from another descriptor, and waits on."""
        self._selector.register(fd, selectors.EVENT_READ, lambda _sock, _mask: on_readable())

    def poll(self, timeout_s: float | None) -> list[tuple[PeerId, ToWorker | PeerGone]]:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        if self._inbox:
            deadline_s = 0.0
        while True:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            for key, mask in self._selector.select(left_s):
                key.data(key.fileobj, mask)
            if self._inbox or self._is_woken or (deadline_s is not None and time.monotonic() >= deadline_s):
                break
        self._is_woken = False
        arrived, self._inbox = self._inbox, []
        return arrived

    def send(self, peer_id: PeerId, message: ToGateway) -> None:
        peer = self._peers.get(peer_id)
        if peer is None:
            return
        frame = encode_frame(message)
        peer.unsent.append(memoryview(frame))
        peer.num_unsent_bytes += len(frame)
        if len(peer.unsent) == 1:
            self._flush(peer)
        if peer.num_unsent_bytes > self._max_unsent_bytes:
            self._drop(peer, f"it left {peer.num_unsent_bytes} bytes unread")

    @property
    def peer_ids(self) -> tuple[PeerId, ...]:
        return tuple(self._peers)

    def num_unsent_bytes(self, peer_id: PeerId) -> int:
        peer = self._peers.get(peer_id)
        return peer.num_unsent_bytes if peer is not None else 0

    def drop(self, peer_id: PeerId, reason: str) -> None:
        if (peer := self._peers.get(peer_id)) is not None:
            self._drop(peer, reason)

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: it will wake anyway; closed: nothing polls
            self._wake_in.send(b"w")

    def close(self) -> None:
        """Send what the sockets take at once, close everything. Idempotent."""
        for peer in list(self._peers.values()):
            self._flush(peer)
            self._drop(peer, "this worker closed it")
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
        if self._unix_path is not None:
            self._unix_path.unlink(missing_ok=True)
            self._unix_path = None
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    # ---- called through the selector ---------------------------------------------------------------------------------

    def _take_wake(self, _sock: socket.socket, _mask: int) -> None:
        self._is_woken = True
        with contextlib.suppress(BlockingIOError):
            while self._wake_out.recv(4096):
                pass

    def _accept(self, listener: socket.socket, _mask: int) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                self._limited_log.warning("accept", f"a connection could not be accepted: {error}")
            return
        if not is_own_user(sock.fileno()):
            self._refuse(sock, WireRefusal.USER, "a process of another user connected to this worker")
            return
        if len(self._peers) >= MAX_PEERS:
            self._refuse(sock, WireRefusal.LIMIT, f"{MAX_PEERS} peers are connected already")
            return
        sock.setblocking(False)
        peer = _Peer(PeerId(self._next_id), sock)
        self._next_id += 1
        self._peers[peer.peer_id] = peer
        self._selector.register(sock, selectors.EVENT_READ, lambda _, mask: self._serve(peer, mask))
        assert self.on_connect is not None, "set on_connect before the first poll"
        self.send(peer.peer_id, self.on_connect())

    def _refuse(self, sock: socket.socket, reason: WireRefusal, message: str) -> None:
        sock.close()
        self._count_refused(reason, message)

    def _count_refused(self, reason: WireRefusal, message: str) -> None:
        self.num_refused_connections[reason] = self.num_refused_connections.get(reason, 0) + 1
        self._limited_log.warning(reason, f"a connection was refused: {message}")

    def _serve(self, peer: _Peer, mask: int) -> None:
        if mask & selectors.EVENT_WRITE and peer.peer_id in self._peers:
            self._flush(peer)
        if mask & selectors.EVENT_READ and peer.peer_id in self._peers:
            self._receive(peer)

    # ---- one peer ----------------------------------------------------------------------------------------------------

    def _receive(self, peer: _Peer) -> None:
        try:
            data = peer.sock.recv(_READ_BYTES)
            messages = peer.decoder.feed(data)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._drop(peer, error.strerror or str(error))
            return
        except ProtocolError as error:
            self._count_refused(WireRefusal.PROTOCOL, error.message)
            self._drop(peer, error.message)
            return
        self._inbox.extend((peer.peer_id, message) for message in messages)
        if not data:
            self._drop(peer, "it closed the connection")

    def _flush(self, peer: _Peer) -> None:
        """Send until the socket is full; then the selector calls again."""
        try:
            while peer.unsent:
                count = peer.sock.send(peer.unsent[0])
                peer.num_unsent_bytes -= count
                rest = peer.unsent[0][count:]
                if rest:
                    peer.unsent[0] = rest
                else:
                    peer.unsent.popleft()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._drop(peer, error.strerror or str(error))
            return
        if peer.waits_to_write != bool(peer.unsent):
            peer.waits_to_write = bool(peer.unsent)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.waits_to_write else 0)
            self._selector.modify(peer.sock, wanted, self._selector.get_key(peer.sock).data)

    def _drop(self, peer: _Peer, reason: str) -> None:
        if self._peers.pop(peer.peer_id, None) is not None:
            self._selector.unregister(peer.sock)
            peer.sock.close()
            peer.unsent.clear()
            self._inbox.append((peer.peer_id, PeerGone(reason)))
