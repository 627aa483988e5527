"""Requests in the state: the oldest of those that run, and the slowest that ended in the last ten minutes.

`gateway.requests` keeps and explains them. To find and explain the slowest takes milliseconds, so they are looked for
once every few seconds and only while the state is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from relevo.gateway.console.state import RequestSummary
from relevo.gateway.requests.history import RequestFilter, RequestHistory, SlowBy
from relevo.gateway.requests.report import report_of
from relevo.gateway.text.served_models import ServedModel
from relevo.orchestrator.insight import RunningRequest

MAX_IN_FLIGHT = 200  # arbitrary: at each gateway, of each model
MAX_SLOWEST = 30  # arbitrary: at each gateway
SLOWEST_S = 600.0
_LOOK_AGAIN_S = 5.0  # arbitrary


def in_flight(models: Sequence[ServedModel], clock: UnixClock, now_s: float, gateway_id: str) -> list[RequestSummary]:
    return [
        _running(served.name, running, clock, now_s, gateway_id)
        for served in models
        for running in served.insight.running(MAX_IN_FLIGHT)
    ]


class UnixClock(Protocol):
    def unix_of_ns(self, monotonic_ns: int) -> float:
        """Of a point in time of this process."""
        ...


def _running(model: str, running: RunningRequest, clock: UnixClock, now_s: float, gateway_id: str) -> RequestSummary:
    started_at_unix_s = clock.unix_of_ns(running.arrived_at_ns)
    first_ns = running.first_written_at_ns
    return RequestSummary(
        request_id=running.request_id,
        gateway_id=gateway_id,
        model=model,
        tenant=running.tenant,
        started_at_unix_s=started_at_unix_s,
        phase=running.phase,
        num_prompt_tokens=running.num_prompt_tokens,
        num_output_tokens=running.num_output_tokens,
        ttft_s=None if first_ns is None else (first_ns - running.arrived_at_ns) / 1e9,
        e2e_s=max(0.0, now_s - started_at_unix_s),
    )


@dataclass(slots=True)
class Slowest:
    """Of one gateway, as they were found last."""

    _found: tuple[RequestSummary, ...] = ()
    _found_at_s: float | None = None

    def read(self, requests: RequestHistory, now_ns: int, now_s: float, gateway_id: str) -> tuple[RequestSummary, ...]:
        if self._found_at_s is None or now_s - self._found_at_s >= _LOOK_AGAIN_S:
            where = RequestFilter(tenant=None, since_unix_ms=int((now_s - SLOWEST_S) * 1000))
            found = requests.slowest(SlowBy.E2E, MAX_SLOWEST, where, now_ns)
            ended = [report_of(kept, gateway_id, is_brief=True) for kept in found if kept.status is not None]
            self._found = tuple(_ended(report) for report in ended)
            self._found_at_s = now_s
        return self._found


def _ended(report: dict[str, Any]) -> RequestSummary:
    return RequestSummary(
        request_id=report["id"],
        gateway_id=report["gateway_id"] or "",
        model=report["model"] or "",
        tenant=report["tenant"],
        started_at_unix_s=report["arrived_at_unix_s"],
        phase="ended",
        num_prompt_tokens=report["num_prompt_tokens"],
        num_output_tokens=report["num_output_tokens"],
        ttft_s=report["ttft_s"],
        e2e_s=report["e2e_s"],
        cause=report["cause"],
        sentence=report["sentence"],
    )
