"""A head's members: takes nodes in, acknowledges their heartbeats, and tells gateways who is there. asyncio.

Decides nothing: `policy.cluster.head` says which incarnation counts and who is gone, `policy.cluster.checks` who fits.
A node is taken in once this head has dialled it back: an address that only the node itself reaches is of no use.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from relevo.cluster.dial_back import why_unreachable
from relevo.cluster.epoch_file import EpochFile
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.member_messages import (
    BEAT,
    FROM_NODE,
    HEARTBEAT_OF,
    Ack,
    AskEpoch,
    AskFacts,
    Beat,
    Claim,
    Denied,
    DrainNode,
    Facts,
    Heads,
    KillWorker,
    Known,
    Leave,
    NodeHello,
    NodePeer,
    Revoked,
    Welcome,
    Workers,
)
from relevo.cluster.moving import Moves
from relevo.cluster.other_heads import highest_elsewhere
from relevo.cluster.peer import NodeRole
from relevo.cluster.stream import FramedStream
from relevo.core.cluster import ClusterFacts, NodeEngine, NodeReport, NodeWorker, RemoteWorker, shown_engines
from relevo.core.errors import ProtocolError, RelevoError
from relevo.core.host_port import HostPort
from relevo.core.ports import Clock
from relevo.policy.cluster.checks import Denial, Mismatch, mismatch, mixing, own_and_foreign
from relevo.policy.cluster.epochs import Session
from relevo.policy.cluster.head import Ended, HeadMembers, MemberState
from relevo.policy.cluster.lifetimes import Validity
from relevo.telemetry.limited_log import LimitedLog
from relevo.wire.address import NodeAddress

log = logging.getLogger("relevo.cluster")

_TICK_S = 0.1
_FIRST_WORDS_S = 5.0


@dataclass(slots=True, eq=False)
class Guest:
    """What is known of a node beside its membership."""

    name: str
    hello: NodeHello
    role: str
    validity: Validity  # of the certificate that it was last seen with
    stream: FramedStream | None = None
    told: Workers = field(default_factory=lambda: Workers(0, ()))
    notes: tuple[str, ...] = ()
    ended: str = ""  # why it is not here
    round_trip_s: float = 0.0

    @property
    def place(self) -> HostPort:
        return HostPort.parse(self.hello.control)


class Members:
    def __init__(
        self,
        *,
        identity: NodeIdentity,
        moves: Moves,
        facts: ClusterFacts,
        place: HostPort,
        epochs: EpochFile,
        clock: Clock,
        on_change: Callable[[], None],
        other_head: Callable[[HostPort], None],
        own_workers: Callable[[], tuple[NodeWorker, ...]],
        joined_heads: Sequence[HostPort] = (),
    ) -> None:
        """`place`: where nodes reach this head. `other_head`: one was learned of; this head is to join it, too.
        `own_workers`: of this box, as nodes hear of them. `joined_heads`: others that it was told of at its start; they
        remember nodes before they have joined this head in turn."""
        self._joined_heads = joined_heads
        self._own_workers = own_workers
        self.identity, self.clock = identity, clock
        self.num_denied: Counter[str] = Counter()
        self.num_gone = 0
        self._moves = moves
        self._facts, self._place, self._epochs = facts, place, epochs
        self._on_change, self._other_head = on_change, other_head
        self._policy = HeadMembers(epochs.read())
        self._guests: dict[str, Guest] = {}
        self._heads: dict[str, None] = {str(place): None}
        self._limited_log = LimitedLog(log)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            self._ended(self._policy.tick(self.clock.now_ns()))

    # ---- handlers of the control port --------------------------------------------------------------------------------

    async def serve_member(self, stream: FramedStream, about: bytes) -> None:
        self._moves.keep(stream)
        try:
            async with asyncio.timeout(_FIRST_WORDS_S):
                first = await stream.receive(FROM_NODE)
            if isinstance(first, AskFacts):
                stream.send(Facts(self._facts, tuple(self._heads)))
                await stream.receive(FROM_NODE)  # until it closes
            elif isinstance(first, AskEpoch) and stream.peer is not None and stream.peer.role is NodeRole.HEAD:
                stream.send(Known(self._policy.highest_of(first.name)))
                await stream.receive(FROM_NODE)  # until it closes
            elif isinstance(first, NodeHello):
                await self._take_in(stream, first)
        except TimeoutError:
            stream.close("it did not say what it is")
        except ProtocolError as error:
            log.warning("%s: %s", stream.label, error.message)
        except RelevoError:
            pass  # it left

    async def serve_heartbeat(self, stream: FramedStream, about: bytes) -> None:
        assert stream.peer is not None
        try:
            of = HEARTBEAT_OF.decode(about)
        except msgspec.MsgspecError:
            return
        session = Session(of.epoch, of.session)
        with contextlib.suppress(RelevoError):
            while True:
                beat = await stream.receive(BEAT)
                assert isinstance(beat, Beat)
                was_heard = self._policy.get(stream.peer.name)
                before = was_heard.state if was_heard is not None else None
                if not self._policy.heard(stream.peer.name, session, self.clock.now_ns()):
                    return
                stream.send(Ack(beat.number))
                if (guest := self._guests.get(stream.peer.name)) is not None:
                    guest.round_trip_s = beat.round_trip_s
                    guest.validity = stream.peer.validity
                if before is not MemberState.JOINED:
                    self._on_change()

    async def _take_in(self, stream: FramedStream, hello: NodeHello) -> None:
        assert stream.peer is not None
        name = stream.peer.name
        wrong = self._mismatch(name, hello)
        if wrong is not None:
            self._deny(stream, name, wrong)
            return
        self._policy.learned(name, await highest_elsewhere(self.identity, self.other_heads, name))
        note = mixing(self._facts.node, hello.facts, name)
        stream.send(Known(self._policy.highest_of(name), (note,) if note else ()))
        async with asyncio.timeout(_FIRST_WORDS_S):
            claim = await stream.receive(FROM_NODE)
        if not isinstance(claim, Claim):
            return
        guest = Guest(name, hello, str(stream.peer.role), stream.peer.validity, stream, notes=(note,) if note else ())
        unreachable = await why_unreachable(self.identity, guest.place, name)
        if unreachable is not None:
            self._deny(stream, name, Mismatch(Denial.ADDRESS, unreachable, is_final=False))
            return
        session = Session(claim.epoch, claim.session)
        before = self._guests.get(name)
        ended = self._policy.accept(name, session, self.clock.now_ns())
        if ended is None:
            highest = max(self._policy.highest_of(name), session.epoch)
            reason = f"an incarnation of {name} that is as new was accepted already; it takes a higher epoch"
            self._deny(stream, name, Mismatch(Denial.EPOCH, reason, is_final=False), highest)
            return
        self._epochs.keep(self._policy.highest)
        if before is not None and before.stream is not None and before.stream is not stream:
            before.stream.close("another incarnation has joined")
        self._guests[name] = guest
        log.info("%s joined (epoch %d, session %d) at %s", name, session.epoch, session.number, hello.control)
        stream.send(Welcome())
        stream.send(Revoked(self.identity.revoked.entries))
        if stream.peer.role is NodeRole.HEAD:
            self._learn_head(hello)
        self._changed()
        await self._listen(guest, session)

    async def _listen(self, guest: Guest, session: Session) -> None:
        assert guest.stream is not None
        try:
            while True:
                message = await guest.stream.receive(FROM_NODE)
                if not self._policy.accepts(guest.name, session, self.clock.now_ns()):
                    return
                match message:
                    case Workers() if message.number > guest.told.number:
                        guest.told = self._without_foreign(guest.name, message)
                        self._changed()
                    case Leave():
                        guest.ended = "left for good" if message.for_good else "left, and may come back"
                        self._ended(self._policy.left(guest.name, session, self.clock.now_ns()))
                        if message.for_good:
                            self._guests.pop(guest.name, None)
                            self._changed()
                        return
        finally:
            self._policy.unheard(guest.name, session, self.clock.now_ns())
            self._on_change()

    def _without_foreign(self, name: str, told: Workers) -> Workers:
        (workers, foreign), (engines, more) = own_and_foreign(name, told.workers), own_and_foreign(name, told.engines)
        for worker_id in (*foreign, *more):
            self._limited_log.warning(f"{name} claims", f"{name} names {worker_id!r}, which is none of its workers")
        return msgspec.structs.replace(told, workers=workers, engines=engines)

    def _mismatch(self, name: str, hello: NodeHello) -> Mismatch | None:
        try:
            HostPort.parse(hello.control, "--advertise")
        except RelevoError as error:
            return Mismatch(Denial.ADDRESS, error.message)
        return mismatch(self._facts.node, hello.facts, name, hello.unix_s - time.time())

    def _deny(self, stream: FramedStream, name: str, wrong: Mismatch, epoch: int = 0) -> None:
        self.num_denied[wrong.reason] += 1
        self._limited_log.warning(f"{name} {wrong.reason}", f"{name} was not taken in: {wrong.message}")
        stream.send(Denied(wrong.reason, wrong.message, wrong.is_final, epoch))
        self._on_change()

    def _learn_head(self, hello: NodeHello) -> None:
        if hello.head and hello.head not in self._heads:
            self._heads[hello.head] = None
            self._other_head(HostPort.parse(hello.head))

    def tell_revoked(self) -> None:
        """Every member, which tells its own; one that is revoked itself is put out by the guard of the port."""
        told = Revoked(self.identity.revoked.entries)
        for guest in self._guests.values():
            if guest.stream is not None:
                with contextlib.suppress(RelevoError):
                    guest.stream.send(told)

    @property
    def other_heads(self) -> list[HostPort]:
        learned = (HostPort.parse(each) for each in self._heads)
        return [each for each in dict.fromkeys((*learned, *self._joined_heads)) if each != self._place]

    # ---- what gateways ask -------------------------------------------------------------------------------------------

    def kill(self, worker_id: str, epoch: int, reason: str) -> None:
        for guest in self._guests.values():
            if any(worker.worker_id == worker_id for worker in guest.told.workers) and guest.stream is not None:
                with contextlib.suppress(RelevoError):
                    guest.stream.send(KillWorker(worker_id, epoch, reason))

    def drain(self, name: str, *, for_good: bool) -> bool:
        """False: it is not here."""
        guest, member = self._guests.get(name), self._policy.get(name)
        if guest is None or guest.stream is None or member is None or not member.is_here:
            if guest is not None and for_good:
                del self._guests[name]  # it is not waited for any more
                self._changed()
                return True
            return False
        try:
            guest.stream.send(DrainNode(for_good))
        except RelevoError:
            return False
        return True

    # ---- what gateways are told --------------------------------------------------------------------------------------

    def remote_workers(self) -> tuple[RemoteWorker, ...]:
        found = []
        for guest in self._guests.values():
            member = self._policy.get(guest.name)
            if member is None:
                continue
            session = member.session
            workers: tuple[NodeWorker | NodeEngine, ...] = (*guest.told.workers, *guest.told.engines)
            for worker in workers:
                address = NodeAddress(guest.name, session.epoch, session.number, guest.place, worker.worker_id)
                found.append(
                    RemoteWorker(
                        worker_id=worker.worker_id,
                        role=worker.role,
                        node=guest.name,
                        address=str(address),
                        is_here=member.is_here,
                        reason="" if member.is_here else f"node {guest.name}: {guest.ended or 'gone'}",
                        engine=worker if isinstance(worker, NodeEngine) else None,
                        compute=guest.hello.facts.compute,
                    )
                )
        return tuple(found)

    def reports(self) -> tuple[NodeReport, ...]:
        now_ns, now_unix_s = self.clock.now_ns(), time.time()
        here = {member.name for member in self._policy.members if member.is_here} | {self.identity.name}
        found = []
        for guest in self._guests.values():
            member = self._policy.get(guest.name)
            if member is None:
                continue
            found.append(
                NodeReport(
                    name=guest.name,
                    role=guest.role,
                    state=str(member.state),
                    epoch=member.session.epoch,
                    since_unix_s=now_unix_s - (now_ns - member.since_ns) / 1e9,
                    address=guest.hello.control,
                    version=guest.hello.facts.version,
                    workers=(*guest.told.workers, *shown_engines(guest.told.engines, member.session.epoch)),
                    links=tuple(link for link in guest.told.links if {guest.name, link.to_node} <= here),
                    notes=(*guest.notes, *((guest.ended,) if guest.ended and not member.is_here else ())),
                    round_trip_s=guest.round_trip_s if member.is_here else 0.0,
                    num_fences=guest.told.num_fences,
                    certificate_left=guest.validity.left(now_unix_s),
                )
            )
        return tuple(found)

    def peers(self) -> tuple[NodePeer, ...]:
        """Nodes that are here, for this box's own KV."""
        found = (
            NodePeer.of(guest.name, guest.hello.control, guest.told.workers)
            for guest in self._guests.values()
            if (member := self._policy.get(guest.name)) is not None and member.is_here
        )
        return tuple(peer for peer in found if peer.kv_addresses)

    def changed(self) -> None:
        """Workers of this box came or went."""
        self._changed()

    @property
    def states(self) -> Counter[str]:
        """How many nodes are in each state."""
        return Counter(str(member.state) for member in self._policy.members)

    def _ended(self, ended: list[Ended]) -> None:
        for each in ended:
            self.num_gone += 1
            guest = self._guests.get(each.name)
            log.warning("%s (epoch %d, session %d) is gone: %s", each.name, *each.session, each.reason)
            if guest is not None:
                guest.ended = guest.ended or each.reason
                if guest.stream is not None:
                    guest.stream.close(each.reason)
                    guest.stream = None
        if ended:
            self._changed()

    def _changed(self) -> None:
        """Gateways hear it, and nodes hear of each other."""
        self._on_change()
        for guest in self._guests.values():
            peers = tuple(
                peer
                for name, control, workers in (self._own(), *self._others(guest))
                if (peer := NodePeer.of(name, control, workers)).kv_addresses
            )
            if guest.stream is not None:
                with contextlib.suppress(RelevoError):
                    guest.stream.send(Heads(tuple(self._heads), peers))

    def _others(self, guest: Guest) -> list[tuple[str, str, tuple[NodeWorker, ...]]]:
        return [
            (other.name, other.hello.control, other.told.workers)
            for other in self._guests.values()
            if other is not guest and (member := self._policy.get(other.name)) is not None and member.is_here
        ]

    def _own(self) -> tuple[str, str, tuple[NodeWorker, ...]]:
        return self.identity.name, str(self._place), self._own_workers()
