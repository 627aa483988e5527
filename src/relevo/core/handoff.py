"""The words for KV between two workers: where each keeps it, what joins the two, and what each can do of a handoff.

`policy.routing.kv_path` decides from two `KVSite`s how a pair of workers hands over.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Reach(StrEnum):
    """Between which workers a transport works."""

    ARENA = "arena"  # that map the same memory: the sender computes straight into the receiver's blocks
    BOX = "box"  # on the same machine
    NETWORK = "network"  # all


class Link(IntEnum):
    """How far blocks have to go, cheapest first: the class of what a handoff costs."""

    MEMORY = 0  # nowhere: sender and receiver share the memory that they lie in
    BOX = 1
    NETWORK = 2


class Ability(StrEnum):
    """Of a worker, beside Submit, which every worker can."""

    RESERVE = "reserve"  # grants room for a prompt that another worker computes, and decodes from there
    PREFILL = "prefill"  # computes a prompt into the room that another worker has granted
    ROLE = "role"  # changes its role while it runs


ALL_ABILITIES = frozenset(Ability)


@dataclass(frozen=True, slots=True)
class KVEndpoint:
    """One transport of a worker, as senders find it."""

    transport: str  # its name in `kv.transports.registry`
    address: str  # opaque to all but that transport
    reach: Reach


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSite:
    """Where a worker keeps its blocks, and how others reach them."""

    box_id: str  # the same for all workers of a machine, until it is started again
    arena_id: str  # inside a box the same for all workers that map the same memory
    endpoints: tuple[KVEndpoint, ...]  # the worker's own preference first; none: it takes part in no handoff

    def __hash__(self) -> int:
        """Of what tells nearly all sites apart: a choice looks dozens of pairs up."""
        return hash((self.box_id, self.arena_id))


NO_SITE = KVSite(box_id="", arena_id="", endpoints=())


@dataclass(frozen=True, slots=True)
class KVPath:
    """How the blocks of one handoff get from the worker that computes them to the one that reserved them."""

    transport: str
    address: str  # of the receiver
    link: Link

    @property
    def zero_copy(self) -> bool:
        """The prompt is computed straight into the receiver's blocks; otherwise into the sender's own, and sent."""
        return self.link is Link.MEMORY
