"""Which workers are there: one connection each, who is ready, what their load is.

Owns connections and the rule by which a worker is let in. A worker that joins may be a new incarnation of one that
died while another worker was still writing into its blocks. It gets traffic only when every other worker has
acknowledged a fence, or is gone: then nobody writes under the old incarnation any more (docs/architecture.md, 4). The
same fence frees the rooms that a gateway left behind when it died: every gateway that lives asks, whoever is answered
by all releases them.

A worker is alive while its step loop answers. One that is stopped or wedged keeps its connection but says nothing: it
is out of rotation then, and the supervisor is asked to end it. Its requests move on when it is gone, not before: until
then it might still write.

Does not know requests: messages about them go to the `MessageSink`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from relevo.core.errors import LayoutMismatch, ProtocolError, WorkerLost
from relevo.core.events import StepCounters, WorkerLoad
from relevo.core.handoff import KVPath
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.orchestrator.ports import WorkerStatus
from relevo.policy.http.liveness import INTERVAL_S, Liveness
from relevo.policy.routing.kv_path import kv_path
from relevo.wire import messages as wire
from relevo.wire.client import WorkerConnection

log = logging.getLogger("relevo.gateway")

_CONNECT_RETRY_S = 0.02  # arbitrary: a worker that starts is found at once, for a ten-thousandth of a core each
_REFUSED_RETRY_S = 0.5  # arbitrary: what does not fit stays so for a while


class MessageSink(Protocol):
    """Whoever owns the requests."""

    def on_message(self, worker: WorkerRef, message: wire.ToGateway) -> None: ...

    def on_worker_ready(self, worker: WorkerRef) -> None: ...

    def on_worker_gone(self, worker: WorkerRef) -> None: ...

    def on_worker_silent(self, worker: WorkerRef, reason: str) -> None:
        """It must be ended; `on_worker_gone` follows when it is."""
        ...


@dataclass(slots=True)
class Member:
    """One configured worker, whether or not it is there."""

    worker_id: WorkerId
    role: str
    address: str
    connection: WorkerConnection | None = None
    hello: wire.Hello | None = None  # of the present or last incarnation
    load: WorkerLoad = field(default_factory=WorkerLoad)
    counters: StepCounters = field(default_factory=StepCounters)
    is_ready: bool = False
    why_not_ready: str = "starting"
    unfenced: set[WorkerId] = field(default_factory=set)  # workers that may still write into its former blocks
    fence_nonce: int = 0  # of the fences that `unfenced` waits for
    orphans: set[RequestId] = field(default_factory=set)  # rooms to release when nobody is unfenced
    liveness: Liveness = field(default_factory=lambda: Liveness(2))
    is_silent: bool = False
    is_leaving: bool = False  # finishes what it has, takes nothing new

    @property
    def ref(self) -> WorkerRef:
        return WorkerRef(self.worker_id, self.hello.epoch if self.hello is not None else 0)

    @property
    def is_gone(self) -> bool:
        """It was there, and its process has ended since."""
        return self.hello is not None and self.connection is None


class Membership:
    """Keeps a connection to every configured worker. `run` until cancelled."""

    def __init__(
        self,
        members: list[Member],
        *,
        heartbeat_timeout_s: float = 8.0,
        connect: Callable[[str], Awaitable[WorkerConnection]] = WorkerConnection.open,
    ) -> None:
        """`heartbeat_timeout_s` is counted in whole intervals in which this process was awake and heard nothing."""
        self._connect = connect
        self._members = {member.worker_id: member for member in members}
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._sink: MessageSink | None = None

    async def run(self, sink: MessageSink) -> None:
        self._sink = sink
        async with asyncio.TaskGroup() as group:
            for member in self._members.values():
                group.create_task(self._keep(member))

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(self._members.values())

    def get(self, worker: WorkerRef) -> Member | None:
        """The member, if that incarnation is connected."""
        member = self._members.get(worker.worker_id)
        if member is None or member.connection is None or member.ref != worker:
            return None
        return member

    def kv_path(self, sender: WorkerRef, receiver: WorkerRef) -> KVPath | None:
        """How KV gets from one to the other; None if one of them is gone."""
        one, other = self.get(sender), self.get(receiver)
        if one is None or one.hello is None or other is None or other.hello is None:
            return None
        return kv_path(one.hello.kv_site, other.hello.kv_site)

    def has_left(self, worker: WorkerRef) -> bool:
        """That incarnation has said that it leaves: it goes, or went, because it was asked to."""
        member = self._members.get(worker.worker_id)
        return member is not None and member.ref == worker and member.is_leaving

    def send(self, worker: WorkerRef, message: wire.ToWorker) -> bool:
        """False if that incarnation is gone (or its connection just broke): nothing was sent."""
        member = self.get(worker)
        if member is None or member.connection is None:
            return False
        try:
            member.connection.send(message)
        except WorkerLost:
            member.is_ready = False  # `on_worker_gone` follows
            return False
        return True

    def drain(self, worker_id: WorkerId) -> bool:
        """Ask it to leave; it says `Leaving` to every gateway. False if it is not there, or not ready."""
        member = self._members.get(worker_id)
        return member is not None and member.is_ready and self.send(member.ref, wire.Drain())

    def statuses(self) -> tuple[WorkerStatus, ...]:
        return tuple(
            WorkerStatus(
                worker_id=member.worker_id,
                role=member.role,
                ready=member.is_ready,
                epoch=member.ref.epoch,
                pid=member.hello.pid if member.hello is not None else 0,
                load=member.load,
                counters=member.counters,
                layout=member.hello.layout if member.hello is not None else None,
                address=member.address,
            )
            for member in self._members.values()
        )

    # ---- one connection ----------------------------------------------------------------------------------------------

    async def _keep(self, member: Member) -> None:
        while True:
            try:
                connection = await self._connect(member.address)
            except (OSError, WorkerLost):
                await asyncio.sleep(_CONNECT_RETRY_S)
                continue
            except ProtocolError as error:
                member.why_not_ready = error.message
                log.error("%s refused: %s", member.worker_id, error.message)
                await asyncio.sleep(_REFUSED_RETRY_S)
                continue
            try:
                await self._serve(member, connection)
            except Exception:  # it would end the other connections too
                log.exception("the connection to %s was ended, and is made again", member.worker_id)
                await asyncio.sleep(_REFUSED_RETRY_S)

    async def _serve(self, member: Member, connection: WorkerConnection) -> None:
        """From Hello to the end of the connection."""
        pinging = asyncio.create_task(self._ping(member, connection))
        try:
            self._join(member, connection)
            while True:
                self._try_receive(member, await connection.receive())
        except LayoutMismatch as error:
            member.why_not_ready = error.message
            log.error("%s refused: %s", member.worker_id, error.message)
            await asyncio.sleep(_REFUSED_RETRY_S)
        except (WorkerLost, ProtocolError) as error:
            log.warning("%s (epoch %d) is gone: %s", member.worker_id, member.ref.epoch, error.message)
        finally:
            pinging.cancel()
            connection.close()
            self._leave(member)

    async def _ping(self, member: Member, connection: WorkerConnection) -> None:
        """Until it is silent or gone. Every interval gives the event loop the chance to read what has arrived."""
        while not member.is_silent:
            await asyncio.sleep(INTERVAL_S)
            if not member.liveness.ask():
                self._silent(member)
                return
            try:
                connection.send(wire.Ping(member.liveness.num_unanswered))
            except WorkerLost:
                return

    def _silent(self, member: Member) -> None:
        silent_s = member.liveness.num_unanswered * INTERVAL_S
        member.is_silent, member.is_ready = True, False
        member.why_not_ready = f"its step loop has not answered for {silent_s:.0f} s"
        log.error("%s (epoch %d): %s", member.worker_id, member.ref.epoch, member.why_not_ready)
        assert self._sink is not None
        self._sink.on_worker_silent(member.ref, member.why_not_ready)

    def _join(self, member: Member, connection: WorkerConnection) -> None:
        hello = connection.hello
        for other in self._members.values():
            if other is not member and other.connection is not None and other.hello is not None:
                mismatch = hello.layout.mismatch(other.hello.layout)
                if mismatch is not None:
                    raise LayoutMismatch(f"{member.worker_id} does not fit {other.worker_id}: {mismatch}")
        member.hello, member.connection, member.load = hello, connection, hello.load
        member.counters = StepCounters()
        member.liveness = Liveness.within(self._heartbeat_timeout_s)
        member.is_silent = member.is_leaving = False
        member.why_not_ready = "waiting for the other workers to let go of its former blocks"
        member.orphans = set()
        log.info("%s joined (epoch %d, pid %d, %s)", member.worker_id, hello.epoch, hello.pid, hello.role)
        for other in self._members.values():
            if other is not member and other.connection is not None:
                connection.send(wire.Fence(other.worker_id, other.ref.epoch, other.fence_nonce))
        self._fence(member, hello.orphans)
        self._all_fenced(member)

    def _fence(self, member: Member, orphans: Iterable[RequestId]) -> None:
        """Every other worker has to answer once more, unless its process is gone. Those that never were there are
        asked when they join."""
        member.fence_nonce += 1
        member.orphans.update(orphans)
        others = [other for other in self._members.values() if other is not member and not other.is_gone]
        member.unfenced = {other.worker_id for other in others}
        for other in self._members.values():
            if other is not member and other.connection is not None:
                self.send(other.ref, wire.Fence(member.worker_id, member.ref.epoch, member.fence_nonce))

    def _try_receive(self, member: Member, message: wire.ToGateway) -> None:
        """A message that cannot be handled ends no connection: it is that of every request on the worker."""
        try:
            self._receive(member, message)
        except (WorkerLost, ProtocolError):
            raise
        except Exception:
            log.exception("%s: a %s could not be handled", member.worker_id, type(message).__name__)

    def _receive(self, member: Member, message: wire.ToGateway) -> None:
        assert self._sink is not None
        member.liveness.heard()
        match message:
            case wire.Pong():
                return
            case wire.Leaving():
                log.info("%s (epoch %d) is leaving", member.worker_id, member.ref.epoch)
                member.is_leaving, member.is_ready, member.why_not_ready = True, False, "draining"
                return
            case wire.Fenced():
                owner = self._members.get(message.worker_id)
                if owner is None or owner.connection is None or owner.ref.epoch != message.epoch:
                    return
                if owner.fence_nonce == message.nonce:
                    owner.unfenced.discard(member.worker_id)
                    self._all_fenced(owner)
                return
            case wire.Orphans():
                self._fence(member, message.request_ids)
                self._all_fenced(member)
                return
            case wire.StepOutputs() | wire.LoadReport():
                member.load, member.counters = message.load, message.counters
        self._sink.on_message(member.ref, message)

    def _all_fenced(self, member: Member) -> None:
        """If so, what was left in its quarantine goes back, and it gets traffic."""
        if member.unfenced or member.connection is None:
            return
        for request_id in member.orphans:
            self.send(member.ref, wire.Release(request_id))
        member.orphans.clear()
        if member.is_ready or member.is_silent or member.is_leaving:
            return
        member.is_ready, member.why_not_ready = True, ""
        assert self._sink is not None
        self._sink.on_worker_ready(member.ref)

    def _leave(self, member: Member) -> None:
        if member.connection is None:
            return
        gone = member.ref
        member.connection, member.is_ready, member.why_not_ready = None, False, "restarting"
        member.load = WorkerLoad()
        assert self._sink is not None
        self._sink.on_worker_gone(gone)
        for other in self._members.values():  # the process is gone, it writes nothing any more
            if member.worker_id in other.unfenced:
                other.unfenced.discard(member.worker_id)
                self._all_fenced(other)
