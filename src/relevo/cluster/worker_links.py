"""Links of gateways on other boxes to the workers of this one: asked for over the control port, then spliced with the
worker's own socket, so that a step loop knows nothing of certificates.

Owns which links are open, by head and by gateway. A gateway's older link to a worker ends before its next begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from relevo.cluster.member_messages import LINK_TO, LinkTo
from relevo.cluster.moving import Moves
from relevo.cluster.own_workers import OwnWorkers
from relevo.cluster.splice import Splice
from relevo.cluster.stream import FramedStream
from relevo.core.errors import WorkerLost
from relevo.policy.cluster.epochs import Session
from relevo.wire.address import unix_path
from relevo.wire.message_stream import MAX_UNSENT_BYTES

MAX_TO_GATEWAY_BYTES = 1024 * 1024  # arbitrary; then the worker keeps what follows, and counts it
log = logging.getLogger("relevo.cluster")


class WorkerLinks:
    def __init__(self, workers: OwnWorkers, may_serve: Callable[[str, Session], bool], moves: Moves) -> None:
        """`may_serve(head, session)`: does the node have a lease of that session now? `moves`: of its control port."""
        self._workers = workers
        self._may_serve = may_serve
        self._moves = moves
        self._open: dict[tuple[str, str, str], Splice] = {}  # by head, gateway, worker

    @property
    def num_open(self) -> int:
        return len(self._open)

    def close(self, head: str | None = None) -> None:
        """Of that head's gateways, or all."""
        for key, splice in list(self._open.items()):
            if head is None or key[0] == head:
                splice.end()

    async def serve(self, stream: FramedStream, about: bytes) -> None:
        """Until the link ends. A handler of `cluster.stream_server`."""
        assert stream.peer is not None
        try:
            wanted = LINK_TO.decode(about)
        except msgspec.MsgspecError:
            return
        head, session = stream.peer.name, Session(wanted.epoch, wanted.session)
        address = self._workers.address_of(wanted.worker_id)
        if address is None or not self._may_serve(head, session):
            return
        key = (head, wanted.gateway, wanted.worker_id)
        older = self._open.get(key)
        if older is not None:
            older.end()
        splice = self._open[key] = Splice(lambda: self._may_serve(head, session))
        try:
            await self._splice(stream, splice, address, wanted)
        finally:
            splice.end()
            if self._open.get(key) is splice:
                del self._open[key]

    async def _splice(self, stream: FramedStream, splice: Splice, address: str, wanted: LinkTo) -> None:
        """The worker speaks first, as soon as it has taken the connection: the gateway's end is there by then."""
        try:
            carrier = self._moves.carrier(stream)
            carrier.pause_reading()
            carrier.set_write_buffer_limits(MAX_TO_GATEWAY_BYTES)
            carrier.start(splice.near)
            worker, _ = await asyncio.get_running_loop().create_unix_connection(lambda: splice.far, unix_path(address))
            worker.set_write_buffer_limits(MAX_UNSENT_BYTES)
        except (OSError, WorkerLost) as error:
            log.info("no link to %s for %s: %s", wanted.worker_id, wanted.gateway, error)
            return
        carrier.resume_reading()
        await splice.ended
