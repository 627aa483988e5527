"""The words for many machines: what a node is, what must be equal on all of them, and how two of them are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from relevo.core.kv import KVLayout

OWN_ENGINE = "relevo"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node says of itself when it joins."""

    version: str  # of Relevo
    protocol_version: int  # between gateways and workers
    model_name: str  # as its workers call it: said, not compared
    model_hash: str
    tokenizer_hash: str
    max_model_len: int
    layout: KVLayout | None = None  # None: it has no workers
    compute: str = ""  # backend, instruction set and types: where two differ, so do last bits of logits


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What a head says to a node that is about to start its workers."""

    node: NodeFacts
    model: str  # as MODEL was written at the head
    revision: str | None
    dtype: str
    quantization: str | None
    activation_dtype: str
    kv_cache_dtype: str
    block_size: int
    engine: str = OWN_ENGINE  # what computes on all boxes
    is_cut: bool = False  # its models are computed in slices, with the bits of every tensor parallel size
    enable_expert_parallel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWorker:
    """One worker of a node, as the node tells heads."""

    worker_id: str
    role: str
    epoch: int
    kv_addresses: tuple[str, ...] = ()  # where other boxes reach its blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEngine:
    """An engine that is not ours on a node, as the node tells heads; gateways reach it directly."""

    worker_id: str
    role: str
    spec: str = field(repr=False)  # as `engines.spec` packs it; its key is in there
    is_leaving: bool = False  # finishes what it has, takes nothing new


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """The way for KV from one node to another, as it was last measured by the first."""

    to_node: str
    bytes_per_s: float = 0.0
    round_trip_s: float = 0.0
    mtu_bytes: int = 0
    encryption: str = ""
    fault: str = ""  # a sentence; empty: it works


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWorker:
    """A worker of another box, as a gateway hears of it."""

    worker_id: str
    role: str
    node: str
    address: str  # of `wire.address.NodeAddress`
    is_here: bool = True  # False: its node is gone, and has let go of everything
    reason: str = ""  # why it is not
    engine: NodeEngine | None = None  # it is not ours
    compute: str = ""  # see NodeFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One machine as `relevo nodes` shows it."""

    name: str
    role: str  # "head" or "node"
    state: str
    epoch: int
    since_unix_s: float
    address: str = ""
    version: str = ""
    workers: tuple[NodeWorker, ...] = ()
    links: tuple[LinkReport, ...] = ()
    notes: tuple[str, ...] = ()
    round_trip_s: float = 0.0  # of heartbeats
    num_fences: int = 0  # how often it let go of everything, since its process began
    certificate_left: float = 1.0  # of the life of the certificate that it was last seen with


def shown_engines(engines: Sequence[NodeEngine], node_epoch: int) -> tuple[NodeWorker, ...]:
    """As operators see them: without the way to them, which holds a key."""
    return tuple(NodeWorker(worker_id=each.worker_id, role=each.role, epoch=node_epoch) for each in engines)


def worker_id_on(node: str, worker_id: str) -> str:
    """What a worker of a node is called in its cluster, `worker_id` being its name on the box."""
    return f"{node}/{worker_id}"


def is_of_node(worker_id: str) -> bool:
    """Whether that worker is on another box than the gateway's own."""
    return "/" in worker_id


def box_id_of(node: str) -> str:
    """What workers of a cluster call the box that they are on; see `core.handoff.KVSite`."""
    return f"node {node}"
