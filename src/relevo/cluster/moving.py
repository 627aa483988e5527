"""Moves carriers to new connections before the certificates of the old ones expire: both ends of it.

The one who opened a connection moves it (`Mover`); the one who took it finds what moves by the id of the connection
that it began with (`Moves`). Does not know what is carried.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec

from relevo.cluster.carrier import Carrier
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.opening import Purpose, Refused, refusal_of
from relevo.cluster.peer import PeerRefused, Refusal
from relevo.cluster.stream import FramedStream, open_stream
from relevo.cluster.stream_guard import StreamGuard
from relevo.core.errors import RelevoError
from relevo.core.host_port import HostPort
from relevo.telemetry.limited_log import LimitedLog

_RETRY_S = 2.0  # arbitrary; a quarter of a life is left when moving begins
_LOOK_S = 30.0  # the wall clock may be set
log = logging.getLogger("relevo.cluster")


class Move(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What began as the connection of that id goes on over this one."""

    stream_id: str


class Moving(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """It does: raw bytes follow from both ends, counts first."""


_MOVE: msgspec.msgpack.Decoder[Move] = msgspec.msgpack.Decoder(Move)
_ANSWER: msgspec.msgpack.Decoder[Moving | Refused] = msgspec.msgpack.Decoder(Moving | Refused)


class Moves:
    """Of the end that takes connections. `serve` is the handler of `Purpose.MOVE`."""

    def __init__(self) -> None:
        self._carriers: dict[tuple[str, str], Carrier] = {}  # by the other end, and its first connection

    def keep(self, stream: FramedStream) -> None:
        """It lasts longer than its certificates. Before anything is sent over it, and where the other end does so,
        too."""
        stream.ride(self.carrier(stream))

    def carrier(self, stream: FramedStream) -> Carrier:
        """Raw bytes over this stream, and over those that it moves to."""
        assert stream.peer is not None
        key = (stream.peer.enrolment_id, stream.stream_id)

        def forget() -> None:
            self._carriers.pop(key, None)

        carrier = self._carriers[key] = Carrier(stream, forget)
        return carrier

    @property
    def num_carriers(self) -> int:
        return len(self._carriers)

    async def serve(self, stream: FramedStream, about: bytes) -> None:
        try:
            move = _MOVE.decode(about)
        except msgspec.MsgspecError as error:
            raise PeerRefused(Refusal.PROTOCOL, f"a move cannot be read: {error}") from error
        carrier = self._carriers.get((stream.peer.enrolment_id, move.stream_id)) if stream.peer is not None else None
        if carrier is None or not carrier.can_move:
            stream.send(Refused(Refusal.INCARNATION, "what was to move has ended"))
            return
        stream.send(Moving())
        over = carrier.move_to(stream, speaks_first=False)
        try:
            await asyncio.shield(over)
        except asyncio.CancelledError:
            carrier.abort()
            raise


class Mover:
    """Of the end that opens connections."""

    def __init__(self, identity: NodeIdentity, guard: StreamGuard) -> None:
        """`guard` has to run: it ends what leads to a node that is revoked."""
        self._identity = identity
        self._guard = guard
        self._limited_log = LimitedLog(log)
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, stream: FramedStream, place: HostPort, name: str) -> None:
        """As `Moves.keep`, at the end that has opened it."""
        carrier = self.carry(stream, place, name)
        stream.ride(carrier)

    def carry(self, stream: FramedStream, place: HostPort, name: str) -> Carrier:
        """`place`, `name`: where the other end is reached again, and which node it is."""
        over = asyncio.Event()
        carrier = Carrier(stream, over.set)
        self._guard.add(carrier)
        assert stream.reconnect_at_s is not None, "both ends have a certificate"
        move = Move(stream.stream_id)
        keeping = self._keep_young(carrier, move, stream.reconnect_at_s, place, name, over)
        task = asyncio.get_running_loop().create_task(keeping)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return carrier

    async def _keep_young(
        self, carrier: Carrier, move: Move, move_at_s: float, place: HostPort, name: str, over: asyncio.Event
    ) -> None:
        try:
            while not await _is_over_by(over, move_at_s):
                if not carrier.can_move:
                    move_at_s = time.time() + _RETRY_S
                    continue
                try:
                    newer = await self._agreed(place, name, move)
                except (OSError, RelevoError) as error:
                    self._limited_log.warning("move", f"a link to node {name} could not be renewed yet: {error}")
                    move_at_s = time.time() + _RETRY_S
                    continue
                if carrier.can_move:
                    carrier.move_to(newer, speaks_first=True)
                    move_at_s = newer.reconnect_at_s or move_at_s
                else:
                    newer.close()
        finally:
            self._guard.remove(carrier)

    async def _agreed(self, place: HostPort, name: str, move: Move) -> FramedStream:
        stream = await open_stream(place, Purpose.MOVE, identity=self._identity, about=move, name=name)
        try:
            answer = await stream.receive(_ANSWER)
            if isinstance(answer, Refused):
                raise PeerRefused(refusal_of(answer.reason), answer.message)
        except BaseException:
            stream.close()
            raise
        return stream


async def _is_over_by(over: asyncio.Event, moment_s: float) -> bool:
    """By the wall clock, as certificates are: clocks are set, machines are suspended."""
    while (left_s := moment_s - time.time()) > 0 and not over.is_set():
        try:
            async with asyncio.timeout(min(left_s, _LOOK_S)):
                await over.wait()
        except TimeoutError:
            pass
    return over.is_set()
