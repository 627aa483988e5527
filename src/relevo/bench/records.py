"""What is sent and what came of it, as the client saw it: plain data for every load generator here.

Client times are in nanoseconds of this process's monotonic clock. Latencies are derived by `telemetry.latency` only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from relevo.telemetry.latency import RequestTimes, Slo


class Endpoint(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"


class Outcome(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    UNFINISHED = "unfinished"  # still running when the load test was stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request before it is sent. `due_at_s` counts from the start of the load; None: once a client is free."""

    prompt: str | list[int]  # text, or token ids (completions only)
    num_input_tokens: int  # that the prompt was made to have
    max_tokens: int
    due_at_s: float | None = None


@dataclass(slots=True, kw_only=True)
class ClientRecord:
    """One request from its sending to its end. `chunk_at_ns` holds the arrival of every chunk with new output.

    A server may put several tokens into one chunk (or hold a token back until its characters are whole), so
    `num_output_tokens` comes from `usage` where the server sends it and counts chunks otherwise.
    """

    index: int
    num_wanted_input_tokens: int
    max_tokens: int
    due_at_ns: int | None = None
    sent_at_ns: int = 0
    chunk_at_ns: list[int] = field(default_factory=list)
    finished_at_ns: int | None = None
    failed_at_ns: int | None = None  # when the error was known
    num_prompt_tokens: int | None = None
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None  # kind: "connect", "http_429", "timeout", "disconnected", "stream_error", "truncated"
    error_detail: str = ""
    text: list[str] | None = None  # of every chunk, where it is asked for with an empty list

    @property
    def outcome(self) -> Outcome:
        if self.error is not None:
            return Outcome.FAILED
        return Outcome.UNFINISHED if self.finished_at_ns is None else Outcome.COMPLETED

    @property
    def times(self) -> RequestTimes:
        """TTFT and ITL as the client saw them; one entry per chunk."""
        return RequestTimes(self.sent_at_ns, self.chunk_at_ns, self.finished_at_ns)

    @property
    def tpot_s(self) -> float | None:
        """TPOT over the tokens that the server counted, which may share chunks."""
        last_ns = self.chunk_at_ns[-1:]
        stamps = self.chunk_at_ns + last_ns * (self.num_output_tokens - len(self.chunk_at_ns))
        return RequestTimes(self.sent_at_ns, stamps[: self.num_output_tokens], self.finished_at_ns).tpot_s

    def meets(self, slo: Slo) -> bool:
        return slo.is_met(self.times, self.tpot_s)

    @property
    def lateness_s(self) -> float:
        """How long after its due time the request left: the load generator's own fault."""
        return 0.0 if self.due_at_ns is None else max(0, self.sent_at_ns - self.due_at_ns) / 1e9

    def to_json(self, start_ns: int) -> dict[str, Any]:
        """Everything as JSON; times in seconds since `start_ns`, None where undefined."""

        def since_start(at_ns: int | None) -> float | None:
            return None if at_ns is None else round((at_ns - start_ns) / 1e9, 6)

        times = self.times
        return {
            "index": self.index,
            "outcome": self.outcome.value,
            "due_at_s": since_start(self.due_at_ns),
            "sent_at_s": since_start(self.sent_at_ns or None),
            "finished_at_s": since_start(self.finished_at_ns),
            "num_wanted_input_tokens": self.num_wanted_input_tokens,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_output_tokens": self.num_output_tokens,
            "max_tokens": self.max_tokens,
            "finish_reason": self.finish_reason,
            "client_ttft_s": times.ttft_s,
            "tpot_s": self.tpot_s,
            "e2e_s": times.e2e_s,
            "itl_s": times.itl_s,
            "error": self.error,
            "error_detail": self.error_detail,
        }
