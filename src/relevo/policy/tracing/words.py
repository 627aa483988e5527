"""The words of tracing: what is noted of an HTTP request while it runs, and a span as plain data.

A span is OpenTelemetry's, but nothing of its SDK is known here: `gateway.tracing` makes one of the other, on a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from relevo.core.ids import WorkerRef
from relevo.core.outcome import Cause, Outcome, RequestEnd
from relevo.core.timeline import Timeline
from relevo.policy.tracing.trace_context import TraceContext

MAX_PROMPTS = 16  # arbitrary: of more prompts in one request only the sums are told

Attribute = str | bool | int | float | Sequence[str]


class SpanKind(StrEnum):
    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


@dataclass(slots=True, kw_only=True)
class PlannedSpan:
    name: str
    kind: SpanKind
    begins_ns: int  # of the gateway's clock
    ends_ns: int
    parent: int | None  # its place in the list of the trace's spans; None: it is the first
    attributes: dict[str, Attribute] = field(default_factory=dict)
    worker: WorkerRef | None = None  # whose it is; None: of the process that tells
    failure: str | None = None  # not None: its status is an error; why, or empty
    own_id: int = 0  # that was told to others; 0: any


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTrace:
    """One prompt of a request that has ended."""

    request_id: str
    timeline: Timeline
    end: RequestEnd
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int  # of all choices
    finish_reasons: tuple[str, ...]  # one per choice; empty: it did not finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What an HTTP request asked a model for."""

    operation: str  # gen_ai.operation.name
    model: str  # the name that the client used
    response_id: str
    is_streamed: bool
    num_choices: int  # of each prompt
    max_tokens: int | None = None
    conversation: str = ""  # a hash of what its client calls it; empty: it does not call it anything


@dataclass(slots=True, kw_only=True)
class AttemptTrace:
    """Of an edge: a region was asked."""

    region: str
    context: TraceContext  # that the region was told
    begins_ns: int
    ends_ns: int = 0  # 0: when the call ended
    status: int = 0  # 0: it did not answer
    failure: str | None = None  # why another one was asked, or the answer broke off


@dataclass(slots=True, kw_only=True)
class CallTrace:
    """An HTTP request, from its head to the end of its answer."""

    own: TraceContext  # of its span
    parent_id: int  # span of the client; 0: the trace begins here
    method: str
    route: str
    begins_ns: int
    ends_ns: int = 0
    status: int = 0
    error: str = ""  # a code of core.errors, or a short name; empty: none
    has_failed: bool = False  # on our account
    generation: Generation | None = None
    prompts: list[PromptTrace] = field(default_factory=list)  # the first ones
    num_prompts: int = 0  # with those that are not kept, as the next three
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    attempts: list[AttemptTrace] = field(default_factory=list)  # of an edge, which knows no prompts

    @property
    def recorded_id(self) -> str:
        """The trace id in hexadecimal digits, if it is recorded; else empty."""
        return f"{self.own.trace_id:032x}" if self.own.is_sampled else ""

    def ended_with(self, end: RequestEnd, prompts: Iterable[PromptTrace]) -> None:
        """Its answer, whatever becomes of the connection."""
        if end.cause is not Cause.COMPLETE:
            self.error, self.has_failed = end.code or str(end.cause), end.outcome is Outcome.FAILED
        for prompt in prompts if self.own.is_sampled else ():
            if self.num_prompts < MAX_PROMPTS:
                self.prompts.append(prompt)
            self.num_prompts += 1
            self.num_prompt_tokens += prompt.num_prompt_tokens
            self.num_cached_tokens += prompt.num_cached_tokens
            self.num_output_tokens += prompt.num_output_tokens
