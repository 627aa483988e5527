"""Numbers of incarnations: of nodes, of sessions of a node with a head, and of workers as gateways see them.

A node's epoch never repeats: it is above all that the node remembers, above all that any head it reached remembers, and
not below the time in tenths of a second, so that a node or a head that lost its disk does not begin again from one: no
process is started again within one of them. Worker's epochs stay below 2**53, which JSON's readers keep exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_TICKS_PER_S = 10
INCARNATION_BITS = 16  # of a worker's process within one epoch of its node; a supervisor gives up long before


class NodeRef(NamedTuple):
    """One incarnation of a node. Never an address: another process may answer there tomorrow."""

    name: str
    epoch: int


class Session(NamedTuple):
    """One stay of a node with one head; of two the greater is the later. `number` grows within an epoch: a node that
    lost one head of several comes back to it under the same epoch, after it has ended all that this head had there."""

    epoch: int
    number: int


NO_SESSION = Session(0, 0)


def next_epoch(known: Iterable[int], unix_s: float) -> int:
    """Above every known one. `known`: what the node has on disk, and what the heads say."""
    return max(*(epoch + 1 for epoch in known), int(unix_s * _TICKS_PER_S), 1)


def worker_epoch(node_epoch: int, incarnation: int) -> int:
    """As gateways of the cluster see the worker; `incarnation` counts its processes."""
    return (node_epoch << INCARNATION_BITS) | incarnation_of(incarnation)


def incarnation_of(epoch: int) -> int:
    """Of the process, by which its supervisor knows it."""
    return epoch & ((1 << INCARNATION_BITS) - 1)


def node_epoch_of(epoch: int) -> int:
    """0: the worker has none yet."""
    return epoch >> INCARNATION_BITS


def sessions_of_process(incarnation: int) -> int:
    """The first number of a node process; those of its successor are greater."""
    return incarnation << 32
