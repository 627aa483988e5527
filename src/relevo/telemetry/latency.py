"""The only place where TTFT, ITL, TPOT and E2E are computed, and the summary that tables print of them.

Owns the definitions (docs/glossary.md). Does not know who measured: the gateway stamps what it writes to the client
stream, the load generator what it reads from it, each on its own monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from relevo.core.baton import PrefillFacts
from relevo.core.ids import RequestId

_NS_PER_S = 1e9
LATENCY_LABELS = {"ttft_s": "TTFT", "itl_s": "ITL", "tpot_s": "TPOT", "e2e_s": "E2E"}  # in the order of tables


def percentile(sorted_values: Sequence[float], q: float) -> float:
    """The `q` quantile, 0 <= q <= 1, of ascending values; between two of them by linear interpolation.

    Raises ValueError for no values or a `q` outside.
    """
    if not sorted_values or not 0.0 <= q <= 1.0:
        raise ValueError(f"percentile needs at least one value and 0 <= q <= 1, got {len(sorted_values)} and {q}")
    position = q * (len(sorted_values) - 1)
    below = int(position)
    above = min(below + 1, len(sorted_values) - 1)
    low, high = sorted_values[below], sorted_values[above]
    return low + (high - low) * (position - below)


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one distribution, in the unit of its values."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def summarise(values: Iterable[float]) -> Summary:
    """Raises ValueError for no values: there is no mean of nothing."""
    ordered = sorted(values)
    p50, p90, p95, p99 = (percentile(ordered, q) for q in (0.5, 0.9, 0.95, 0.99))
    return Summary(len(ordered), sum(ordered) / len(ordered), p50, p90, p95, p99, ordered[-1])


def milliseconds(value_s: float | None) -> str:
    """As tables print it, because that is what people compare."""
    return "-" if value_s is None else f"{value_s * 1e3:,.1f}"


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """When things happened to one request, or to its first continuation if n > 1. One clock, nanoseconds."""

    accepted_at_ns: int
    token_at_ns: Sequence[int]  # ascending, one entry per output token; tokens written together share their time
    finished_at_ns: int | None = None  # None: has not ended

    @property
    def ttft_s(self) -> float | None:
        """Accepted -> first output token; None without one."""
        return (self.token_at_ns[0] - self.accepted_at_ns) / _NS_PER_S if self.token_at_ns else None

    @property
    def itl_s(self) -> list[float]:
        """Every gap between consecutive output tokens."""
        return [(later - earlier) / _NS_PER_S for earlier, later in pairwise(self.token_at_ns)]

    @property
    def e2e_s(self) -> float | None:
        """Accepted -> ended; None while it runs."""
        return None if self.finished_at_ns is None else (self.finished_at_ns - self.accepted_at_ns) / _NS_PER_S

    @property
    def tpot_s(self) -> float | None:
        """(E2E - TTFT) / (output tokens - 1); None below two tokens or while it runs."""
        e2e_s, ttft_s, num_gaps = self.e2e_s, self.ttft_s, len(self.token_at_ns) - 1
        return None if e2e_s is None or ttft_s is None or num_gaps < 1 else (e2e_s - ttft_s) / num_gaps

    @property
    def decode_s(self) -> float | None:
        """First output token -> last one; None without one."""
        return (self.token_at_ns[-1] - self.token_at_ns[0]) / _NS_PER_S if self.token_at_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits that a request must meet to count towards goodput; None: no limit."""

    ttft_s: float | None = None
    itl_s: float | None = None  # for the 90th percentile of the request's own gaps
    tpot_s: float | None = None

    def is_met(self, times: RequestTimes, tpot_s: float | None) -> bool:
        """`tpot_s` apart, because one who reads a stream may know of more tokens than it saw times of."""
        ttft_s = times.ttft_s
        if ttft_s is None or (self.ttft_s is not None and ttft_s > self.ttft_s):
            return False
        if self.tpot_s is not None and tpot_s is not None and tpot_s > self.tpot_s:
            return False
        gaps_s = times.itl_s if self.itl_s is not None else []
        return self.itl_s is None or not gaps_s or percentile(sorted(gaps_s), 0.9) <= self.itl_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """What is known of an admitted request once it has ended. Written once per request, by the gateway."""

    request_id: RequestId
    model: str  # the name the client asked for
    times: RequestTimes
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int  # summed over the n continuations
    num_longest_output_tokens: int  # of the longest of them
    n: int
    max_tokens: int
    finish_reason: str  # of the first continuation: a value of core.request.FinishReason
    outcome: str  # "finished", "failed" or "aborted"
    facts: PrefillFacts | None = None  # None: ended before its prompt was computed
    trace_id: str = ""  # hexadecimal, of a trace that is recorded; empty: none is
    tenant: str = ""  # any text; empty: clients without an API key
