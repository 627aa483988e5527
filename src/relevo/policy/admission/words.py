"""What admission says: its limits, and its answers. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.errors import Overloaded
from relevo.core.ids import RequestId
from relevo.core.outcome import RequestEnd

MIN_RETRY_AFTER_S = 1.0  # arbitrary: clients that retry faster only add load
MAX_RETRY_AFTER_S = 60.0  # arbitrary: no forecast is good for longer


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """None is no limit."""

    max_queued_requests: int | None = None  # waiting, batch requests not counted
    max_queued_tokens: int | None = None  # prompt tokens of waiting requests, per class
    max_queued_batch_requests: int | None = None
    max_running: int | None = None  # requests in all, waiting or running
    max_ttft_s: float | None = None  # predicted; not for batch requests
    max_line_s: float | None = None  # in line; not for batch requests
    max_batch_line_s: float | None = None


@dataclass(frozen=True, slots=True)
class Displaced:
    """A request that waited has given up its place."""

    request_id: RequestId
    end: RequestEnd


@dataclass(frozen=True, slots=True)
class Admitted:
    wait_s: float  # predicted, in line
    displaced: Displaced | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    end: RequestEnd


@dataclass(frozen=True, slots=True)
class Overdue:
    """Its time is over: it has left the line, or is to be stopped where it runs."""

    end: RequestEnd
    was_waiting: bool


@dataclass(slots=True)
class TenantCount:
    """Requests of one tenant."""

    tenant: str
    num_waiting: int = 0  # in line
    num_waiting_batch: int = 0  # of these
    num_sent: int = 0  # to workers, not over yet


LIMITS = (
    *("max_running", "max_queued_requests", "max_queued_tokens", "max_queued_batch_requests", "displaced"),
    *("max_ttft", "standing_line", "client_ttft", "client_tpot", "client_timeout", "line_timeout"),
)


def refusal_of(limit: str, reason: str, retry_after_s: float, code: str = Overloaded.code) -> RequestEnd:
    """`limit`: one of LIMITS."""
    return RequestEnd.failed(code, reason, min(max(retry_after_s, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S), limit)
