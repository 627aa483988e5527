"""Who may wait. Bounds what the gateway accepts, so that nothing behind it grows without limit.

A request waits from `try_admit` until `started` (its first token) and runs from there until `done`. Does not know
workers or where the estimate of a waiting time comes from.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.ids import RequestId

MIN_RETRY_AFTER_S = 1.0  # arbitrary: clients that retry faster only add load
MAX_RETRY_AFTER_S = 60.0  # arbitrary: no forecast is good for longer


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """None is no limit."""

    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None  # prompt tokens of waiting requests
    max_running: int | None = None  # requests in all, waiting or running


@dataclass(frozen=True, slots=True)
class Admitted:
    pass


@dataclass(frozen=True, slots=True)
class Rejected:
    limit: str  # the field of AdmissionLimits that was reached
    reason: str  # one sentence; the same for every rejection by the same limit
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class _Entry:
    num_tokens: int
    admitted_at_ns: int


class Admission:
    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._waiting: dict[RequestId, _Entry] = {}
        self._running: set[RequestId] = set()
        self._num_queued_tokens = 0

    @property
    def num_queued_requests(self) -> int:
        return len(self._waiting)

    @property
    def num_queued_tokens(self) -> int:
        return self._num_queued_tokens

    @property
    def num_running(self) -> int:
        """Requests that have their first token and are not done."""
        return len(self._running)

    def try_admit(self, request_id: RequestId, num_tokens: int, now_ns: int, est_ttft_s: float) -> Admitted | Rejected:
        """Count the request as waiting, unless a limit is reached. A request id is admitted once until it is done.

        `est_ttft_s`: seconds until a request that enters now would have its first token, which is when what waits
        now has been computed (queued tokens over the measured rate); a rejected client is told to wait that long.
        A prompt larger than `max_queued_tokens` is admitted when nothing else waits: later would be no better.
        """
        assert request_id not in self._waiting, "admitted twice"
        assert request_id not in self._running, "admitted twice"
        reached = self._reached(num_tokens)
        if reached is not None:
            return Rejected(*reached, retry_after_s=min(max(est_ttft_s, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S))
        self._waiting[request_id] = _Entry(num_tokens, now_ns)
        self._num_queued_tokens += num_tokens
        return Admitted()

    def started(self, request_id: RequestId) -> None:
        """It has its first token and waits no more. Unknown, running and finished requests: no effect."""
        if self._leave_queue(request_id):
            self._running.add(request_id)

    def done(self, request_id: RequestId) -> None:
        """It is over, however it ended. Idempotent; unknown requests: no effect."""
        self._leave_queue(request_id)
        self._running.discard(request_id)

    def oldest_wait_s(self, now_ns: int) -> float:
        """Seconds the longest waiting request has waited; 0 if none waits."""
        oldest = next(iter(self._waiting.values()), None)  # insertion order is order of arrival
        return (now_ns - oldest.admitted_at_ns) / 1e9 if oldest is not None else 0.0

    def _leave_queue(self, request_id: RequestId) -> bool:
        entry = self._waiting.pop(request_id, None)
        if entry is None:
            return False
        self._num_queued_tokens -= entry.num_tokens
        return True

    def _reached(self, num_tokens: int) -> tuple[str, str] | None:
        limits, num_waiting = self._limits, len(self._waiting)
        if limits.max_running is not None and num_waiting + len(self._running) >= limits.max_running:
            return "max_running", f"{limits.max_running} requests are being served, which is the limit"
        if limits.max_queued_requests is not None and num_waiting >= limits.max_queued_requests:
            return "max_queued_requests", f"{limits.max_queued_requests} requests wait already, which is the limit"
        too_many = limits.max_queued_tokens is not None and self._num_queued_tokens + num_tokens > (
            limits.max_queued_tokens
        )
        if too_many and num_waiting:
            return (
                "max_queued_tokens",
                f"with this prompt more than {limits.max_queued_tokens} prompt tokens would wait, which is the limit",
            )
        return None
