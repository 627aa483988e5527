"""What the node process of a head tells the gateways of its box over a socket of their own, and what they ask.

Every roster is whole and numbered: a gateway that connects anew, or missed some, knows everything with the next.
"""

from __future__ import annotations

import msgspec

from relevo.core.cluster import NodeReport, RemoteWorker


class Roster(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`is_settled`: the head has been up for so long that a node that it does not name is gone."""

    number: int
    is_settled: bool
    workers: tuple[RemoteWorker, ...]
    nodes: tuple[NodeReport, ...]
    denied: dict[str, int] = {}  # joins, by reason, since the start of the node process
    num_gone: int = 0
    refused: dict[str, int] = {}  # connections to the control port, by reason
    compute: str = ""  # of this box, see NodeFacts


class KillRemote(msgspec.Struct, frozen=True, tag=True, array_like=True):
    worker_id: str
    epoch: int
    reason: str


class DrainRemote(msgspec.Struct, frozen=True, tag=True, array_like=True):
    node: str
    for_good: bool


ROSTER: msgspec.msgpack.Decoder[Roster] = msgspec.msgpack.Decoder(Roster)
ASKED: msgspec.msgpack.Decoder[KillRemote | DrainRemote] = msgspec.msgpack.Decoder(KillRemote | DrainRemote)
