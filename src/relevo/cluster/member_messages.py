"""What a node and a head say to each other on a member connection, on heartbeats, and when a link is opened.

node → head  NodeHello                 head → node  Known | Denied      (what differs; the highest epoch it knows)
node → head  Claim                     head → node  Welcome | Denied    (after it has dialled back)
node → head  Workers 1, 2, …           head → node  Heads, Revoked, KillWorker, DrainNode
node → head  Leave
head → head  AskEpoch                  head → head  Known
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from relevo.cluster.identity_revoked import Revocation
from relevo.core.cluster import ClusterFacts, LinkReport, NodeEngine, NodeFacts, NodeWorker


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class AskFacts(_Message, frozen=True, tag=True):
    """Instead of NodeHello, by a node that has not started its workers: what must be equal? Answered with Facts."""


class AskEpoch(_Message, frozen=True, tag=True):
    """Instead of NodeHello, by a head that is about to take that node in. Answered with Known."""

    name: str


class Facts(_Message, frozen=True, tag=True):
    facts: ClusterFacts
    heads: tuple[str, ...]


class NodeHello(_Message, frozen=True, tag=True):
    facts: NodeFacts
    unix_s: float  # of its clock, now
    epoch: int  # the highest that it remembers
    control: str  # where others reach its control port
    head: str = ""  # where nodes reach it as a head; empty: it is none


class Known(_Message, frozen=True, tag=True):
    """What is compared fits. `epoch`: the highest of this node that the head remembers."""

    epoch: int
    notes: tuple[str, ...] = ()  # what differs and may


class Denied(_Message, frozen=True, tag=True):
    """`is_final`: the same question will have the same answer."""

    reason: str  # of policy.cluster.checks
    message: str
    is_final: bool = False
    epoch: int = 0


class Claim(_Message, frozen=True, tag=True):
    epoch: int
    session: int


class Welcome(_Message, frozen=True, tag=True):
    """From here on heartbeats of this session are acknowledged."""


class Workers(_Message, frozen=True, tag=True):
    """All that can be reached now. `number` grows by one: an older one is not taken for the news."""

    number: int
    workers: tuple[NodeWorker, ...]
    links: tuple[LinkReport, ...] = ()
    engines: tuple[NodeEngine, ...] = ()  # that are not ours
    num_fences: int = 0  # of this process of the node


class Heads(_Message, frozen=True, tag=True):
    """Addresses of all heads that are known, this one included, and of the other nodes' ports for KV."""

    heads: tuple[str, ...]
    peers: tuple[NodePeer, ...] = ()


class NodePeer(msgspec.Struct, frozen=True, array_like=True):
    """Another node that KV may go to."""

    name: str
    control: str
    kv_addresses: tuple[str, ...]
    kv_workers: tuple[tuple[str, int], ...]  # of which worker each is, and its epoch

    @classmethod
    def of(cls, name: str, control: str, workers: Iterable[NodeWorker]) -> NodePeer:
        ends = [(address, (worker.worker_id, worker.epoch)) for worker in workers for address in worker.kv_addresses]
        return cls(name, control, tuple(address for address, _ in ends), tuple(worker for _, worker in ends))


class Revoked(_Message, frozen=True, tag=True):
    """Enrolments that were revoked, all that are known; the authority has signed each."""

    entries: tuple[Revocation, ...]


class KillWorker(_Message, frozen=True, tag=True):
    """It does not let go of blocks, or its loop does not answer."""

    worker_id: str
    epoch: int
    reason: str


class DrainNode(_Message, frozen=True, tag=True):
    """Finish what runs, then leave. `for_good`: it is not waited for."""

    for_good: bool = False


class Leave(_Message, frozen=True, tag=True):
    for_good: bool = False


class HeartbeatOf(msgspec.Struct, frozen=True, array_like=True):
    """What a heartbeat connection is opened for."""

    epoch: int
    session: int


class Beat(_Message, frozen=True, tag=True):
    number: int
    round_trip_s: float = 0.0  # of the one before; 0: not known


class Ack(_Message, frozen=True, tag=True):
    number: int


class LinkTo(msgspec.Struct, frozen=True, array_like=True):
    """What a link is opened for. `gateway`: of one gateway process, so that its older link to the worker is ended."""

    gateway: str
    worker_id: str
    epoch: int  # of the node
    session: int


FROM_NODE: msgspec.msgpack.Decoder[AskFacts | AskEpoch | NodeHello | Claim | Workers | Leave] = msgspec.msgpack.Decoder(
    AskFacts | AskEpoch | NodeHello | Claim | Workers | Leave
)
FROM_HEAD: msgspec.msgpack.Decoder[Facts | Known | Denied | Welcome | Heads | Revoked | KillWorker | DrainNode] = (
    msgspec.msgpack.Decoder(Facts | Known | Denied | Welcome | Heads | Revoked | KillWorker | DrainNode)
)
BEAT: msgspec.msgpack.Decoder[Beat] = msgspec.msgpack.Decoder(Beat)
ACK: msgspec.msgpack.Decoder[Ack] = msgspec.msgpack.Decoder(Ack)
HEARTBEAT_OF: msgspec.msgpack.Decoder[HeartbeatOf] = msgspec.msgpack.Decoder(HeartbeatOf)
LINK_TO: msgspec.msgpack.Decoder[LinkTo] = msgspec.msgpack.Decoder(LinkTo)
