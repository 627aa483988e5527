"""The node process: its workers, its heads, and, where it is a head itself, the nodes that are its members. asyncio.

Puts the parts together and carries out what `policy.cluster.node` decides, first of all the fence: links are closed
before anything else is said, then every worker drops what it has under a new epoch, which is on disk before it is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec

from relevo.cluster.epoch_file import EpochFile
from relevo.cluster.head_link import HeadLink
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.identity_revoked import Revocation
from relevo.cluster.member_messages import DrainNode, Heads, KillWorker, NodeHello, NodePeer, Workers
from relevo.cluster.moving import Mover, Moves
from relevo.cluster.own_workers import OwnWorkers
from relevo.cluster.revocations import learn
from relevo.cluster.stream import FramedStream
from relevo.cluster.worker_links import WorkerLinks
from relevo.core.cluster import LinkReport, NodeFacts
from relevo.core.errors import RelevoError
from relevo.core.host_port import HostPort
from relevo.core.ports import Clock
from relevo.policy.cluster.epochs import Session
from relevo.policy.cluster.node import CloseLinks, Effect, Fence, NodeMembership

log = logging.getLogger("relevo.cluster")

_OWN = "own"  # key of the epoch in its file
_TICK_S = 0.1  # how late a lease may be noticed to be over; two seconds are between a fence and its head's patience
_ANYTHING: msgspec.msgpack.Decoder[msgspec.Raw] = msgspec.msgpack.Decoder(msgspec.Raw)
_SAY_AGAIN_S = 30.0  # the same reason for not being joined


class Node:
    """Implements cluster.head_link.Joining."""

    def __init__(
        self,
        *,
        identity: NodeIdentity,
        mover: Mover,
        moves: Moves,
        facts: NodeFacts,
        workers: OwnWorkers,
        epochs: EpochFile,
        epoch: int,
        first_session: int,
        is_head: bool,
        clock: Clock,
        control: HostPort,
        say: Callable[[str], None],
        fail: Callable[[str], None],
        leave: Callable[[], None],
    ) -> None:
        """`epoch`: that the workers were started under; 0: none. `control`: where others reach this process. `say`: one
        line for the person at the terminal; `fail`: the same, and the end; `leave`: the supervisor is to end all."""
        self.identity, self.mover, self.clock = identity, mover, clock
        self.membership = NodeMembership(epoch, first_session, is_head=is_head)
        self.links = WorkerLinks(workers, self._may_serve, moves)
        self.round_trips_s: dict[str, float] = {}  # of heartbeats, by head
        self.peers: tuple[NodePeer, ...] = ()  # other nodes, as heads last said
        self.on_change: Callable[[], None] = lambda: None
        self.on_revoked: Callable[[], None] = lambda: None
        self.link_reports: tuple[LinkReport, ...] = ()
        self._facts, self._workers, self._epochs = facts, workers, epochs
        self._is_head, self._control = is_head, control
        self._say, self._fail, self._leave = say, fail, leave
        self._head_links: dict[HostPort, tuple[HeadLink, asyncio.Task[None]]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._fencing = asyncio.Lock()
        self._pending_fence: asyncio.Task[None] | None = None
        self._num_told = 0
        self._was_joined = self._is_leaving = False
        self._is_leaving_for_good = False
        self._said: dict[HostPort, tuple[str, float]] = {}
        self._remembered = max(epoch, epochs.read().get(_OWN, 0))

    @property
    def places(self) -> tuple[HostPort, ...]:
        """Of the heads that it knows."""
        return tuple(self._head_links)

    async def run(self, heads: Iterable[HostPort]) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._workers.run())
            if self.membership.epoch:
                await self._workers.take_epoch(self.membership.epoch)
            tasks.create_task(self._watch_leases())
            for place in heads:
                self.add_head(place)
            await asyncio.get_running_loop().create_future()

    def add_head(self, place: HostPort) -> None:
        """It is joined for as long as this process runs. Idempotent."""
        if self._tasks is not None and place not in self._head_links:
            link = HeadLink(place, self)
            self._head_links[place] = link, self._tasks.create_task(link.run())

    async def drain(self, patience_s: float, *, for_good: bool = False) -> None:
        """Workers finish what they have, heads are told; returns when nothing is left here or the time is over."""
        self._is_leaving = True
        self._is_leaving_for_good = self._is_leaving_for_good or for_good
        self._workers.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._workers.all_gone()
        for link, _ in self._head_links.values():
            link.leave(for_good=self._is_leaving_for_good)
        await asyncio.sleep(0.05)  # for the words to leave

    def changed(self) -> None:
        """Workers came or went: heads are told."""
        for link, _ in self._head_links.values():
            link.tell_workers()
        self.on_change()

    # ---- Joining -----------------------------------------------------------------------------------------------------

    def hello(self) -> NodeHello:
        hello, facts = self._workers.hello, self._facts
        if hello is not None:  # as they say of themselves, not as they were asked to be
            facts = replace(facts, layout=hello.layout, max_model_len=hello.max_model_len)
        epoch = max(self._remembered, self.membership.epoch)
        head = str(self._control) if self._is_head else ""
        return NodeHello(facts, time.time(), epoch, str(self._control), head)

    def workers(self) -> Workers:
        self._num_told += 1
        return Workers(
            self._num_told,
            self._workers.offered(),
            self.link_reports,
            self._workers.offered_engines(),
            self.membership.num_fences,
        )

    async def new_epoch(self, known: int) -> None:
        async with self._fencing:
            if self.membership.needs_epoch((known,)):
                await self._carry_out([self.membership.new_epoch((known, self._remembered), time.time())])

    def close_links(self, head: str) -> None:
        self.links.close(head)

    def given_up(self, head: str) -> None:
        self._apply(self.membership.given_up(head, time.time()))

    def heads_are(self, message: Heads) -> None:
        self.peers = message.peers
        for text in message.heads:
            place = HostPort.parse(text)
            if not (self._is_head and place == self._control):
                self.add_head(place)
        self.on_change()

    def are_revoked(self, entries: tuple[Revocation, ...]) -> None:
        if learn(self.identity, entries):
            self.on_revoked()

    def asked_to(self, message: KillWorker | DrainNode, head: str) -> None:
        if isinstance(message, KillWorker):
            log.warning("head %s asks to end %s: %s", head, message.worker_id, message.reason)
            self._workers.kill(message.worker_id, message.epoch, message.reason)
            return
        self._say(f"head {head} asks this node to leave{' for good' if message.for_good else ''}")
        self._is_leaving_for_good = message.for_good
        self._leave()

    def joined(self, head: str) -> None:
        self._said.clear()
        self._was_joined = True
        self._say(f"joined {head} as {self.identity.name}, epoch {self.membership.epoch}")
        self.on_change()

    def not_joined(self, place: HostPort, reason: str, *, is_final: bool) -> None:
        before, at_s = self._said.get(place, ("", 0.0))
        if reason != before or time.monotonic() - at_s > _SAY_AGAIN_S:
            self._said[place] = (reason, time.monotonic())
            self._say(f"not joined yet: {reason}")
        if is_final and not self._was_joined and not self._is_head:
            self._fail(reason)

    def beat_took(self, head: str, round_trip_s: float) -> None:
        self.round_trips_s[head] = round_trip_s

    def may_join(self, head: str, place: HostPort) -> bool:
        joined = any(link.head == head for other, (link, _) in self._head_links.items() if other != place)
        return not joined and not self._is_leaving and head != self.identity.name

    # ---- fences ------------------------------------------------------------------------------------------------------

    def _may_serve(self, head: str, session: Session) -> bool:
        """Looked at for every piece that passes: after a freeze nothing passes before this is known."""
        now_ns = self.clock.now_ns()
        if self.membership.may_serve(head, session, now_ns):
            return True
        self._apply(self.membership.tick(now_ns, time.time()))
        return False

    async def _watch_leases(self) -> None:
        while True:
            self._apply(self.membership.tick(self.clock.now_ns(), time.time()))
            await asyncio.sleep(_TICK_S)

    def _apply(self, effects: list[Effect]) -> None:
        fences = [each for each in effects if isinstance(each, Fence)]
        for effect in effects:
            if isinstance(effect, CloseLinks):
                log.warning("head %s has not acknowledged in time: its links are closed", effect.head)
                self.links.close(effect.head)
        if fences and self._tasks is not None:
            self._say("no head answers: this node lets go of everything, and joins again as soon as one does")
            self._pending_fence = self._tasks.create_task(self._fence(fences[-1]))

    async def _fence(self, fence: Fence) -> None:
        async with self._fencing:
            await self._carry_out([fence])

    async def _carry_out(self, fences: list[Fence]) -> None:
        for fence in fences:
            self.links.close()
            self._epochs.keep({_OWN: fence.epoch})
            self._remembered = fence.epoch
            await self._workers.take_epoch(fence.epoch)


async def be_there(stream: FramedStream, _about: bytes) -> None:
    """Until the one who asked has seen that this node is where it says."""
    with contextlib.suppress(RelevoError):
        while True:
            await stream.receive(_ANYTHING)
