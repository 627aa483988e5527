"""Where a request stands between workers, and its limits. Plain data; `machine` and `recovery` change it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from relevo.core.baton import SampleState
from relevo.core.ids import RequestId, WorkerRef
from relevo.core.kv import Reservation
from relevo.core.outcome import RequestEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffLimits:
    """Clocks of one request; None is no limit. Each of them asks for something, none releases anything."""

    queue_s: float | None = 60.0  # Reserve sent -> Reserved; then the client is told to come back
    prefill_s: float | None = 300.0  # without progress (a sealed chunk, a first token) of the prefill worker
    transfer_s: float | None = 60.0  # first tokens here -> all KV sealed, without progress
    drain_lease_s: float = 5.0  # Abort sent -> Dropped; longer than any step of the engine
    decode_stall_s: float | None = 120.0  # without a token of the decode worker
    max_attempts: int = 3  # workers may fail so often under one request, then it fails
    max_deaths: int = 2  # arbitrary; so many may end over it without a token between them: it may be why

    def for_batch(self, wait_s: float) -> HandoffLimits:
        """For requests that workers set aside while others want the room: so long nothing of them is no failure."""
        return replace(self, queue_s=wait_s, prefill_s=wait_s, decode_stall_s=wait_s)


def after_ns(now_ns: int, limit_s: float | None) -> int | None:
    return None if limit_s is None else now_ns + round(limit_s * 1e9)


class Phase(StrEnum):
    WAITING = "waiting"  # in the gateway's line, no worker knows of it
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one worker was given of the request and still has. It is over when nothing of it is left."""

    worker: WorkerRef
    holds: bool = True  # it may hold blocks, compute or write
    is_aborting: bool = False  # SendAbort is unanswered
    let_go_by_ns: int | None = None  # then it is killed, if it may still hold something
    owes_release: bool = False  # decode only: blocks are in quarantine until SendRelease

    @property
    def is_over(self) -> bool:
        return not (self.holds or self.is_aborting or self.owes_release)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffState:
    """One request as the gateway drives it. Frozen, except that `samples` grow in place, token by token."""

    request_id: RequestId
    num_prompt_tokens: int
    limits: HandoffLimits
    samples: tuple[SampleState, ...]  # what the client has, one per continuation
    phase: Phase = Phase.WAITING
    decode: Assignment | None = None
    prefill: Assignment | None = None
    reservation: Reservation | None = None  # of `decode`
    num_sealed_tokens: int = 0  # in the reservation, hits included
    num_found_tokens: int = 0  # hits when the reservation was granted: not computed for this request
    excluded: tuple[WorkerRef, ...] = ()  # incarnations that failed this request
    num_failures: int = 0
    num_deaths: int = 0  # workers that ended while they computed the request, since tokens last came
    num_tokens_at_death: int = 0  # what the client had when the last of them ended
    failure: RequestEnd | None = None  # the last one
    deadline_at_ns: int | None = None  # of the phase
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

    @property
    def in_charge(self) -> WorkerRef | None:
        """Who computes it: whose tokens count, and whose end it may be the reason for."""
        if self.phase in (Phase.SUBMITTED, Phase.DECODING):
            return self.decode.worker if self.decode is not None else None
        if self.phase in (Phase.PREFILLING, Phase.TRANSFERRING):
            return self.prefill.worker if self.prefill is not None else None
        return None

    @property
    def is_writer_active(self) -> bool:
        return self.prefill is not None and self.prefill.holds

    @property
    def due_at_ns(self) -> int | None:
        """When Tick is to be told next; None: never."""
        due = [a.let_go_by_ns for a in (self.prefill, self.decode) if a is not None and a.let_go_by_ns is not None]
        if self.deadline_at_ns is not None:
            due.append(self.deadline_at_ns)
        return min(due, default=None)
