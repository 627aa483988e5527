"""The control port of a node: takes connections, lets nodes of the cluster in, hands each to what its purpose needs.

All strangers are served without waiting for one: each has a fixed time for handshake and first words, which are of
bounded size. When there are too many, one has to go: of the address that most of them come from, the one that has been
there longest. So a flood of silent ones delays no node.

Owns the listening sockets, the strangers, their bounds, and why they were refused. Knows no purpose's messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from relevo.cluster.identity import NodeIdentity
from relevo.cluster.opening import (
    MAX_OPENING_BYTES,
    OPENING,
    RULES,
    STREAM_VERSION,
    Opened,
    Opening,
    Purpose,
    Refused,
    any_frames,
)
from relevo.cluster.peer import Peer, PeerRefused, Refusal, peer_of
from relevo.cluster.sockets import close_all, listening_sockets, watch_silence
from relevo.cluster.stream import FramedStream, TlsMessages
from relevo.cluster.stream_guard import StreamGuard
from relevo.cluster.tls_errors import refusal
from relevo.core.errors import ProtocolError, WorkerLost
from relevo.core.host_port import HostPort
from relevo.telemetry.limited_log import LimitedLog

MAX_STRANGERS = 64  # arbitrary; a node's handshake is over in some round trips
MAX_STREAMS = 4096  # arbitrary; of nodes that were let in
STRANGER_TIMEOUT_S = 5.0  # arbitrary; as long as the one who connects waits
_ACCEPTS_PER_TURN = 16  # arbitrary: streams that are open get their turn
_ACCEPT_RETRY_S = 0.1  # arbitrary; after the system had no descriptor for a connection
log = logging.getLogger("relevo.cluster")

Handler = Callable[[FramedStream, bytes], Awaitable[None]]


@dataclass(eq=False, slots=True)
class _Stranger:
    address: str
    task: asyncio.Task[None] | None = None


class StreamServer:
    """`listen`, then `close`. `handlers`: by purpose; each has the stream until it returns, then it is closed. Its
    second argument is what the opening said about the purpose, as bytes of msgpack."""

    def __init__(
        self,
        identity: NodeIdentity,
        guard: StreamGuard,
        handlers: Mapping[Purpose, Handler],
        *,
        stranger_timeout_s: float = STRANGER_TIMEOUT_S,
    ) -> None:
        self._identity = identity
        self._guard = guard
        self._handlers = handlers
        self._strangers_may_enrol = any(RULES[purpose].is_for_strangers for purpose in handlers)
        self._stranger_timeout_s = stranger_timeout_s
        self._strangers: dict[_Stranger, None] = {}  # those that came first are first
        self._streams: set[asyncio.Task[None]] = set()
        self._sockets: list[socket.socket] = []
        self._retries: dict[int, asyncio.TimerHandle] = {}
        self._num_refused: Counter[Refusal] = Counter()
        self._limited_log = LimitedLog(log)
        self.port = 0

    @property
    def num_refused(self) -> dict[Refusal, int]:
        """Connections refused since the start."""
        return dict(self._num_refused)

    @property
    def num_strangers(self) -> int:
        return len(self._strangers)

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    def listen(self, place: HostPort) -> None:
        """On the running loop. Raises StartError."""
        self._sockets = listening_sockets(place)
        self.port = self._sockets[0].getsockname()[1]
        for listening in self._sockets:
            self._watch(listening)

    async def close(self) -> None:
        """Nothing comes in from here on, and what is there ends. Idempotent."""
        for handle in self._retries.values():
            handle.cancel()
        for listening in self._sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        close_all(self._sockets)
        self._sockets = []
        tasks = [each.task for each in self._strangers if each.task is not None] + list(self._streams)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def refused(self, reason: Refusal, message: str) -> None:
        """Count one, and say so where that has not been said for a while."""
        self._num_refused[reason] += 1
        self._limited_log.warning(reason, f"a connection to the control port was refused: {message}")

    # ---- accepting ---------------------------------------------------------------------------------------------------

    def _watch(self, listening: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # the socket stays readable, so that the loop would do nothing else
                self._limited_log.warning("accept", f"a connection could not be accepted: {error}")
                loop, number = asyncio.get_running_loop(), listening.fileno()
                loop.remove_reader(number)
                self._retries[number] = loop.call_later(_ACCEPT_RETRY_S, self._watch, listening)
                return
            self._take(sock, str(address[0]))

    def _take(self, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # it has gone already
            watch_silence(sock)
        if len(self._strangers) >= MAX_STRANGERS:
            self._send_one_away()
        stranger = _Stranger(address)
        self._strangers[stranger] = None
        stranger.task = asyncio.get_running_loop().create_task(self._serve(stranger, sock))

    def _send_one_away(self) -> None:
        crowd, _ = Counter(each.address for each in self._strangers).most_common(1)[0]
        longest = next(each for each in self._strangers if each.address == crowd)
        del self._strangers[longest]
        self.refused(Refusal.LIMIT, f"{MAX_STRANGERS} others have not said who they are either")
        if longest.task is not None:
            longest.task.cancel()

    # ---- one connection ----------------------------------------------------------------------------------------------

    async def _serve(self, stranger: _Stranger, sock: socket.socket) -> None:
        messages = TlsMessages(f"the node at {stranger.address}", any_frames(MAX_OPENING_BYTES))
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(self._stranger_timeout_s):
                stream, opening = await self._met(messages, sock)
            self._strangers.pop(stranger, None)
            self._streams.add(task)
            with self._guard.watching(stream):
                await self._handlers[Purpose(opening.purpose)](stream, opening.about)
        except PeerRefused as error:
            self.refused(error.reason, error.message)
        except TimeoutError:
            seconds = f"{self._stranger_timeout_s:g} s"
            self.refused(Refusal.TIMEOUT, f"{stranger.address} had not said who it is after {seconds}")
        except ProtocolError as error:
            self.refused(Refusal.PROTOCOL, error.message)
        except (OSError, WorkerLost) as error:
            if stranger in self._strangers:
                self.refused(Refusal.PROTOCOL, f"{stranger.address} left before it had said who it is: {error}")
        except Exception:
            self._limited_log.failure("handler", f"a connection of {messages.peer} was ended by a fault")
        finally:
            self._strangers.pop(stranger, None)
            self._streams.discard(task)
            messages.finish(WorkerLost("this node closed the connection"))

    async def _met(self, messages: TlsMessages, sock: socket.socket) -> tuple[FramedStream, Opening]:
        """Who it is and what it wants, which it may. Raises PeerRefused, WorkerLost, ProtocolError, OSError."""
        context = self._identity.server_context(strangers_may_enrol=self._strangers_may_enrol)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: messages, sock, ssl=context, ssl_handshake_timeout=self._stranger_timeout_s
            )
        except ssl.SSLError as error:
            raise refusal(error, messages.peer) from error
        assert messages.transport is not None
        peer = peer_of(messages.transport.get_extra_info("ssl_object"))
        stream = FramedStream(messages, peer, self._identity.own)
        opening = await stream.receive(OPENING)
        stream.stream_id = opening.stream_id
        try:
            purpose = self._judged(opening, peer)
        except PeerRefused as error:
            stream.send(Refused(error.reason, error.message))
            raise
        stream.allow(RULES[purpose].max_frame_bytes)
        stream.send(Opened())
        return stream, opening

    def _judged(self, opening: Opening, peer: Peer | None) -> Purpose:
        if opening.version != STREAM_VERSION:
            raise PeerRefused(
                Refusal.PROTOCOL,
                f"version {opening.version} of streams is spoken there and {STREAM_VERSION} here; install the same "
                "release on both",
            )
        purpose = Purpose(opening.purpose) if opening.purpose in list(Purpose) else None
        if purpose is None or purpose not in self._handlers:
            known = ", ".join(self._handlers)
            raise PeerRefused(Refusal.PROTOCOL, f"{opening.purpose[:40]!r} is not served here, but {known}")
        rule = RULES[purpose]
        if peer is None:
            if not rule.is_for_strangers:
                raise PeerRefused(Refusal.CERTIFICATE, f"{purpose} needs a certificate; join the cluster first")
            return purpose
        self._identity.check(peer, role=rule.caller)
        if len(self._streams) >= MAX_STREAMS:
            raise PeerRefused(Refusal.LIMIT, f"{MAX_STREAMS} connections of nodes are open already")
        return purpose
