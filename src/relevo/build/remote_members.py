"""A gateway's members on other boxes, as the node process of its own box tells them. See `cluster.feed`.

Owns the difference between what was told and the table of members. Where the node process is away nothing changes:
nodes look after themselves, and their links say when they end.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from relevo.build.engine_links import EngineLinks
from relevo.cluster.feed_messages import Roster
from relevo.core.cluster import NodeEngine, NodeReport, RemoteWorker, box_id_of
from relevo.core.errors import SettingsError
from relevo.core.ids import WorkerId
from relevo.engines.spec import EngineSpec, engine_address, unpacked_spec
from relevo.orchestrator.connections import Connections
from relevo.orchestrator.member import Member
from relevo.orchestrator.membership import Membership
from relevo.orchestrator.placement import Placement
from relevo.policy.perf.handoff_costs import BoxPair

log = logging.getLogger("relevo.gateway")


class RemoteMembers:
    def __init__(
        self, membership: Membership, connections: Connections, placement: Placement, engines: EngineLinks
    ) -> None:
        self._membership, self._connections, self._placement = membership, connections, placement
        self._engines = engines
        self._known: dict[str, RemoteWorker] = {}
        self._unread: dict[str, str] = {}  # by worker, what was said of its engine and is left out
        self.nodes: Sequence[NodeReport] = ()
        self.denied: dict[str, int] = {}
        self.num_gone = 0
        self.refused: dict[str, int] = {}

    def take(self, roster: Roster) -> None:
        self.nodes, self.denied, self.num_gone = roster.nodes, roster.denied, roster.num_gone
        self.refused = roster.refused
        faulty = []
        for node in roster.nodes:
            for link in node.links:
                boxes = box_id_of(node.name), box_id_of(link.to_node)
                self._placement.link_measured(*boxes, link.bytes_per_s, link.round_trip_s)
                if link.fault:
                    faulty.append(BoxPair(*boxes))
        self._placement.ways_closed(faulty)
        told = {worker.worker_id: worker for worker in roster.workers}
        for worker in told.values():
            before = self._known.get(worker.worker_id)
            if before != worker and self._can_read(worker):
                self._known[worker.worker_id] = worker
                self._changed(before, worker)
        for member in self._membership.members:
            known = self._known.get(member.worker_id)
            member.compute = known.compute if known is not None else roster.compute
        for worker_id in self._unread.keys() - told.keys():
            del self._unread[worker_id]
        nodes = {node.name for node in roster.nodes}
        for worker_id in [each for each in self._known if each not in told]:
            before = self._known[worker_id]
            if before.node in nodes:  # its process is started again
                away = replace(before, address="", is_here=False, reason=f"node {before.node} starts it again")
                if before != away:
                    self._known[worker_id] = away
                    self._changed(before, away)
            elif roster.is_settled:
                del self._known[worker_id]
                self._membership.gone(WorkerId(worker_id), f"node {before.node} has left", for_good=True)
                self._engines.remove(engine_address(worker_id))

    def is_remote(self, worker_id: str) -> bool:
        return worker_id in self._known

    def _can_read(self, worker: RemoteWorker) -> bool:
        """Where a node's words about an engine mean nothing here, the rest of the cluster is followed all the same."""
        if worker.engine is None or self._unread.get(worker.worker_id) == worker.engine.spec:
            return worker.engine is None
        try:
            _spec_of(worker.engine)
        except SettingsError as error:
            self._unread[worker.worker_id] = worker.engine.spec
            log.error("%s of node %s is left out: %s", worker.worker_id, worker.node, error.message)
            return False
        self._unread.pop(worker.worker_id, None)
        return True

    def _changed(self, before: RemoteWorker | None, now: RemoteWorker) -> None:
        worker_id, engine = WorkerId(now.worker_id), now.engine
        if before is None:
            if any(member.worker_id == worker_id for member in self._membership.members):
                log.error("%s of node %s has the name of another worker, and is left out", worker_id, now.node)
                return
            self._connections.add(self._member(now))
            return
        if before.address != now.address or not now.is_here:
            why = now.reason or f"node {now.node} joined anew"
            self._membership.gone(worker_id, why)
        if not now.is_here:
            return
        if engine is None:
            self._membership.is_at(worker_id, now.address)
            return
        self._engines.put(_spec_of(engine))
        self._membership.is_at(worker_id, engine_address(worker_id))
        if engine.is_leaving:
            self._engines.drain(engine_address(worker_id))

    def _member(self, worker: RemoteWorker) -> Member:
        """An engine's link ends with the engine: nothing of it is waited for, as it writes into no blocks of ours."""
        worker_id, is_away = WorkerId(worker.worker_id), not worker.is_here
        if worker.engine is None:
            return Member(worker_id, worker.role, worker.address, is_remote=True, is_away=is_away)
        self._engines.put(_spec_of(worker.engine))
        address = engine_address(worker.worker_id)
        return Member(worker_id, worker.role, address, is_away=is_away, writes_to_others=False)


def _spec_of(engine: NodeEngine) -> EngineSpec:
    """Raises SettingsError."""
    return unpacked_spec(engine.spec, engine.worker_id)
