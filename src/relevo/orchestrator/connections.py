"""Keeps a link to every member of a `Membership`: connects, receives, pings, and connects again.

Owns one task per member. Decides nothing but how long to wait before the next attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from relevo.core.errors import ProtocolError, RelevoError, WorkerLost
from relevo.core.ids import WorkerId
from relevo.orchestrator.member import Member
from relevo.orchestrator.membership import Membership
from relevo.orchestrator.ports import AwaitedLink
from relevo.policy.http.liveness import INTERVAL_S

log = logging.getLogger("relevo.gateway")

_CONNECT_RETRY_S = 0.02  # arbitrary: a worker that starts is found at once, for a ten-thousandth of a core each
_REMOTE_RETRY_S = 0.2  # arbitrary: an attempt costs two boxes a handshake
_AWAY_LOOK_S = 0.05  # arbitrary: how late it is noticed that a node is back
_REFUSED_RETRY_S = 0.5  # arbitrary: what does not fit stays so for a while


class Connections:
    """`run` until cancelled."""

    def __init__(self, membership: Membership, connect: Callable[[str], Awaitable[AwaitedLink]]) -> None:
        """`connect` raises OSError or WorkerLost where none answers, another RelevoError where it is none of ours."""
        self._membership = membership
        self._connect = connect
        self._tasks: asyncio.TaskGroup | None = None
        self.ready = asyncio.Event()  # every member has been there, see Membership.is_complete

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for member in self._membership.members:
                tasks.create_task(self._keep(member))
            await asyncio.get_running_loop().create_future()  # members may be added as long as this runs

    def add(self, member: Member) -> None:
        """One more worker, from now on."""
        self._membership.add(member)
        if self._tasks is not None:
            self._tasks.create_task(self._keep(member))

    def remove(self, worker_id: WorkerId) -> None:
        """See `Membership.remove`."""
        self._membership.remove(worker_id)

    async def _keep(self, member: Member) -> None:
        while member in self._membership:
            if member.is_away:
                await asyncio.sleep(_AWAY_LOOK_S)
                continue
            try:
                link = await self._connect(member.address)
            except (OSError, WorkerLost):
                await asyncio.sleep(_REMOTE_RETRY_S if member.is_remote else _CONNECT_RETRY_S)
                continue
            except RelevoError as error:
                self._membership.refused(member.worker_id, error.message)
                await asyncio.sleep(_REFUSED_RETRY_S)
                continue
            if member not in self._membership:  # removed meanwhile; its name may be another member's by now
                link.close()
                return
            if member.is_away:  # its node is gone meanwhile, whatever answers there
                link.close()
                continue
            try:
                await self._serve(member.worker_id, link)
            except Exception:  # it would end the other connections too
                log.exception("the connection to %s was ended, and is made again", member.worker_id)
                await asyncio.sleep(_REFUSED_RETRY_S)

    async def _serve(self, worker_id: WorkerId, link: AwaitedLink) -> None:
        """From Hello to the end of the link."""
        membership, reason = self._membership, "this gateway closed the connection"
        pinging = asyncio.create_task(self._ping(worker_id))
        try:
            if not membership.connected(worker_id, link):
                await asyncio.sleep(_REFUSED_RETRY_S)
                return
            while True:
                self._note_ready()
                membership.heard(worker_id, await link.receive())
        except (WorkerLost, ProtocolError) as error:
            reason = error.message
        finally:
            pinging.cancel()
            link.close()
            membership.lost(worker_id, reason)
            self._note_ready()  # another may have waited for this one

    def _note_ready(self) -> None:
        if self._membership.is_complete and not self.ready.is_set():
            self.ready.set()

    async def _ping(self, worker_id: WorkerId) -> None:
        """Every interval gives the event loop the chance to read what has arrived."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            if not self._membership.ping(worker_id):
                return
