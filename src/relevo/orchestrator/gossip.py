"""The connections between gateways over the same workers: one socket that each owns, one connection to every other.

Owns sockets and the moment at which news leaves: choices and endings at the end of the event loop's turn, progress a
little later, all of it in one message. What is told and believed is `policy.routing.gossip`'s. A follower that reads
too slowly is cut off and begins anew with a snapshot, so memory is bounded; nobody ever waits for another gateway,
except for the answer to a question, and for that with a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from relevo.core.errors import ProtocolError
from relevo.policy.routing.gossip import Batch, ChangeLog, PeerState
from relevo.telemetry.limited_log import LimitedLog
from relevo.wire import gossip as wire
from relevo.wire.framing import FrameDecoder, encode_frame
from relevo.wire.messages import Message
from relevo.wire.unix_socket import is_own_user, listen_unix

log = logging.getLogger("relevo.gateway")

PROGRESS_S = 0.02  # how long news may wait that no choice hangs on; arbitrary
MAX_UNREAD_BYTES = 8 * 1024 * 1024  # arbitrary; a follower this far behind begins anew
ANSWER_S = 1.0  # for an answer from another gateway; arbitrary, one that computes takes milliseconds
QUESTION_S = 5.0  # for the first word of a connection; arbitrary
MAX_CONNECTIONS = 256  # arbitrary: 63 followers, and a question each at a time
_CONNECT_RETRY_S = 0.05
_CONNECT_RETRY_MAX_S = 0.5
_READ_BYTES = 256 * 1024

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class GossipSource:
    """One model's part in the gossip."""

    change_log: ChangeLog
    peer_state: PeerState
    on_heard: Callable[[], None]  # what is known of the workers has changed

    def take(self, gateway_id: str, batch: Batch) -> bool:
        is_whole = self.peer_state.take(gateway_id, batch)
        self.on_heard()
        return is_whole

    def withdraw(self, gateway_id: str) -> None:
        self.peer_state.withdraw(gateway_id)
        self.on_heard()


@dataclass(frozen=True, slots=True)
class Peer:
    gateway_id: str
    path: str


@dataclass(slots=True, kw_only=True)
class Gossip:
    """`run` until cancelled. `answers` holds what this gateway is asked about."""

    path: str
    peers: Sequence[Peer]
    sources: Mapping[str, GossipSource]  # by model
    answers: Mapping[str, Callable[[], bytes]]
    on_taken: Callable[[str, int], None] = lambda key_id, num_tokens: None  # by a key, through another gateway
    on_spending: Callable[[str, wire.Spending], None] = lambda gateway_id, spending: None  # through another gateway
    on_lost: Callable[[str], None] = lambda gateway_id: None  # it is not heard any more
    running: Callable[[], dict[str, str]] = dict  # what a gateway that begins to listen is told of spending
    _taken: dict[str, int] = field(default_factory=dict)
    _connections: set[asyncio.StreamWriter] = field(default_factory=set)
    _running: dict[str, str] = field(default_factory=dict)
    _ended: list[wire.Ended] = field(default_factory=list)
    _followers: set[asyncio.StreamWriter] = field(default_factory=set)
    _limited_log: LimitedLog = field(default_factory=lambda: LimitedLog(log))
    _connected: set[str] = field(default_factory=set)
    _timer: asyncio.TimerHandle | None = None
    _is_due: bool = False  # a flush is scheduled for the end of this turn

    def news(self, is_urgent: bool) -> None:
        """Something changed in a change_log. Called from the event loop's thread."""
        if is_urgent and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._flush)
        elif not is_urgent and not self._is_due and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PROGRESS_S, self._flush)

    def taken(self, key_id: str, num_tokens: int, is_urgent: bool) -> None:
        """A key took tokens of its minute through this gateway, or gave them back."""
        if num_tokens:
            self._taken[key_id] = self._taken.get(key_id, 0) + num_tokens
            self.news(is_urgent)

    def spends(self, key_id: str, running: str) -> None:
        """What a key's requests that run here have used up to now."""
        self._running[key_id] = running
        self.news(False)

    def spent(self, ended: wire.Ended) -> None:
        self._ended.append(ended)
        self.news(True)

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

    async def ask(self, about: str) -> dict[str, bytes | None]:
        """What each other gateway answers, by its id; None: it does not answer within `ANSWER_S`."""
        answers = await asyncio.gather(*(self._ask(peer, about) for peer in self.peers))
        return {peer.gateway_id: answer for peer, answer in zip(self.peers, answers, strict=True)}

    @property
    def connected(self) -> frozenset[str]:
        """Whom we hear."""
        return frozenset(self._connected)

    # ---- telling -----------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._is_due = None, False
        messages: list[Message] = [wire.Taken(self._taken)] if self._taken else []
        if self._running or self._ended:
            messages.append(wire.Spending(self._running, tuple(self._ended)))
        self._taken, self._running, self._ended = {}, {}, []
        for model, teller in self.sources.items():
            batch = teller.change_log.batch()
            if batch is not None:
                messages.append(wire.Told(model, batch))
        if messages and self._followers:
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
                    self._flush()  # a snapshot is of what everybody was told
                    for model, teller in self.sources.items():
                        self._send(writer, encode_frame(wire.Told(model, teller.change_log.snapshot())))
                    self._send(writer, encode_frame(wire.Spending(self.running())))
                    self._followers.add(writer)
                    if await reader.read(1):  # it has nothing more to say: this is its end
                        raise ProtocolError("a follower said more than that it follows")
                case wire.Ask(about=about):
                    answer = self.answers.get(about)
                    if answer is not None:
                        writer.write(encode_frame(wire.Answer(answer())))
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
                self.on_lost(peer.gateway_id)
                for teller in self.sources.values():
                    teller.withdraw(peer.gateway_id)

    async def _listen(self, peer: Peer, reader: asyncio.StreamReader) -> None:
        """Until the connection ends, or something is missing. Raises OSError, ProtocolError."""
        decoder = wire.listener_side_decoder()
        while data := await reader.read(_READ_BYTES):
            for message in decoder.feed(data):
                self._hear(peer, message)
        raise ConnectionResetError("it closed the connection")

    def _hear(self, peer: Peer, message: wire.ToListener) -> None:
        match message:
            case wire.Told(model=model, batch=batch) if model in self.sources:
                if not self.sources[model].take(peer.gateway_id, batch):
                    raise ProtocolError("a batch is missing")
            case wire.Taken(num_tokens_by_key=taken):
                for key_id, num_tokens in taken.items():
                    self.on_taken(key_id, num_tokens)
            case wire.Spending():
                self.on_spending(peer.gateway_id, message)
            case _:
                raise ProtocolError(f"it sent a {type(message).__name__} that nobody asked for")

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
