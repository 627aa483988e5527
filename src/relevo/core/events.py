"""What engines and transports report. Plain data; carried by `wire.messages` between processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from relevo.core.baton import PrefillFacts, SampledToken
from relevo.core.ids import RequestId
from relevo.core.kv import Reservation
from relevo.core.prompt_scores import PromptScores
from relevo.core.request import FinishReason
from relevo.core.role import RoleChange


class TokenOutput(NamedTuple):
    """New tokens of one continuation, in order. `finish_reason` is set on the last one only.

    Where scores of the prompt were asked for they come before its first token, in outputs without tokens; some may come
    twice, after a preemption or from another worker.
    """

    request_id: RequestId
    sample_index: int
    tokens: tuple[SampledToken, ...]
    finish_reason: FinishReason | None = None
    facts: PrefillFacts | None = None  # on the first output of a request, from the worker that computed its prompt
    prompt_scores: PromptScores | None = None  # then there is nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Coefficients of step time in seconds: base + per_token * tokens + per_kv_token * context tokens read."""

    base_s: float
    per_token_s: float
    per_kv_token_s: float

    def step_s(self, num_tokens: int, num_kv_tokens: float) -> float:
        return self.base_s + self.per_token_s * num_tokens + self.per_kv_token_s * num_kv_tokens


UNKNOWN_COSTS = StepCosts(base_s=0.0, per_token_s=0.0, per_kv_token_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What the hardware of one worker can do at most, as measured at its start. None: not known."""

    product_ops_per_s: float | None = None  # a multiply-add is two
    read_bytes_per_s: float | None = None  # of memory

    def on_cores(self, fraction: float) -> WorkerLimits:
        """Of so many times the cores that it was measured on, as if both grew with them: of memory that is too much."""
        if fraction == 1.0:
            return self
        return WorkerLimits(
            product_ops_per_s=None if self.product_ops_per_s is None else self.product_ops_per_s * fraction,
            read_bytes_per_s=None if self.read_bytes_per_s is None else self.read_bytes_per_s * fraction,
        )


UNKNOWN_LIMITS = WorkerLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """A worker's state after a step. Blocks: free + reusable + held + quarantined == total."""

    num_running: int = 0  # continuations that decode
    num_waiting: int = 0  # requests that wait for room or for their first chunk
    num_reserved: int = 0  # reservations granted, decode not started
    num_waiting_prefill_tokens: int = 0  # uncached prompt tokens not yet computed, running chunks included
    num_decode_kv_tokens: int = 0  # context of all decoding continuations
    num_free_blocks: int = 0
    num_reusable_blocks: int = 0
    num_held_blocks: int = 0
    num_quarantined_blocks: int = 0
    num_total_blocks: int = 0
    costs: StepCosts = UNKNOWN_COSTS
    role: RoleChange | None = None  # the last that it was given; None: it has the role that it began with


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounters:
    """Monotonic counters of one worker since its start; the gateway exports them under vLLM's metric names."""

    num_steps: int = 0
    num_prefill_tokens: int = 0  # prompt tokens computed here
    num_generation_tokens: int = 0  # tokens sampled here
    num_preemptions: int = 0
    num_prefix_queries: int = 0  # prompt tokens looked up in the prefix cache
    num_prefix_hits: int = 0  # of these, found
    transferred_bytes: int = 0  # KV handed to another worker (moved, or owner changed)
    transfer_s: float = 0.0
    num_refused_writes: int = 0  # writes under an old generation or epoch
    largest_step_tokens: int = 0  # of any step, prompt and decode tokens together
    step_budget_tokens: int = 0  # no step may be larger
    prefill_budget_tokens: int = 0  # of a step that also decodes
    num_request_faults: int = 0  # requests ended because code of ours raised while it handled them
    num_refused_connections: dict[str, int] = field(default_factory=dict)  # by "door/reason", see refused_key
    busy_s: float = 0.0  # in steps
    product_ops: float = 0.0  # of matrix products and attention; floats, for integers on the wire end at 2^64
    read_bytes: float = 0.0  # of memory, at least: the weights once per step, and the KV that rows see


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoads:
    """How many tokens passed each expert since a worker's start, of requests and nothing else."""

    layers: tuple[int, ...] = ()  # places in the model; of a worker of several stages, those of its last one
    tokens: tuple[tuple[int, ...], ...] = ()  # of each of these, by expert
    ranks: tuple[tuple[int, ...], ...] = ()  # by who computed them, a token once per expert; empty: ranks have parts


NO_EXPERTS = ExpertLoads()


class WorkerPort(StrEnum):
    """Where a worker is reached."""

    KV = "kv"  # other workers, with blocks: core.kv.KVRefusal says why not
    WIRE = "wire"  # gateways, with requests


class WireRefusal(StrEnum):
    """Why a connection to the door of gateways ended."""

    PROTOCOL = "protocol"  # it sent what is no message
    USER = "user"  # another user of the machine
    LIMIT = "limit"  # too many were there


def refused_key(port: WorkerPort, reason: str) -> str:
    return f"{port}/{reason}"


@dataclass(frozen=True, slots=True)
class TransferSealed:
    """Sender side: the receiver has applied every block up to `num_tokens`."""

    reservation: Reservation
    num_tokens: int
    num_bytes: int  # of this transfer so far
    transfer_s: float  # first write -> this acknowledgement, waiting for chunks excluded


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """Sender side: the receiver refused (`stale`) or cannot be reached; nothing of it is in flight any more."""

    reservation: Reservation
    reason: str
    stale: bool


@dataclass(frozen=True, slots=True)
class WritesEnded:
    """Sender side: nothing of what was cancelled is under way any more."""

    reservation: Reservation


TransferEvent = TransferSealed | TransferFailed | WritesEnded
