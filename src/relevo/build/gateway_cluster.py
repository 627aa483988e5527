"""A gateway's part in a cluster: its identity, the feed of its own box's node process, its members on other boxes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from relevo.build.configs import GatewayConfig
from relevo.build.engine_links import EngineLinks
from relevo.build.node_link import connect_anywhere
from relevo.build.remote_members import RemoteMembers
from relevo.cluster.feed import FeedClient
from relevo.cluster.feed_messages import DrainRemote, KillRemote, Roster
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.moving import Mover
from relevo.cluster.peer import NodeRole
from relevo.cluster.stream_guard import StreamGuard
from relevo.core.ids import WorkerRef
from relevo.orchestrator.connections import Connections
from relevo.orchestrator.membership import Membership
from relevo.orchestrator.placement import Placement
from relevo.policy.cluster.head import MemberState
from relevo.policy.scaling.scale_orders import LentNode
from relevo.telemetry.metrics import GatewayMetrics

_HERE = (MemberState.JOINED, MemberState.UNHEARD)


class GatewayCluster:
    """One per gateway process."""

    def __init__(self, config: GatewayConfig, identity: NodeIdentity) -> None:
        self._own_name = config.node_name
        self._guard = StreamGuard(identity)
        mover = Mover(identity, self._guard)
        self.connect = connect_anywhere(identity, mover, f"{config.node_name}/{config.gateway_id}")
        self._feed = FeedClient(config.feed_path, self._take)
        self.members: RemoteMembers | None = None

    @classmethod
    def of(cls, config: GatewayConfig, metrics: GatewayMetrics) -> Self:
        """`config`: with a folder of a cluster. Raises StartError."""
        cluster = cls(config, NodeIdentity.load(Path(config.cluster_folder)))
        metrics.show_cluster(cluster)
        return cluster

    def follow(
        self, membership: Membership, connections: Connections, placement: Placement, engines: EngineLinks
    ) -> None:
        """A cluster serves one model."""
        assert self.members is None
        self.members = RemoteMembers(membership, connections, placement, engines)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._guard.run())
            tasks.create_task(self._feed.run())

    def kill(self, worker: WorkerRef, reason: str) -> bool:
        """False: it is on this box."""
        if self.members is None or not self.members.is_remote(worker.worker_id):
            return False
        self._feed.ask(KillRemote(worker.worker_id, worker.epoch, reason))
        return True

    # ---- gateway.http.context.ClusterView ----------------------------------------------------------------------------

    def nodes(self) -> list[dict[str, Any]]:
        known = self.members.nodes if self.members is not None else ()
        return [msgspec.to_builtins(node) for node in known]

    def drain(self, node: str, *, for_good: bool) -> bool:
        return self._feed.ask(DrainRemote(node, for_good))

    def other_heads(self) -> tuple[str, ...]:
        """That serve the same workers, as far as is known here; the own one is among the nodes, too."""
        known = self.members.nodes if self.members is not None else ()
        heads = [node.name for node in known if node.role == NodeRole.HEAD and node.state in _HERE]
        return tuple(name for name in heads if name != self._own_name)

    def lent_nodes(self) -> tuple[LentNode, ...]:
        """That lend workers and are here, in the order in which they came."""
        known = self.members.nodes if self.members is not None else ()
        here = [node for node in known if node.role == NodeRole.NODE and node.state in _HERE]
        here.sort(key=lambda node: node.since_unix_s)
        return tuple(LentNode(node.name, len(node.workers), serves=bool(node.workers)) for node in here)

    # ---- telemetry.metrics.ClusterCounts -----------------------------------------------------------------------------

    @property
    def num_nodes(self) -> Mapping[str, int]:
        known = self.members.nodes if self.members is not None else ()
        return Counter(node.state for node in known)

    @property
    def num_denied(self) -> Mapping[str, int]:
        return self.members.denied if self.members is not None else {}

    @property
    def num_gone(self) -> int:
        return self.members.num_gone if self.members is not None else 0

    @property
    def round_trips_s(self) -> Mapping[str, float]:
        known = self.members.nodes if self.members is not None else ()
        return {node.name: node.round_trip_s for node in known if node.round_trip_s}

    @property
    def num_refused(self) -> Mapping[str, int]:
        return self.members.refused if self.members is not None else {}

    @property
    def num_fences(self) -> Mapping[str, int]:
        known = self.members.nodes if self.members is not None else ()
        return {node.name: node.num_fences for node in known}

    @property
    def certificates_left(self) -> Mapping[str, float]:
        known = self.members.nodes if self.members is not None else ()
        return {node.name: node.certificate_left for node in known}

    def _take(self, roster: Roster) -> None:
        if self.members is not None:
            self.members.take(roster)
