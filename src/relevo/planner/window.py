"""What one model was asked for of late, seen where requests come in: how many, how long, and what came of them.

Stands between the HTTP side and the dispatcher, so that a request which still waits in line counts. Bounded by time and
number. Knows no workers, holds no text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from relevo.core.ids import RequestId
from relevo.core.ports import Clock
from relevo.core.request import EngineRequest
from relevo.core.role import Role
from relevo.orchestrator.admission_queue import CLASSES
from relevo.orchestrator.ports import EngineStatus, OutputSink, StartedRequest, TokenGenerator
from relevo.policy.scaling.demand import Demand, Sample, dispersion, rate_of_late, strata
from relevo.telemetry.latency import RequestRecord, Slo

MAX_ARRIVALS = 20_000  # arbitrary; of more in a window the first are forgotten, and the window counts as shorter
NUM_SAMPLES = 64  # that stand for all of a window. Arbitrary
_BURST_WINDOW_S = 2.0


@dataclass(slots=True)
class _Arrival:
    at_ns: int
    num_prompt_tokens: int
    num_output_tokens: int | None = None  # None: it has not ended
    num_cached_tokens: int = 0
    is_met: bool | None = None  # None: it has not ended, or not of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The last `span_s` seconds."""

    span_s: float
    num_requests: int
    demand: Demand | None  # None without requests
    num_judged: int  # that ended
    attained: float | None  # part of these that met the targets


class DemandWindow:
    """Implements orchestrator.ports.TokenGenerator."""

    def __init__(self, generator: TokenGenerator, clock: Clock, slo: Slo, span_s: float = 60.0) -> None:
        self._generator = generator
        self._clock = clock
        self._slo = slo
        self.span_s = span_s
        self._span_ns = round(span_s * 1e9)
        self._arrivals: deque[_Arrival] = deque(maxlen=MAX_ARRIVALS)
        self._running: dict[RequestId, _Arrival] = {}
        self._started_at_ns = clock.now_ns()

    def start(self, request: EngineRequest, sink: OutputSink) -> StartedRequest:
        """Batch requests take idle room only: no mode is chosen for them."""
        if not request.terms.is_batch:
            arrival = _Arrival(self._clock.now_ns(), len(request.prompt_token_ids))
            self._arrivals.append(arrival)
            self._running[request.request_id] = arrival
            if len(self._running) > MAX_ARRIVALS:
                del self._running[next(iter(self._running))]
        return self._generator.start(request, sink)

    def finished(self, record: RequestRecord) -> None:
        """Told of every request that was let in, once. An aborted one says nothing of the server."""
        arrival = self._running.pop(record.request_id, None)
        if arrival is None:
            return
        arrival.num_output_tokens = record.num_output_tokens
        arrival.num_cached_tokens = record.num_cached_tokens
        if record.outcome != "aborted":
            arrival.is_met = record.outcome == "finished" and self._slo.is_met(record.times, record.times.tpot_s)

    def status(self) -> EngineStatus:
        return self._generator.status()

    def drain(self, worker_id: str) -> bool:
        return self._generator.drain(worker_id)

    def set_roles(self, roles: Mapping[str, Role], reason: str) -> None:
        self._generator.set_roles(roles, reason)

    def look(self) -> Window:
        """Lengths of answers that have not ended are taken for the mean of those that have."""
        now_ns = self._clock.now_ns()
        since_ns = max(now_ns - self._span_ns, self._started_at_ns)
        while self._arrivals and self._arrivals[0].at_ns < since_ns:
            self._arrivals.popleft()
        self._forget_running(since_ns)
        if len(self._arrivals) == MAX_ARRIVALS:
            since_ns = self._arrivals[0].at_ns
        judged = [arrival.is_met for arrival in self._arrivals if arrival.is_met is not None]
        span_s = max(1e-9, (now_ns - since_ns) / 1e9)
        return Window(
            span_s=span_s,
            num_requests=len(self._arrivals),
            demand=_demand(list(self._arrivals), span_s, now_ns, self._num_waiting()),
            num_judged=len(judged),
            attained=fmean(judged) if judged else None,
        )

    def _num_waiting(self) -> int:
        """In line, batch requests left out."""
        return sum(line.num_waiting for line in self._generator.status().lines if line.name == CLASSES[False])

    def _forget_running(self, since_ns: int) -> None:
        """Those that came before the window, and those that were never let in, tell nothing any more."""
        gone = [request_id for request_id, arrival in self._running.items() if arrival.at_ns < since_ns]
        for request_id in gone:
            del self._running[request_id]


def _demand(arrivals: Sequence[_Arrival], span_s: float, now_ns: int, num_waiting: int) -> Demand | None:
    ended = [arrival for arrival in arrivals if arrival.num_output_tokens]
    if not arrivals or not ended:
        return None
    mean_output = max(1, round(fmean(arrival.num_output_tokens or 0 for arrival in ended)))
    mean_cached = sum(a.num_cached_tokens for a in ended) / max(1, sum(a.num_prompt_tokens for a in ended))
    rows = strata([arrival.num_prompt_tokens for arrival in arrivals], NUM_SAMPLES)
    ages_s = [(now_ns - arrival.at_ns) / 1e9 for arrival in arrivals]
    return Demand(
        requests_per_s=rate_of_late(ages_s, span_s),
        samples=tuple(_sample(arrivals[row], mean_output, mean_cached) for row in rows),
        longest_tokens=max(a.num_prompt_tokens + (a.num_output_tokens or mean_output) for a in arrivals),
        burstiness=dispersion([arrival.at_ns / 1e9 for arrival in arrivals], _BURST_WINDOW_S),
        num_waiting=num_waiting,
    )


def _sample(arrival: _Arrival, mean_output: int, mean_cached: float) -> Sample:
    if arrival.num_output_tokens:
        return Sample(arrival.num_prompt_tokens, arrival.num_output_tokens, (arrival.num_cached_tokens,))
    return Sample(arrival.num_prompt_tokens, mean_output, (int(mean_cached * arrival.num_prompt_tokens),))
