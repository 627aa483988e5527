"""What happened to one request, when, and beside what: marks on the gateway's clock.

Written while it runs by what sees a thing happen (the HTTP side, the dispatcher), read once it has ended by whatever
tells of it: the ring of requests, spans, `relevo why`. Holds no text, no token and no client's name; what else ran is
in it as numbers. `policy.slowness` says what it means. Marks that were not reached are None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from relevo.core.baton import PrefillFacts
from relevo.core.events import StepCosts, StepCounters, WorkerLoad
from relevo.core.handoff import Link
from relevo.core.ids import WorkerRef


class HitsLost(StrEnum):
    """Why tokens that this gateway knew to be cached are not found where the request goes."""

    EVICTED = "evicted"
    WORKER_LOST = "lost_worker"  # the worker that had them is gone
    MOVED = "moved"  # another worker has them, and was passed over


@dataclass(slots=True, kw_only=True)
class Leg:
    """One attempt at the request, by one worker or by two; the next one follows a failure, or a worker that left."""

    routed_at_ns: int
    decode: WorkerRef
    reason: str  # the router's
    is_split: bool = False
    is_resumed: bool = False  # tokens had been emitted
    num_hit_tokens: int = 0  # of the prompt, believed to be cached on the decode worker
    num_lost_hit_tokens: int = 0  # of the prompt, known to be cached once and not there now
    hits_lost: HitsLost | None = None  # why, of most of them
    decode_load: WorkerLoad | None = None  # as it was known when it was routed
    granted_at_ns: int | None = None  # room on the decode worker, of a split request
    prefill: WorkerRef | None = None  # who computes the prompt, once that is chosen
    prefill_reason: str = ""
    prefill_load: WorkerLoad | None = None
    asked_counters: StepCounters | None = None  # of the worker that computes the prompt, as known when it was asked
    prompt_counters: StepCounters | None = None  # the same, with the first output
    prompt_costs: StepCosts | None = None  # of its steps, told with them: a worker learns them from what it does
    link: Link | None = None  # over which the blocks go; None: they stay
    first_output_at_ns: int | None = None
    facts: PrefillFacts | None = None  # of the worker that computed the prompt in this leg
    handed_over_at_ns: int | None = None  # all blocks are sealed on the decode worker
    decode_started_at_ns: int | None = None  # the baton was sent
    started_counters: StepCounters | None = None  # of the decode worker, as known then
    decode_output_at_ns: int | None = None  # first output of the decode worker, where another computed the prompt
    first_counters: StepCounters | None = None  # of the decode worker, with its first output in this leg
    last_counters: StepCounters | None = None  # the same, with its latest
    last_costs: StepCosts | None = None  # told with them
    transferred_bytes: int = 0
    transfer_s: float = 0.0  # bytes under way
    last_output_at_ns: int | None = None  # its last sign, where it failed
    ended_at_ns: int | None = None
    failure: str = ""  # why another leg had to follow


@dataclass(slots=True, kw_only=True)
class Preemption:
    """Its blocks went to another request; what was computed is computed again."""

    at_ns: int
    worker: WorkerRef
    resumed_at_ns: int | None = None  # next output


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The time between two outputs of a request, and what its worker did in it: counters after minus before."""

    from_ns: int
    to_ns: int
    worker: WorkerRef
    before: StepCounters | None  # None: the first output came from another worker
    after: StepCounters
    load: WorkerLoad | None = None  # told with `after`

    @property
    def gap_s(self) -> float:
        return (self.to_ns - self.from_ns) / 1e9


@dataclass(slots=True, kw_only=True)
class Timeline:
    accepted_at_ns: int
    prepared_at_ns: int | None = None  # read, templated, tokenized: handed to the orchestrator
    num_ahead: int = 0  # in its line when it entered
    let_in_at_ns: int | None = None  # left the line
    legs: list[Leg] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)  # bounded: of the first ones
    num_preemptions: int = 0
    worst_gap: Gap | None = None
    num_outputs: int = 0  # messages with tokens
    last_output_at_ns: int | None = None
    first_written_at_ns: int | None = None  # to the client's stream, or kept for a whole answer
    last_written_at_ns: int | None = None
    blocked_s: float = 0.0  # summed: outputs that waited because the client did not read
    blocked_first_s: float = 0.0  # the same, of the first
    ended_at_ns: int | None = None
