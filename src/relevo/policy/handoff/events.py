"""What a handoff is told: answers of its driver, and what workers and clients did. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.baton import KVTicket
from relevo.core.events import TokenOutput
from relevo.core.ids import WorkerRef
from relevo.core.kv import Reservation
from relevo.core.outcome import RequestEnd


@dataclass(frozen=True, slots=True)
class LetIn:
    """Its turn in the gateway's line has come."""


@dataclass(frozen=True, slots=True)
class Routed:
    """Answer to Route. `split`: reserve on `decode` and prefill elsewhere; otherwise all of it runs on `decode`."""

    decode: WorkerRef
    split: bool


@dataclass(frozen=True, slots=True)
class NoRoute:
    """Answer to Route: no worker can take it."""

    end: RequestEnd


@dataclass(frozen=True, slots=True)
class Granted:
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class PrefillChosen:
    """Answer to ChoosePrefill. None: the decode worker computes the prompt itself, in the room it granted."""

    worker: WorkerRef | None


@dataclass(frozen=True, slots=True)
class Sealed:
    worker: WorkerRef
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Tokens:
    worker: WorkerRef
    output: TokenOutput


@dataclass(frozen=True, slots=True)
class PrefillFinished:
    """The worker writes nothing of the request any more. With a `ticket` it keeps the KV for the decode worker, which
    draws the first token; the end of that is not the request's to wait for."""

    worker: WorkerRef
    num_sealed_tokens: int
    transferred_bytes: int = 0
    transfer_s: float = 0.0
    ticket: KVTicket | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """Answer to SendAbort, also from a worker that had nothing of the request any more."""

    worker: WorkerRef


@dataclass(frozen=True, slots=True)
class Failed:
    """RequestFailed or Refused: the worker neither holds nor writes anything of the request."""

    worker: WorkerRef
    code: str  # of core.errors
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """The process is gone, so it writes nothing any more. Also the answer to anything sent to a worker that is gone."""

    worker: WorkerRef
    has_left: bool = False  # it was asked to leave, which is no failure
    is_unsent: bool = False  # what was last sent to it did not arrive


@dataclass(frozen=True, slots=True)
class WorkerCut:
    """The link to it has ended and its process may live: what it makes can no longer arrive here, and it may still
    compute. WorkerDied follows when it has let go, or its node has."""

    worker: WorkerRef
    may_write: bool = False  # into the decode worker's blocks, which cannot refuse it: they share memory
    has_left: bool = False  # it was asked to leave, which is no failure


@dataclass(frozen=True, slots=True)
class EndRequested:
    """The request ends, wherever it is: its client is gone, or has all it asked for (a stop string) though workers
    would go on, or it is too late."""

    end: RequestEnd


@dataclass(frozen=True, slots=True)
class Tick:
    """`HandoffState.due_at_ns` is over. Early, late and needless ticks are harmless."""


Event = (
    LetIn
    | Routed
    | NoRoute
    | Granted
    | PrefillChosen
    | Sealed
    | Tokens
    | PrefillFinished
    | Dropped
    | Failed
    | WorkerDied
    | WorkerCut
    | EndRequested
    | Tick
)
