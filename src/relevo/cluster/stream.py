"""Framed streams between nodes over mutual TLS 1.3, and the client that opens them. asyncio.

A stream has one purpose and two certificates. It is made again before either of them expires (`reconnect_at_s`), by the
one who opened it; what has expired or was revoked is ended by both (`stream_guard`). Does not know what is said.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import ssl
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from relevo.cluster.identity import NodeIdentity
from relevo.cluster.opening import ANSWER, MAX_OPENING_BYTES, RULES, Opening, Purpose, Refused, any_frames, refusal_of
from relevo.cluster.peer import NodeRole, Peer, PeerRefused, Refusal, peer_of
from relevo.cluster.sockets import addresses_of, connected_socket
from relevo.cluster.tls_errors import refusal
from relevo.core.errors import ProtocolError, WorkerLost
from relevo.core.host_port import HostPort
from relevo.policy.cluster.lifetimes import reconnect_at_s
from relevo.wire.framing import encode_frame, framed
from relevo.wire.message_stream import MessageStream

OPEN_TIMEOUT_S = 5.0  # of all of it: look-up, every address, handshake, answer
ADDRESS_TIMEOUT_S = 1.5  # arbitrary; of one address to take the connection

T = TypeVar("T")


class Ridden(Protocol):
    """A `carrier.Carrier`."""

    @property
    def peer(self) -> Peer | None: ...

    def start(self, protocol: asyncio.Protocol) -> None: ...


class FramedStream:
    """Both ends have one. `peer`: who is there; None for a stranger that enrols."""

    def __init__(
        self, messages: MessageStream[msgspec.Raw], peer: Peer | None, own: Peer | None, stream_id: str = ""
    ) -> None:
        self._messages = messages
        self._end_of_transport: Callable[[PeerRefused], None] | None = None
        self._first_peer = peer
        self._ridden: Ridden | None = None
        self.stream_id = stream_id  # both ends know it
        self.opened_at_s = time.time()
        self.reconnect_at_s = (
            reconnect_at_s(own.validity, peer.validity, self.opened_at_s, random.random()) if own and peer else None
        )

    @property
    def peer(self) -> Peer | None:
        """Who is at the other end, by the certificate of now."""
        return self._first_peer if self._ridden is None else self._ridden.peer

    @property
    def label(self) -> str:
        """The other end, as sentences call it."""
        return self._messages.peer

    @property
    def is_ended(self) -> bool:
        return self._messages.end is not None

    @property
    def local_address(self) -> HostPort:
        """Of this box as the other end reaches it, without translation in between."""
        return self._place("sockname")

    @property
    def remote_address(self) -> HostPort:
        return self._place("peername")

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message, without waiting. WorkerLost if the stream has ended, or ends now because the peer is too far
        behind; ProtocolError if the message is too large."""
        self._messages.send(encode_frame(message))

    async def receive(self, decoder: msgspec.msgpack.Decoder[T]) -> T:
        """The next message, in the order sent. WorkerLost after the last one, PeerRefused where the end was a refusal,
        ProtocolError for what is no message; then the stream has ended. For one task at a time."""
        frame = await self._messages.receive()
        try:
            return decoder.decode(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            end = ProtocolError(f"{self.label} sent a message that cannot be read: {error}")
            self._messages.finish(end, abort=True)
            raise end from error

    @property
    def num_unsent_bytes(self) -> int:
        return self._messages.num_unsent_bytes

    def close(self, reason: str = "this node closed the connection") -> None:
        """What was sent before still leaves. Idempotent."""
        self._messages.finish(WorkerLost(reason))

    def end(self, refused: PeerRefused) -> None:
        """At once, whatever is on its way: the peer may not hear or say any more."""
        self._messages.finish(refused, abort=True)
        if self._end_of_transport is not None:
            self._end_of_transport(refused)

    async def wait_until_old(self) -> None:
        """Until it should be made again; for ever on the side that took it. By the wall clock, as certificates are."""
        while self.reconnect_at_s is None or time.time() < self.reconnect_at_s:
            left_s = 3600.0 if self.reconnect_at_s is None else self.reconnect_at_s - time.time()
            await asyncio.sleep(min(max(left_s, 0.05), 30.0))  # clocks are set, machines are suspended

    def allow(self, max_frame_bytes: int) -> None:
        """How long a frame of the peer may be from here on."""
        self._messages.decoder.max_frame_bytes = max_frame_bytes

    def detach(self, end: Callable[[PeerRefused], None] | None = None) -> tuple[asyncio.Transport, bytes]:
        """The transport, for a protocol of its own, and what has been received and not been taken. The stream is of no
        use any more, but that its `end` is `end` of what has the transport now. WorkerLost if it has ended.
        Transport and bytes are to be carried by a `Carrier`, which outlives certificates."""
        self._messages.flush()
        transport = self._messages.transport
        if self._messages.end is not None or transport is None:
            raise WorkerLost(f"the connection to {self.label} has ended")
        received = b"".join(framed(bytes(raw)) for raw in self._messages.take_all()) + self._messages.decoder.rest()
        self._messages.transport = None
        self._end_of_transport = end or (lambda _refused: transport.abort())
        return transport, received

    def ride(self, ridden: Ridden) -> None:
        """Go on over what was made of this stream's own connection, and outlives it."""
        self._ridden, self.reconnect_at_s = ridden, None
        ridden.start(self._messages)

    def _place(self, which: str) -> HostPort:
        found = self._messages.transport.get_extra_info(which) if self._messages.transport is not None else None
        if not found:
            raise WorkerLost(f"the connection to {self.label} has ended")
        return HostPort(str(found[0]), int(found[1]))


async def open_stream(
    place: HostPort,
    purpose: Purpose,
    *,
    identity: NodeIdentity,
    about: msgspec.Struct | None = None,
    name: str | None = None,
    role: NodeRole | None = None,
    timeout_s: float = OPEN_TIMEOUT_S,
) -> FramedStream:
    """A stream that the other end has taken. `name`, `role`: what it has to be.

    OSError (TimeoutError included) if none answers there; PeerRefused if one of the two does not let the other in:
    nothing has been said then but who this node is.
    """
    return await open_with_context(
        place, purpose, context=identity.client_context(), identity=identity, about=about, name=name, role=role,
        timeout_s=timeout_s,
    )  # fmt: skip


async def open_with_context(
    place: HostPort,
    purpose: Purpose,
    *,
    context: ssl.SSLContext,
    identity: NodeIdentity | None = None,
    about: msgspec.Struct | None = None,
    name: str | None = None,
    role: NodeRole | None = None,
    timeout_s: float = OPEN_TIMEOUT_S,
    check: bool = True,
) -> FramedStream:
    """As `open_stream`; for a node that has no identity yet. Without `check` anything may be at the other end."""
    opening = Opening(purpose, b"" if about is None else msgspec.msgpack.encode(about), secrets.token_hex(16))
    errors: list[Exception] = []
    try:
        async with asyncio.timeout(timeout_s):
            for family, address in await addresses_of(place):
                try:
                    sock = await connected_socket(family, address, ADDRESS_TIMEOUT_S)
                    stream = await _secured(sock, place, context)
                    return await _opened(stream, opening, identity, name, role, check)
                except (OSError, PeerRefused, WorkerLost) as error:  # the next address may be the right one
                    errors.append(error)
    except TimeoutError as error:
        if not errors:
            raise TimeoutError(f"{place} did not answer within {timeout_s:g} s") from error
    refused = next((error for error in errors if isinstance(error, PeerRefused)), None)
    if refused is not None:
        raise refused
    raise OSError(f"{place} cannot be reached: {'; '.join(dict.fromkeys(map(_why, errors))) or 'it has no address'}")


class TlsMessages(MessageStream[msgspec.Raw]):
    """Knows what an end means that TLS has made."""

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):
            self.finish(refusal(exc, self.peer))
        else:
            super().connection_lost(exc)


async def _secured(sock: socket.socket, place: HostPort, context: ssl.SSLContext) -> TlsMessages:
    """After the handshake, of which this end has seen its part: whether it is taken, the other end says later."""
    stream = TlsMessages(str(place), any_frames(MAX_OPENING_BYTES))
    loop = asyncio.get_running_loop()
    try:
        await loop.create_connection(lambda: stream, sock=sock, ssl=context, server_hostname="")
    except ssl.SSLError as error:
        raise refusal(error, str(place)) from error
    return stream


async def _opened(
    messages: TlsMessages,
    opening: Opening,
    identity: NodeIdentity | None,
    name: str | None,
    role: NodeRole | None,
    check: bool,
) -> FramedStream:
    assert messages.transport is not None
    ssl_object: ssl.SSLObject = messages.transport.get_extra_info("ssl_object")
    try:
        peer = None
        if identity is not None:
            peer = identity.admit(ssl_object, name=name, role=role)
        elif check:
            peer = peer_of(ssl_object)
            if peer is None or (role is not None and peer.role is not role):
                raise PeerRefused(Refusal.ROLE, f"what answers at {messages.peer} is no {role}; name a head")
        stream = FramedStream(messages, peer, identity.own if identity is not None else None, opening.stream_id)
        stream.send(opening)
        answer = await stream.receive(ANSWER)
        if isinstance(answer, Refused):
            raise PeerRefused(refusal_of(answer.reason), f"{messages.peer} refused this node: {answer.message}")
        stream.allow(RULES[Purpose(opening.purpose)].max_frame_bytes)
    except BaseException:
        messages.finish(WorkerLost("this node gave up"), abort=True)
        raise
    return stream


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
