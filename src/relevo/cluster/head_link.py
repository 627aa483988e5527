"""One node and one head: joins, sends heartbeats, tells what workers there are, and begins again when it ends. asyncio.

Decides nothing: `policy.cluster.node` says when a lease is over and under which epoch the node comes back. Heartbeats
have a connection of their own, so that no byte of anything else is in front of them; one that is not answered is sent
over a new connection while the lease still runs, in case the old one was forgotten on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from dataclasses import dataclass, field
from typing import Protocol

from relevo.cluster.identity import NodeIdentity
from relevo.cluster.identity_revoked import Revocation
from relevo.cluster.member_messages import (
    ACK,
    FROM_HEAD,
    Beat,
    Claim,
    Denied,
    DrainNode,
    Heads,
    HeartbeatOf,
    KillWorker,
    Known,
    Leave,
    NodeHello,
    Revoked,
    Welcome,
    Workers,
)
from relevo.cluster.moving import Mover
from relevo.cluster.opening import Purpose
from relevo.cluster.peer import NodeRole, PeerRefused, Refusal
from relevo.cluster.stream import FramedStream, open_stream
from relevo.core.errors import RelevoError
from relevo.core.host_port import HostPort
from relevo.core.ports import Clock
from relevo.policy.cluster.backoff import Backoff
from relevo.policy.cluster.checks import Denial
from relevo.policy.cluster.epochs import Session
from relevo.policy.cluster.leases import BEAT_S, FENCE_S
from relevo.policy.cluster.node import NodeMembership

log = logging.getLogger("relevo.cluster")

ANSWER_TIMEOUT_S = FENCE_S  # of each step of joining; one that takes longer has no lease to give
UNANSWERED_S = 1.2  # arbitrary: then a heartbeat is tried over a fresh connection, before the lease is over
SAME_HEAD_S = 30.0  # another address of a head that has taken the node in is looked at again so often


class JoinFailed(RelevoError):
    """This attempt did not lead to a lease; the message is one sentence. `is_final`: no other will."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class Joining(Protocol):
    """What a head link needs of its node."""

    membership: NodeMembership
    identity: NodeIdentity
    mover: Mover
    clock: Clock
    round_trips_s: dict[str, float]  # of heartbeats, by head

    def hello(self) -> NodeHello: ...

    def workers(self) -> Workers:
        """With the next number."""
        ...

    async def new_epoch(self, known: int) -> None:
        """Be of an epoch that is not below `known`, by a fence if need be; a fence that is under way is waited for."""
        ...

    def close_links(self, head: str) -> None: ...

    def given_up(self, head: str) -> None: ...

    def heads_are(self, message: Heads) -> None: ...

    def are_revoked(self, entries: tuple[Revocation, ...]) -> None: ...

    def asked_to(self, message: KillWorker | DrainNode, head: str) -> None: ...

    def joined(self, head: str) -> None: ...

    def not_joined(self, place: HostPort, reason: str, *, is_final: bool) -> None: ...

    def beat_took(self, head: str, round_trip_s: float) -> None: ...

    def may_join(self, head: str, place: HostPort) -> bool:
        """No other link has this head, and the node is not leaving."""
        ...


@dataclass(eq=False)
class HeadLink:
    place: HostPort
    node: Joining
    head: str = ""  # its name, while it is joined
    _stream: FramedStream | None = None
    _backoff: Backoff = field(default_factory=lambda: Backoff(random.Random()))

    async def run(self) -> None:
        """Until cancelled; joins for ever."""
        while True:
            wait_s = self._backoff.next_s()
            try:
                await self._once()
                wait_s = 0.0
            except JoinFailed as failed:
                self.node.not_joined(self.place, failed.message, is_final=failed.is_final)
            except PeerRefused as refused:
                is_final = refused.reason in (Refusal.REVOKED, Refusal.CERTIFICATE)
                self.node.not_joined(self.place, refused.message, is_final=is_final)
            except (OSError, RelevoError) as error:
                message = error.message if isinstance(error, RelevoError) else str(error)
                self.node.not_joined(self.place, message, is_final=False)
            await asyncio.sleep(wait_s)

    def tell_workers(self) -> None:
        self._say(self.node.workers)

    def leave(self, *, for_good: bool) -> None:
        self._say(lambda: Leave(for_good))

    def _say(self, make) -> None:  # type: ignore[no-untyped-def]  # a message is made only where it is sent
        if self._stream is not None and self.head:
            with contextlib.suppress(RelevoError):
                self._stream.send(make())

    async def _once(self) -> None:
        """From the connection to the end of the stay."""
        stream = await open_stream(self.place, Purpose.MEMBER, identity=self.node.identity, role=NodeRole.HEAD)
        assert stream.peer is not None
        head = stream.peer.name
        self.node.mover.keep(stream, self.place, head)
        try:
            if not self.node.may_join(head, self.place):
                await asyncio.sleep(SAME_HEAD_S)
                return
            session = await self._join(stream, head)
            self.head, self._stream = head, stream
            self._backoff.succeeded()
            self.node.joined(head)
            stream.send(self.node.workers())
            async with asyncio.TaskGroup() as tasks:
                beating = tasks.create_task(self._beat(stream, head, session))
                try:
                    await self._listen(stream, head)
                finally:
                    beating.cancel()
        finally:
            self.head, self._stream = "", None
            self.node.membership.refused(head)
            stream.close()

    async def _join(self, stream: FramedStream, head: str) -> Session:
        membership = self.node.membership
        stream.send(self.node.hello())
        known = await self._answer(stream)
        if not isinstance(known, Known):
            raise JoinFailed(f"{stream.label} answered with {type(known).__name__}")
        for note in known.notes:
            log.warning("%s", note)
        await self.node.new_epoch(known.epoch)
        self.node.close_links(head)
        asked_ns = self.node.clock.now_ns()
        session = membership.ask(head, asked_ns)
        stream.send(Claim(session.epoch, session.number))
        answer = await self._answer(stream)
        if isinstance(answer, Denied) or not isinstance(answer, Welcome):
            raise JoinFailed(f"{stream.label} answered with {type(answer).__name__}")
        if not membership.welcomed(head, session, self.node.clock.now_ns()):
            raise JoinFailed(f"{stream.label} took longer to answer than a lease lasts")
        return session

    async def _answer(self, stream: FramedStream) -> object:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await stream.receive(FROM_HEAD)
        except TimeoutError:
            raise JoinFailed(f"{stream.label} has not answered for {ANSWER_TIMEOUT_S:g} s") from None
        if isinstance(answer, Denied):
            if answer.reason == Denial.EPOCH:
                await self.node.new_epoch(answer.epoch)
            raise JoinFailed(answer.message, is_final=answer.is_final)
        return answer

    async def _listen(self, stream: FramedStream, head: str) -> None:
        """Returns when the stay has ended."""
        while True:
            try:
                message = await stream.receive(FROM_HEAD)
            except RelevoError as error:
                log.info("the connection to head %s has ended: %s", head, error.message)
                return
            match message:
                case Heads():
                    self.node.heads_are(message)
                case Revoked():
                    self.node.are_revoked(message.entries)
                case KillWorker() | DrainNode():
                    self.node.asked_to(message, head)
                case Denied():
                    self.node.not_joined(self.place, message.message, is_final=message.is_final)
                    self.node.given_up(head)
                    return

    # ---- heartbeats --------------------------------------------------------------------------------------------------

    async def _beat(self, stay: FramedStream, head: str, session: Session) -> None:
        """While there is a lease, over as many connections as it takes; then the stay is over, too."""
        backoff = Backoff(random.Random())
        while head in self.node.membership.heads:
            try:
                await self._beat_over_one(head, session, backoff)
            except (OSError, RelevoError) as error:
                log.debug("no heartbeat to %s: %s", head, error)
                await asyncio.sleep(min(0.3, backoff.next_s()))
        stay.close("its lease is over")

    async def _beat_over_one(self, head: str, session: Session, backoff: Backoff) -> None:
        about = HeartbeatOf(session.epoch, session.number)
        stream = await open_stream(
            self.place,
            Purpose.HEARTBEAT,
            identity=self.node.identity,
            about=about,
            name=head,
            role=NodeRole.HEAD,
            timeout_s=UNANSWERED_S,
        )
        membership, clock = self.node.membership, self.node.clock
        try:
            while (number := membership.beat(head, clock.now_ns())) is not None:
                began_s = time.monotonic()
                stream.send(Beat(number, self.node.round_trips_s.get(head, 0.0)))
                async with asyncio.timeout(UNANSWERED_S):
                    while (await stream.receive(ACK)).number != number:
                        pass
                took_s = membership.acknowledged(head, session, number, clock.now_ns())
                if took_s is not None:
                    self.node.beat_took(head, took_s)
                    backoff.succeeded()
                await asyncio.sleep(max(0.0, BEAT_S - (time.monotonic() - began_s)))
                if stream.reconnect_at_s is not None and time.time() >= stream.reconnect_at_s:
                    return
        finally:
            stream.close()
