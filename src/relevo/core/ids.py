"""Identifiers. Each is a plain value; `NewType` keeps them from being mixed up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

RequestId = NewType("RequestId", str)
WorkerId = NewType("WorkerId", str)
TokenId = int
BlockId = int
BlockHash = bytes  # 16 bytes, see policy.prefix_cache


@dataclass(frozen=True, slots=True, order=True)
class WorkerRef:
    """One incarnation of a worker. A worker that was restarted has the same id and another epoch."""

    worker_id: WorkerId
    epoch: int
