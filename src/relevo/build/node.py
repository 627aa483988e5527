"""Composition root of the node process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path

from relevo.build.configs import NodeConfig
from relevo.build.event_loop import run_until_complete
from relevo.build.kv_door import node_door
from relevo.cluster.boot_clock import BootClock
from relevo.cluster.enroller import Enroller
from relevo.cluster.enrolment import enrolment_handlers
from relevo.cluster.epoch_file import ACCEPTED_EPOCHS, OWN_EPOCH, EpochFile
from relevo.cluster.feed import Asked, FeedServer
from relevo.cluster.feed_messages import DrainRemote, KillRemote, Roster
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.kv_probes import KVProbes
from relevo.cluster.member_messages import NodePeer
from relevo.cluster.members import Members
from relevo.cluster.moving import Mover, Moves
from relevo.cluster.node import Node, be_there
from relevo.cluster.opening import Purpose
from relevo.cluster.own_workers import OwnWorkers
from relevo.cluster.renewal import keep_renewed
from relevo.cluster.stream import FramedStream
from relevo.cluster.stream_guard import StreamGuard
from relevo.cluster.stream_server import Handler, StreamServer
from relevo.core.cluster import NodeEngine, NodeReport, shown_engines
from relevo.core.host_port import HostPort
from relevo.engines.draining import idle
from relevo.engines.spec import packed_spec
from relevo.policy.cluster.epochs import sessions_of_process
from relevo.policy.cluster.leases import GONE_S
from relevo.telemetry.log import configure
from relevo.wire.child_process import answer_pulses
from relevo.wire.status import Status

log = logging.getLogger("relevo.cluster")

SETTLED_S = GONE_S + 5.0  # after a head's start: nodes that live have come back by then
_TELL_S = 1.0  # gateways hear of figures that only change, such as round trips, so often

Report = Callable[[Status], None]


def run_node(config: NodeConfig, report: Report) -> None:
    """Be the node until SIGTERM, then let requests of other boxes finish. Raises StartError."""
    configure(config.log_level, "node")
    identity = NodeIdentity.load(Path(config.folder))
    gc.freeze()
    gc.enable()
    run_until_complete(NodeProcess(config, identity, report).run())


class NodeProcess:
    """Puts the parts of `relevo.cluster` together for one box."""

    def __init__(self, config: NodeConfig, identity: NodeIdentity, report: Report) -> None:
        self._config, self._identity, self._report = config, identity, report
        self._began_s = time.monotonic()
        self._numbers = itertools.count(1)
        self._is_stopping = asyncio.Event()
        folder, clock = Path(config.folder), BootClock()
        self._guard = StreamGuard(identity, self._identity_changed)
        self._moves = Moves()
        self._enroller = Enroller.load(folder) if config.cluster is not None else None
        control = HostPort.parse(config.control)
        engines = [worker.engine for worker in config.workers if worker.engine is not None]
        own = [(worker.worker_id, worker.address) for worker in config.workers if worker.engine is None]
        offered = [NodeEngine(worker_id=each.worker_id, role=each.role, spec=packed_spec(each)) for each in engines]
        self._workers = OwnWorkers(own, self._changed, self._kill, offered, partial(idle, engines))
        self._node = Node(
            identity=identity,
            mover=Mover(identity, self._guard),
            moves=self._moves,
            facts=config.facts,
            workers=self._workers,
            epochs=EpochFile(folder / OWN_EPOCH),
            epoch=config.node_epoch,
            first_session=sessions_of_process(config.epoch),
            is_head=config.cluster is not None,
            clock=clock,
            control=control,
            say=lambda line: report(Status(kind="note", message=line)),
            fail=lambda reason: report(Status(kind="stop", message=reason)),
            leave=lambda: report(Status(kind="stop")),
        )
        self._members: Members | None = None
        self._feed: FeedServer | None = None
        if config.cluster is not None:
            self._members = Members(
                identity=identity,
                moves=self._moves,
                facts=config.cluster,
                place=control,
                epochs=EpochFile(folder / ACCEPTED_EPOCHS),
                clock=clock,
                on_change=self._tell,
                other_head=self._node.add_head,
                own_workers=self._workers.offered,
                joined_heads=[HostPort.parse(each) for each in config.heads],
            )
            self._feed = FeedServer(self._roster, self._asked)
        self._node.on_change = self._tell
        self._node.on_revoked = self._revoked
        self._probes = KVProbes(node_door(config), self._peers, self._measured) if own else None
        self._server = StreamServer(identity, self._guard, self._handlers())

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._is_stopping.set)
        if self._config.life_fd >= 0:
            alive = answer_pulses(self._config.life_fd, lambda: self._report(Status(kind="alive")))
            loop.add_reader(self._config.life_fd, alive)
        self._server.listen(HostPort.parse(self._config.listen))
        if self._feed is not None:
            await self._feed.listen(self._config.feed_path)
        self._report(Status(kind="ready"))
        tasks = [asyncio.create_task(each) for each in self._running()]
        stopping = asyncio.create_task(self._is_stopping.wait())
        await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            await self._node.drain(self._config.drain_timeout_s)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        if self._feed is not None:
            self._feed.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._server.close()
        for error in ended:
            if isinstance(error, Exception):
                raise error

    def _running(self) -> Iterator[Coroutine[None, None, None]]:
        yield self._guard.run()
        yield keep_renewed(self._identity, self._enroller, lambda: self._node.places)
        yield self._node.run(map(HostPort.parse, self._config.heads))
        if self._probes is not None:
            yield self._probes.run()
        if self._members is not None:
            yield self._members.run()
            yield self._tell_again()

    def _handlers(self) -> dict[Purpose, Handler]:
        handlers: dict[Purpose, Handler] = {
            Purpose.LINK: self._node.links.serve,
            Purpose.MOVE: self._moves.serve,
            Purpose.PROBE: be_there,
        }
        if self._members is not None:
            handlers[Purpose.MEMBER] = self._member
            handlers[Purpose.HEARTBEAT] = self._members.serve_heartbeat
            members = self._members
            handlers |= enrolment_handlers(self._identity, self._enroller, lambda: members.other_heads)
        return handlers

    def _kill(self, worker_id: str, incarnation: int, reason: str) -> None:
        self._report(Status(kind="kill", worker_id=worker_id, epoch=incarnation, message=reason))

    # ---- the gateways of this box ------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._node.changed()
        if self._members is not None:
            self._members.changed()

    def _peers(self) -> tuple[NodePeer, ...]:
        own = self._members.peers() if self._members is not None else ()
        known = {peer.name: peer for peer in (*self._node.peers, *own) if peer.name != self._identity.name}
        return tuple(known.values())

    def _measured(self) -> None:
        assert self._probes is not None
        self._node.link_reports = self._probes.reports
        self._node.changed()

    async def _member(self, stream: FramedStream, about: bytes) -> None:
        """What was let in can be revoked here, whichever box has enrolled it."""
        assert self._members is not None
        if self._enroller is not None and stream.peer is not None:
            await asyncio.to_thread(self._enroller.note, stream.peer)
        await self._members.serve_member(stream, about)

    def _revoked(self) -> None:
        """Heard from a head."""
        self._guard.look()
        self._identity_changed()

    def _identity_changed(self) -> None:
        if self._members is not None:
            self._members.tell_revoked()

    def _tell(self) -> None:
        if self._feed is not None:
            self._feed.tell()

    async def _tell_again(self) -> None:
        while True:
            await asyncio.sleep(_TELL_S)
            self._tell()

    def _roster(self) -> Roster:
        assert self._members is not None
        own = NodeReport(
            name=self._identity.name,
            role=str(self._identity.role),
            state="joined",
            epoch=self._node.membership.epoch,
            since_unix_s=time.time() - (time.monotonic() - self._began_s),
            address=self._config.control,
            version=self._config.facts.version,
            workers=(
                *self._workers.offered(),
                *shown_engines(self._workers.offered_engines(), self._node.membership.epoch),
            ),
            links=self._node.link_reports,
            num_fences=self._node.membership.num_fences,
            certificate_left=self._identity.own.validity.left(time.time()),
        )
        return Roster(
            next(self._numbers),
            time.monotonic() - self._began_s >= SETTLED_S,
            self._members.remote_workers(),
            (own, *self._members.reports()),
            dict(self._members.num_denied),
            self._members.num_gone,
            {str(reason): number for reason, number in self._server.num_refused.items()},
            self._config.facts.compute,
        )

    def _asked(self, asked: Asked) -> None:
        assert self._members is not None
        match asked:
            case KillRemote():
                self._members.kill(asked.worker_id, asked.epoch, asked.reason)
            case DrainRemote():
                self._members.drain(asked.node, for_good=asked.for_good)
