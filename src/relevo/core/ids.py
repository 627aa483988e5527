"""Identifiers. Each is a plain value; `NewType` keeps them from being mixed up."""

from __future__ import annotations

from typing import NamedTuple, NewType

RequestId = NewType("RequestId", str)
WorkerId = NewType("WorkerId", str)
TokenId = int
SequenceId = int  # of a sequence while it holds blocks on a worker; never used again
BlockId = int
PeerId = NewType("PeerId", int)  # a gateway's connection to one worker; never used twice by that worker
BlockHash = bytes  # 16 bytes, see policy.worker.prefix_cache
NO_PEER = PeerId(-1)


class WorkerRef(NamedTuple):
    """One incarnation of a worker. A worker that was restarted has the same id and another epoch.

    A tuple, because it is compared and looked up several times per token.
    """

    worker_id: WorkerId
    epoch: int
