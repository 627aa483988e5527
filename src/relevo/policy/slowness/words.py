"""The words in which a request's time is told. Plain data; `policy.slowness.explain` fills it in."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class PhaseName(StrEnum):
    """In the order in which a request goes through them. Up to FIRST_WRITE they sum to the time to the first token,
    all of them to the end-to-end latency."""

    PREPARE = "prepare"  # read, templated, tokenized
    LINE = "line"  # held back by the gateway
    ROUTE = "route"  # no worker was ready
    ROOM = "room"  # queued for blocks on the decode worker
    QUEUE = "queue"  # at the worker that computes the prompt, until its first chunk
    PREFILL = "prefill"  # first chunk -> first token drawn
    MESSAGES = "messages"  # between the processes, and what the gateway takes
    RECOVER = "recover"  # a worker failed: until the next one was asked
    FIRST_WRITE = "first_write"  # first token here -> written to the client
    HANDOFF = "handoff"  # first token -> first token of the decode worker
    DECODE = "decode"
    PREEMPTED = "preempted"
    CLIENT = "client"  # tokens waited for a client that did not read
    SETTLE = "settle"  # last token -> end


class SlowCause(StrEnum):
    """What the largest part of the avoidable time went to."""

    NOTHING = "nothing"  # it took what its own tokens take
    OWN_PROMPT = "own_prompt"  # long, and nowhere cached
    OWN_OUTPUT = "own_output"  # many tokens
    LINE = "line"
    ROOM = "room"
    NO_WORKER = "none_ready"
    WORKER_QUEUE = "worker_queue"
    EVICTED_PREFIX = "evicted_prefix"
    MOVED_PREFIX = "moved_prefix"  # its cache is on another worker, or was
    SLOW_LINK = "slow_link"
    PREEMPTION = "preemption"
    WORKER_LOST = "lost_worker"
    LONG_NEIGHBOUR = "long_neighbour"  # others' prompt tokens in its steps
    CROWDED_STEPS = "crowded_steps"  # many streams in its steps
    SLOW_STEPS = "slow_steps"  # longer than what was in them takes this worker
    SLOW_CLIENT = "slow_client"
    GATEWAY = "gateway"
    REFUSED = "refused"  # it was never let in


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    name: PhaseName
    begins_s: float  # after the request was accepted
    took_s: float
    worker_id: str = ""  # where it was; empty: in the gateway
    facts: dict[str, int | float | str] = field(default_factory=dict)  # e.g. num_cached_tokens, transferred_bytes
    is_before_first_token: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int  # of all continuations


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    cause: SlowCause
    sentence: str  # names the phase, its time, and what was beside it; other tenants only as numbers
    advice: str  # what would help; empty: nothing is wrong
    phases: tuple[Phase, ...]
    ttft_s: float | None
    e2e_s: float
    worst_gap_s: float | None = None
