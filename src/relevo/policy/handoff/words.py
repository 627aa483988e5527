"""What a handoff is told (events), what it asks for (effects), its limits and its state. Plain data, no decisions.

The decisions are in `policy.handoff`; whoever carries out the effects (gateway, simulator) is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from relevo.core.baton import SampleState
from relevo.core.events import TokenOutput
from relevo.core.ids import RequestId, WorkerRef
from relevo.core.kv import Reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffLimits:
    """Clocks of one request; None is no limit. All of them ask for something, none of them releases anything."""

    queue_s: float | None = 60.0  # Reserve sent -> Reserved; then the client is told to come back
    prefill_s: float | None = 300.0  # without progress (a sealed chunk, a first token) of the prefill worker
    transfer_s: float | None = 60.0  # first tokens here -> all KV sealed, without progress
    drain_lease_s: float = 5.0  # Abort sent -> Dropped; longer than any step of the engine
    decode_stall_s: float | None = 120.0  # without a token of the decode worker
    max_attempts: int = 3  # workers may fail so often under one request, then it fails
    max_deaths: int = 2  # arbitrary; so many may end over it without a token between them: it may be why

    def of_who_gives_way(self, wait_s: float) -> HandoffLimits:
        """For requests that workers set aside while others want the room: so long nothing of them is no failure."""
        return replace(self, queue_s=wait_s, prefill_s=wait_s, decode_stall_s=wait_s)


class Outcome(StrEnum):
    FINISHED = "finished"
    ABORTED = "aborted"  # the client left
    FAILED = "failed"


class Phase(StrEnum):
    ROUTING = "routing"  # a Route is with the driver
    QUEUED = "queued"  # the decode worker was asked for room
    CHOOSING = "choosing"  # room is granted; the driver picks who computes the prompt
    PREFILLING = "prefilling"  # the prefill worker computes, first tokens are missing
    TRANSFERRING = "transferring"  # first tokens are here, KV is not all sealed yet
    SUBMITTED = "submitted"  # the decode worker has all that is left to do, no token of it yet
    DECODING = "decoding"  # tokens come from the decode worker
    RECALLING = "recalling"  # the prefill worker shall let go, the reservation stands; then prefill again
    REPLACING = "replacing"  # every worker shall let go; then Route again
    DRAINING = "draining"  # the client has its end; workers have yet to let go
    GONE = "gone"


# ---- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Routed:
    """Answer to Route. `split`: reserve on `decode` and prefill elsewhere; otherwise all of it runs on `decode`."""

    decode: WorkerRef
    split: bool


@dataclass(frozen=True, slots=True)
class NoRoute:
    """Answer to Route: nobody can take it."""

    code: str  # of core.errors
    reason: str
    retry_after_s: float | None = None


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
    """The worker holds and writes nothing of the request any more."""

    worker: WorkerRef
    num_sealed_tokens: int
    transferred_bytes: int = 0
    transfer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Dropped:
    """Answer to AskDrain, also from a worker that had nothing of the request any more."""

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
    has_left: bool = False  # it was asked to leave: nobody's failure
    is_unsent: bool = False  # what was last sent to it did not arrive


@dataclass(frozen=True, slots=True)
class ClientGone:
    pass


@dataclass(frozen=True, slots=True)
class TimeOver:
    """It is too late for the client: the request fails, wherever it is."""

    code: str  # of core.errors
    reason: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class StopEarly:
    """The client has all it asked for (every stop string was found) though workers would go on."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A timer that was armed has fired. Early, late and needless ticks are harmless."""


Event = (
    Routed
    | NoRoute
    | Granted
    | PrefillChosen
    | Sealed
    | Tokens
    | PrefillFinished
    | Dropped
    | Failed
    | WorkerDied
    | ClientGone
    | StopEarly
    | TimeOver
    | Tick
)

# ---- effects ---------------------------------------------------------------------------------------------------------


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
    """The baton is the request, `state.samples` and `num_sealed_tokens`."""

    worker: WorkerRef
    num_sealed_tokens: int


@dataclass(frozen=True, slots=True)
class SendSubmit:
    """`resume`: with `state.samples`, whose tokens the client already has; otherwise with none."""

    worker: WorkerRef
    use_reservation: bool
    resume: bool


@dataclass(frozen=True, slots=True)
class AskDrain:
    """On the wire: Abort."""

    worker: WorkerRef
    writer_active: bool  # somebody else may still write into the blocks that `worker` granted


@dataclass(frozen=True, slots=True)
class SendRelease:
    """On the wire: Release. Nobody writes into the granted blocks any more."""

    worker: WorkerRef


@dataclass(frozen=True, slots=True)
class FenceWorker:
    """Kill it: it did not answer AskDrain within its lease and may still write. Repeated until it is dead."""

    worker: WorkerRef
    reason: str


@dataclass(frozen=True, slots=True)
class Emit:
    """To the client. The tokens are already in `state.samples`."""

    output: TokenOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Terminal for the client. Exactly one per request, nothing is emitted after it."""

    outcome: Outcome
    code: str | None = None  # of core.errors, if it failed
    reason: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ArmTimer:
    """Send Tick at that time; replaces the timer of the same request."""

    at_ns: int


Effect = (
    Route
    | SendReserve
    | ChoosePrefill
    | SendPrefill
    | SendSeal
    | SendStartDecode
    | SendSubmit
    | AskDrain
    | SendRelease
    | FenceWorker
    | Emit
    | End
    | ArmTimer
)

# ---- state -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """What one worker still has of the request. It is over when nothing of it is left."""

    worker: WorkerRef
    holds: bool = True  # it may hold blocks, compute or write
    is_asked: bool = False  # AskDrain is unanswered
    drain_by_ns: int | None = None  # then it is fenced, if it may still hold something
    owes_release: bool = False  # decode only: blocks are in quarantine until SendRelease

    @property
    def is_over(self) -> bool:
        return not (self.holds or self.is_asked or self.owes_release)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffState:
    """One request as the gateway drives it. Frozen, except that `samples` grow in place, token by token."""

    request_id: RequestId
    num_prompt_tokens: int
    block_size: int  # tokens
    limits: HandoffLimits
    samples: tuple[SampleState, ...]  # what the client has, one per continuation
    phase: Phase = Phase.ROUTING
    decode: Leg | None = None
    prefill: Leg | None = None
    reservation: Reservation | None = None  # of `decode`
    num_sealed_tokens: int = 0  # in the reservation, hits included
    num_found_tokens: int = 0  # hits when the reservation was granted: nobody had to compute them for this request
    excluded: tuple[WorkerRef, ...] = ()  # incarnations that failed this request
    num_failures: int = 0
    num_deaths: int = 0  # workers that ended while they computed the request, since tokens last came
    num_tokens_at_death: int = 0  # what the client had when the last of them ended
    failure: tuple[str, str] | None = None  # code and reason of the last one
    deadline_at_ns: int | None = None  # of the phase
    timer_at_ns: int | None = None  # as last armed
    has_ended: bool = False
    transferred_bytes: int = 0
    transfer_s: float = 0.0

    @property
    def is_gone(self) -> bool:
        """No worker has anything of the request; the state can be forgotten."""
        return self.phase is Phase.GONE

    @property
    def has_emitted(self) -> bool:
        return any(s.output_token_ids or s.finish_reason is not None for s in self.samples)
