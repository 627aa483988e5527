"""The seam between the HTTP side of the gateway and whatever generates tokens behind it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from relevo.core.events import StepCounters, TokenOutput, WorkerLoad
from relevo.core.kv import KVLayout
from relevo.core.request import EngineRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One worker as /health, /ready and /metrics show it."""

    worker_id: str
    role: str  # "prefill", "decode" or "unified"
    ready: bool
    epoch: int
    pid: int
    load: WorkerLoad
    counters: StepCounters
    layout: KVLayout | None = None
    address: str = ""  # where gateways reach it


@dataclass(frozen=True, slots=True, kw_only=True)
class LineStatus:
    """What waits in the gateway, of one class."""

    name: str  # "interactive" or "batch"
    num_waiting: int
    oldest_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """`ready` means: a request sent now would be served."""

    ready: bool
    reason: str  # why not ready, empty otherwise
    num_queued: int = 0  # requests the gateway holds back
    num_in_flight: int = 0  # requests of which a worker may still hold something, the queued ones included
    workers: tuple[WorkerStatus, ...] = field(default_factory=tuple)
    lines: tuple[LineStatus, ...] = field(default_factory=tuple)


class TokenGenerator(Protocol):
    """Turns an engine request into tokens. Implemented by `orchestrator.dispatch` and by fakes in tests."""

    def generate(self, request: EngineRequest) -> AsyncGenerator[TokenOutput, None]:
        """Yield outputs until every continuation has a `finish_reason`.

        Raises a `core.errors.RelevoError` (before the first output: Overloaded, NoWorker, InvalidRequest ...; later:
        WorkerError). Closing the generator early aborts the request on every worker; closing is idempotent.
        """
        ...

    def status(self) -> EngineStatus: ...

    def drain(self, worker_id: str) -> bool:
        """Ask a worker to finish what it runs and leave. False: it is not ready, nothing was asked."""
        ...
