"""Both ends of the feed from a head's node process to the gateways of its box: see `cluster.feed_messages`. asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from relevo.cluster.feed_messages import ASKED, ROSTER, DrainRemote, KillRemote, Roster
from relevo.core.errors import RelevoError, WorkerLost
from relevo.wire.framing import FrameDecoder, encode_frame
from relevo.wire.message_stream import MessageStream
from relevo.wire.unix_socket import is_own_user, listen_unix

log = logging.getLogger("relevo.cluster")

_RETRY_S = 0.2  # arbitrary: a node process that is started again is followed at once

Asked = KillRemote | DrainRemote


class FeedServer:
    """In the node process. `tell` says the newest roster to all that follow."""

    def __init__(self, roster: Callable[[], Roster], on_asked: Callable[[Asked], None]) -> None:
        self._roster, self._on_asked = roster, on_asked
        self._followers: set[MessageStream[Asked]] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, path: str) -> None:
        """Raises OSError."""
        self._server = await asyncio.get_running_loop().create_unix_server(self._accept, sock=listen_unix(path))

    def tell(self) -> None:
        if self._followers:
            frame = encode_frame(self._roster())
            for follower in list(self._followers):
                with contextlib.suppress(RelevoError):
                    follower.send(frame)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for follower in self._followers:
            follower.finish(WorkerLost("the node process ends"))

    def _accept(self) -> MessageStream[Asked]:
        stream: MessageStream[Asked] = MessageStream("a gateway", FrameDecoder(ASKED))
        task = asyncio.get_running_loop().create_task(self._serve(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream

    async def _serve(self, stream: MessageStream[Asked]) -> None:
        await asyncio.sleep(0)  # the connection is made meanwhile
        transport = stream.transport
        sock = transport.get_extra_info("socket") if transport is not None else None
        if sock is None or not is_own_user(sock.fileno()):
            stream.finish(WorkerLost("a process of another user"), abort=True)
            return
        self._followers.add(stream)
        try:
            stream.send(encode_frame(self._roster()))
            while True:
                self._on_asked(await stream.receive())
        except RelevoError:
            pass  # it left
        finally:
            self._followers.discard(stream)
            stream.finish(WorkerLost("this node closed it"))


class FeedClient:
    """In a gateway process. `run` until cancelled."""

    def __init__(self, path: str, on_roster: Callable[[Roster], None]) -> None:
        self._path, self._on_roster = path, on_roster
        self._stream: MessageStream[Roster] | None = None

    def ask(self, asked: Asked) -> bool:
        """False: the node process is not there."""
        if self._stream is None:
            return False
        try:
            self._stream.send(encode_frame(asked))
        except RelevoError:
            return False
        return True

    async def run(self) -> None:
        while True:
            stream: MessageStream[Roster] = MessageStream("the node process of this box", FrameDecoder(ROSTER))
            try:
                await asyncio.get_running_loop().create_unix_connection(lambda s=stream: s, self._path)  # type: ignore[misc]
                self._stream = stream
                number = 0
                while True:
                    roster = await stream.receive()
                    if roster.number > number:
                        number = roster.number
                        self._on_roster(roster)
            except (OSError, RelevoError) as error:
                log.debug("no feed: %s", error)
            finally:
                self._stream = None
                stream.finish(WorkerLost("this gateway closed it"))
            await asyncio.sleep(_RETRY_S)
