"""What a handoff asks for, to be carried out in order. Each `Send` is the wire message of that name. Plain data.

A `RequestEnd` is terminal for the client: exactly one per request, nothing is emitted after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.baton import KVTicket
from relevo.core.events import TokenOutput
from relevo.core.ids import WorkerRef
from relevo.core.kv import Reservation
from relevo.core.outcome import RequestEnd


@dataclass(frozen=True, slots=True)
class Route:
    """Choose a decode worker, answer Routed or NoRoute. `resume`: tokens were emitted, so it will be one Submit.

    Of Route and ChoosePrefill only the newest is answered; an older one that is still open is void.
    """

    reason: str
    exclude: tuple[WorkerRef, ...]
    resume: bool


@dataclass(frozen=True, slots=True)
class SendReserve:
    worker: WorkerRef


@dataclass(frozen=True, slots=True)
class ChoosePrefill:
    """Choose who computes the prompt, answer PrefillChosen. Tokens that are a hit or sealed need no computing."""

    reservation: Reservation
    num_uncached_tokens: int
    exclude: tuple[WorkerRef, ...]


@dataclass(frozen=True, slots=True)
class SendPrefill:
    """`reservation.num_hit_tokens` counts what an earlier prefill worker sealed: it must not be written again."""

    worker: WorkerRef
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class SendSeal:
    worker: WorkerRef
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SendStartDecode:
    """The baton is the request, `state.samples`, `num_sealed_tokens` and the ticket."""

    worker: WorkerRef
    num_sealed_tokens: int
    ticket: KVTicket | None = None


@dataclass(frozen=True, slots=True)
class SendSubmit:
    """`resume`: with `state.samples`, whose tokens the client already has; otherwise with none."""

    worker: WorkerRef
    use_reservation: bool
    resume: bool


@dataclass(frozen=True, slots=True)
class SendAbort:
    """It shall let go of the request, and answers Dropped."""

    worker: WorkerRef
    writer_active: bool  # another worker may still write into the blocks that `worker` granted


@dataclass(frozen=True, slots=True)
class SendRelease:
    """No worker writes into the granted blocks any more."""

    worker: WorkerRef


@dataclass(frozen=True, slots=True)
class KillWorker:
    """It did not answer SendAbort within its lease and may still write. Repeated until it is dead."""

    worker: WorkerRef
    reason: str


@dataclass(frozen=True, slots=True)
class Emit:
    """To the client. The tokens are already in `state.samples`."""

    output: TokenOutput


Effect = (
    Route
    | SendReserve
    | ChoosePrefill
    | SendPrefill
    | SendSeal
    | SendStartDecode
    | SendSubmit
    | SendAbort
    | SendRelease
    | KillWorker
    | Emit
    | RequestEnd
)
