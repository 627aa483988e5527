"""The connections between gateways over the same workers: one socket that each owns, one connection to every other.

Owns sockets. What is told, when, and what is believed is `orchestrator.gossip`'s. A follower that reads too slowly is
cut off and begins anew with a snapshot, so memory is bounded; no gateway ever waits for another one, except for the
answer to a question, and for that with a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from relevo.core.errors import ProtocolError
from relevo.orchestrator.gossip import Gossip
from relevo.telemetry.limited_log import LimitedLog
from relevo.wire import gossip as wire
from relevo.wire.framing import FrameDecoder, encode_frame
from relevo.wire.messages import Message
from relevo.wire.unix_socket import is_own_user, listen_unix

log = logging.getLogger("relevo.gateway")

MAX_UNREAD_BYTES = 8 * 1024 * 1024  # arbitrary; a follower this far behind begins anew
ANSWER_S = 1.0  # for an answer from another gateway; arbitrary, one that computes takes milliseconds
QUESTION_S = 5.0  # for the first word of a connection; arbitrary
MAX_CONNECTIONS = 256  # arbitrary: 63 followers, and a question each at a time
_CONNECT_RETRY_S = 0.05
_CONNECT_RETRY_MAX_S = 0.5
_READ_BYTES = 256 * 1024

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Peer:
    gateway_id: str
    path: str


@dataclass(slots=True, kw_only=True)
class GossipSockets:
    """`run` until cancelled. `answers` holds what this gateway is asked about."""

    gossip: Gossip
    path: str
    peers: Sequence[Peer]
    answers: Mapping[str, Callable[[], bytes]]
    searches: Mapping[str, Callable[[str], Awaitable[bytes]]] = field(default_factory=dict)  # for what says more
    _connections: set[asyncio.StreamWriter] = field(default_factory=set)
    _followers: set[asyncio.StreamWriter] = field(default_factory=set)
    _limited_log: LimitedLog = field(default_factory=lambda: LimitedLog(log))
    _connected: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.gossip.tell = self._tell

    async def run(self) -> None:
        server = await asyncio.start_unix_server(self._serve, sock=self._listener())
        async with server, asyncio.TaskGroup() as group:
            for peer in self.peers:
                group.create_task(self._follow(peer))

    def _listener(self) -> socket.socket:
        """At the path of a former incarnation, if there was one."""
        Path(self.path).unlink(missing_ok=True)
        listener = listen_unix(self.path)
        listener.setblocking(False)
        return listener

    async def search(self, name: str, asked: str) -> dict[str, bytes | None]:
        """The same of one of the `searches`."""
        return await self.ask(f"{name}\n{asked}")

    async def ask(self, about: str) -> dict[str, bytes | None]:
        """What each other gateway answers, by its id; None: it does not answer within `ANSWER_S`."""
        answers = await asyncio.gather(*(self._ask(peer, about) for peer in self.peers))
        return {peer.gateway_id: answer for peer, answer in zip(self.peers, answers, strict=True)}

    @property
    def connected(self) -> frozenset[str]:
        """The gateways that are heard."""
        return frozenset(self._connected)

    # ---- telling -----------------------------------------------------------------------------------------------------

    def _tell(self, messages: Sequence[Message]) -> None:
        if self._followers:
            frame = b"".join(encode_frame(message) for message in messages)
            for follower in tuple(self._followers):
                self._send(follower, frame)

    def _send(self, follower: asyncio.StreamWriter, frame: bytes) -> None:
        if follower.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._followers.discard(follower)
            follower.transport.abort()
        else:
            follower.write(frame)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._may_stay(writer):
            writer.close()
            return
        self._connections.add(writer)
        try:
            async with asyncio.timeout(QUESTION_S):
                said = await _receive(reader, wire.source_side_decoder())
            match said:
                case wire.Follow():
                    self._send(writer, b"".join(encode_frame(message) for message in self.gossip.snapshot()))
                    self._followers.add(writer)
                    if await reader.read(1):  # it has nothing more to say: this is its end
                        raise ProtocolError("a follower said more than that it follows")
                case wire.Ask(about=about):
                    body = await self._answer(about)
                    if body is not None:
                        writer.write(encode_frame(wire.Answer(body)))
                        await writer.drain()
        except ProtocolError as error:
            self._limited_log.warning("protocol", f"a connection was refused: {error.message}")
        except OSError as error:  # TimeoutError too
            log.debug("a gateway that listened is gone: %s", error)
        except asyncio.CancelledError:
            pass  # the process ends; streams of older Pythons would log it as a failure
        finally:
            self._connections.discard(writer)
            self._followers.discard(writer)
            writer.close()

    async def _answer(self, about: str) -> bytes | None:
        answer = self.answers.get(about)
        if answer is not None:
            return answer()
        name, _, asked = about.partition("\n")
        search = self.searches.get(name)
        return await search(asked) if search is not None else None

    def _may_stay(self, writer: asyncio.StreamWriter) -> bool:
        """Gateways run as one user, and each connects to each other one with a follower and its questions."""
        if not is_own_user(writer.get_extra_info("socket").fileno()):
            self._limited_log.warning("user", "a connection was refused: a process of another user connected")
            return False
        if len(self._connections) >= MAX_CONNECTIONS:
            self._limited_log.warning("limit", f"a connection was refused: {MAX_CONNECTIONS} are connected already")
            return False
        return True

    # ---- listening ---------------------------------------------------------------------------------------------------

    async def _follow(self, peer: Peer) -> None:
        retry_s = _CONNECT_RETRY_S
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(peer.path)
            except OSError:
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _CONNECT_RETRY_MAX_S)
                continue
            retry_s = _CONNECT_RETRY_S
            try:
                writer.write(encode_frame(wire.Follow()))
                self._connected.add(peer.gateway_id)
                await self._listen(peer, reader)
            except (OSError, ProtocolError) as error:
                log.warning("%s is not heard any more: %s", peer.gateway_id, error)
                await asyncio.sleep(_CONNECT_RETRY_S)
            finally:
                self._connected.discard(peer.gateway_id)
                writer.close()
                self.gossip.lost(peer.gateway_id)

    async def _listen(self, peer: Peer, reader: asyncio.StreamReader) -> None:
        """Until the connection ends, or something is missing. Raises OSError, ProtocolError."""
        decoder = wire.listener_side_decoder()
        while data := await reader.read(_READ_BYTES):
            for message in decoder.feed(data):
                self.gossip.hear(peer.gateway_id, message)
        raise ConnectionResetError("it closed the connection")

    async def _ask(self, peer: Peer, about: str) -> bytes | None:
        with contextlib.suppress(OSError, ProtocolError):  # TimeoutError is an OSError; all of them: no answer
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(peer.path)
                try:
                    writer.write(encode_frame(wire.Ask(about)))
                    answer = await _receive(reader, wire.listener_side_decoder())
                finally:
                    writer.close()
                return answer.body if isinstance(answer, wire.Answer) else None
        return None


async def _receive(reader: asyncio.StreamReader, decoder: FrameDecoder[M]) -> M | None:
    """The only message; None if the connection ends before it. Raises OSError, ProtocolError."""
    while data := await reader.read(_READ_BYTES):
        messages = decoder.feed(data)
        if len(messages) > 1:
            raise ProtocolError("it said more than one thing at once")
        if messages:
            return messages[0]
    return None
