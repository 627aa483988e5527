"""The listening socket of the TCP transport and everything that is not yet known to belong to this server.

One thread serves all strangers without ever waiting for one: each has a fixed time for a handshake of a few messages of
fixed size. When there are too many, the one that has been there longest has to go, so that a flood of silent ones
delays no worker. A sender that has proved itself is handed on (`admit`) and costs nothing here any more.

Owns the listener, the strangers, their bounds and why they were refused. Does not know blocks, grants or frames.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from relevo.core.ids import WorkerRef
from relevo.core.kv import KVRefusal
from relevo.kv.transports.tcp_credentials import Credentials
from relevo.kv.transports.tcp_handshake import HandshakeRefused, ReceiverSide, Session, Verdict
from relevo.telemetry.limited_log import LimitedLog

MAX_STRANGERS = 64  # arbitrary; a worker's handshake is over in a millisecond
HANDSHAKE_TIMEOUT_S = 5.0  # arbitrary; a worker that waits for its core answers in less
ACCEPT_RETRY_S = 0.1  # arbitrary; after a connection that could not be accepted, for want of descriptors say
_log = logging.getLogger("relevo.kv")


@dataclass(slots=True, eq=False)
class _Stranger:
    sock: socket.socket
    handshake: ReceiverSide
    own: WorkerRef  # as who this worker talks to it
    deadline_s: float
    received: bytearray = field(default_factory=bytearray)

    @property
    def num_missing_bytes(self) -> int:
        """Of the message that it is sending: not one byte more is read."""
        return self.handshake.size_of(self.received) - len(self.received)


class TcpAcceptor:
    """Open from construction to `close`. Callbacks come from its one thread."""

    def __init__(
        self,
        listener: socket.socket,
        credentials: Credentials,
        own: WorkerRef,
        *,
        has_room: Callable[[], bool],
        admit: Callable[[socket.socket, Session, WorkerRef], None],
        on_stale: Callable[[], None] = lambda: None,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        """Owns the listener from here on; `admit` owns the socket it is given. `has_room`: whether it would take one
        more. `on_stale`: a sender of this server wanted an incarnation that is gone."""
        self._credentials = credentials
        self.own = own  # whom a sender has to want; may be replaced
        self._has_room, self._admit, self._on_stale = has_room, admit, on_stale
        self._timeout_s = handshake_timeout_s
        self._strangers: dict[socket.socket, _Stranger] = {}  # those that came first are first
        self._lock = threading.Lock()
        self._num_refused: dict[KVRefusal, int] = {}
        self._limited_log = LimitedLog(_log)
        self._listener = listener
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._closing = threading.Event()
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="kv-accept", daemon=True)
        self._thread.start()

    @property
    def num_refused(self) -> dict[KVRefusal, int]:
        """Connections refused since the start."""
        with self._lock:
            return dict(self._num_refused)

    @property
    def num_strangers(self) -> int:
        return len(self._strangers)

    def refused(self, reason: KVRefusal, message: str) -> None:
        """Count one, and say so where that has not been said for a while. From any thread."""
        with self._lock:
            self._num_refused[reason] = self._num_refused.get(reason, 0) + 1
        self._limited_log.warning(reason, f"a KV connection was refused: {message}")

    def close(self, timeout_s: float) -> None:
        """From here on no sender comes in, and strangers are sent away. Idempotent."""
        self._closing.set()
        with contextlib.suppress(OSError):  # closed already
            self._wake_in.send(b"w")
        self._thread.join(timeout_s)
        self._wake_in.close()

    # ---- the acceptor's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                for key, _ in self._selector.select(self._patience_s()):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.data, _Stranger) and key.data.sock in self._strangers:
                        self._hear(key.data)
                self._send_silent_away()
        finally:
            for sock in [*self._strangers, self._listener, self._wake_out]:
                sock.close()
            self._selector.close()

    def _patience_s(self) -> float | None:
        """Until the stranger that has been there longest has to go: all have the same time."""
        oldest = next(iter(self._strangers.values()), None)
        return None if oldest is None else max(0.0, oldest.deadline_s - time.monotonic())

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            self._limited_log.warning("accept", f"a KV connection could not be accepted: {error}")
            self._closing.wait(ACCEPT_RETRY_S)
            return
        sock.setblocking(False)
        if len(self._strangers) >= MAX_STRANGERS:
            longest = next(iter(self._strangers.values()))
            self._refuse(longest, KVRefusal.LIMIT, f"{MAX_STRANGERS} others have not proved themselves either")
        own = self.own
        stranger = _Stranger(sock, self._credentials.as_receiver(own), own, time.monotonic() + self._timeout_s)
        self._strangers[sock] = stranger
        self._selector.register(sock, selectors.EVENT_READ, stranger)

    def _hear(self, stranger: _Stranger) -> None:
        try:
            data = stranger.sock.recv(stranger.num_missing_bytes)
            if not data:
                raise HandshakeRefused(KVRefusal.PROTOCOL, "it left before it had proved itself")
            stranger.received += data
            if stranger.num_missing_bytes == 0:  # of a record of TLS first the head is, then the rest
                self._take(stranger, bytes(stranger.received))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._refuse(stranger, KVRefusal.PROTOCOL, error.strerror or str(error))
        except HandshakeRefused as refusal:
            self._refuse(stranger, refusal.reason, str(refusal))

    def _take(self, stranger: _Stranger, message: bytes) -> None:
        stranger.received.clear()
        handshake = stranger.handshake
        answer = handshake.take(message, self._has_room)
        if handshake.verdict is Verdict.OTHER_INCARNATION:
            self._on_stale()  # before the sender hears of it, and asks how many there were
        if answer and stranger.sock.send(answer) != len(answer):  # far below what a socket takes at once
            raise HandshakeRefused(KVRefusal.TIMEOUT, "it did not take what a handshake says")
        match handshake.verdict:
            case None:
                return
            case Verdict.OTHER_INCARNATION:
                raise HandshakeRefused(KVRefusal.INCARNATION, "it wanted another incarnation of this worker")
            case Verdict.BUSY:
                raise HandshakeRefused(KVRefusal.LIMIT, "as many senders as may be are connected")
            case Verdict.NOT_ADMITTED:
                raise HandshakeRefused(KVRefusal.CERTIFICATE, "its certificate has expired or was revoked")
        self._forget(stranger)
        stranger.sock.setblocking(True)
        self._admit(stranger.sock, handshake.session, stranger.own)

    def _send_silent_away(self) -> None:
        now_s = time.monotonic()
        for stranger in list(self._strangers.values()):
            if stranger.deadline_s > now_s:
                return
            self._refuse(stranger, KVRefusal.TIMEOUT, f"it had not proved itself after {self._timeout_s:g} s")

    def _refuse(self, stranger: _Stranger, reason: KVRefusal, message: str) -> None:
        self._forget(stranger)
        self.refused(reason, message)
        with contextlib.suppress(OSError):
            stranger.sock.send(stranger.handshake.farewell)
        stranger.sock.close()

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.sock]
        self._selector.unregister(stranger.sock)
