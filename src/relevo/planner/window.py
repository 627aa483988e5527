"""What one model was asked for of late, seen where requests come in: how many, how long, and what comes of them.

Stands between the HTTP side and the dispatcher, so that a request which still waits in line counts. Bounded by time and
number; where traffic becomes of another kind it begins anew, as a mean of two kinds is neither. Knows no workers, holds
no text.
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
from relevo.planner.watched import WatchedRequest
from relevo.policy.scaling.demand import Demand, Sample, dispersion, rate_of_late, strata
from relevo.policy.scaling.mean_length import mean_length
from relevo.policy.scaling.new_kind import new_kind_from
from relevo.policy.scaling.rhythm import SLOT_S, rhythm_of
from relevo.telemetry.latency import RequestRecord, Slo

MAX_ARRIVALS = 20_000  # arbitrary; of more in a window the first are forgotten, and the window counts as shorter
NUM_SAMPLES = 64  # that stand for all of a window. Arbitrary
_FEWEST_ENDED = 3  # answers of a kind, for their lengths to be believed. Arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The last `span_s` seconds, or as long as traffic has been of this kind."""

    span_s: float
    num_requests: int
    demand: Demand | None  # None without requests
    num_judged: int  # that ended, or have run for long enough to be told
    attained: float | None  # part of these that met the targets, or do so far
    num_kinds: int = 0  # that traffic has had before this one, as far as was seen


def what_is_unknown(has_workers: bool, window: Window) -> str:
    """What is missing to plan by. Empty: nothing."""
    if not has_workers:
        return "no worker is ready"
    if window.num_requests and window.demand is None:
        return f"no answer of {window.num_requests} requests has ended, so nothing is known of their lengths"
    return ""


class DemandWindow:
    """Implements orchestrator.ports.TokenGenerator."""

    def __init__(self, generator: TokenGenerator, clock: Clock, slo: Slo, span_s: float = 60.0) -> None:
        self._generator = generator
        self._clock = clock
        self._slo = slo
        self.span_s = span_s
        self._span_ns = round(span_s * 1e9)
        self._arrivals: deque[WatchedRequest] = deque(maxlen=MAX_ARRIVALS)
        self._running: dict[RequestId, WatchedRequest] = {}
        self._since_ns = clock.now_ns()  # what came before does not count
        self._num_kinds = 0
        self._mean_before: float | None = None  # length of answers, of the kind before

    def start(self, request: EngineRequest, sink: OutputSink) -> StartedRequest:
        """Batch requests take idle room only: no mode is chosen for them."""
        if not request.terms.is_batch:
            arrival = WatchedRequest(self._clock.now_ns(), len(request.prompt_token_ids), self._slo, self._clock, sink)
            sink = arrival
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
        arrival.ended(record)

    def status(self) -> EngineStatus:
        return self._generator.status()

    def drain(self, worker_id: str) -> bool:
        return self._generator.drain(worker_id)

    def set_roles(self, roles: Mapping[str, Role], reason: str) -> None:
        self._generator.set_roles(roles, reason)

    def look(self) -> Window:
        now_ns = self._clock.now_ns()
        self._since_ns = max(now_ns - self._span_ns, self._since_ns)
        self._forget_arrivals()
        self._begin_anew()
        self._forget_arrivals()
        self._forget_running(now_ns - self._span_ns)
        if len(self._arrivals) == MAX_ARRIVALS:
            self._since_ns = self._arrivals[0].at_ns
        judged = [met for arrival in self._arrivals if (met := arrival.is_met(now_ns)) is not None]
        span_s = max(1e-9, (now_ns - self._since_ns) / 1e9)
        return Window(
            span_s=span_s,
            num_requests=len(self._arrivals),
            demand=_demand(list(self._arrivals), span_s, now_ns, self._num_waiting(), self._mean_before),
            num_judged=len(judged),
            attained=fmean(judged) if judged else None,
            num_kinds=self._num_kinds,
        )

    def _begin_anew(self) -> None:
        """With the first request of a new kind, if there is one."""
        arrivals = list(self._arrivals)
        first = new_kind_from([arrival.num_prompt_tokens for arrival in arrivals])
        if first:
            self._mean_before = _mean_output(arrivals[:first], self._mean_before)
            self._since_ns = (arrivals[first - 1].at_ns + arrivals[first].at_ns) // 2
            self._num_kinds += 1

    def _forget_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0].at_ns < self._since_ns:
            self._arrivals.popleft()

    def _num_waiting(self) -> int:
        """In line, batch requests left out."""
        return sum(line.num_waiting for line in self._generator.status().lines if line.name == CLASSES[False])

    def _forget_running(self, since_ns: int) -> None:
        """Those that came before the window, and those that were never let in, tell nothing any more."""
        gone = [request_id for request_id, arrival in self._running.items() if arrival.at_ns < since_ns]
        for request_id in gone:
            del self._running[request_id]


def _demand(
    arrivals: Sequence[WatchedRequest], span_s: float, now_ns: int, num_waiting: int, mean_before: float | None
) -> Demand | None:
    """Lengths of answers that have not ended are taken for the mean, or what they have, if that is more."""
    mean = _mean_output(arrivals, mean_before)
    if not arrivals or mean is None:
        return None
    mean_output = max(1, round(mean))
    begun = [arrival for arrival in arrivals if arrival.num_so_far or arrival.num_output_tokens]
    mean_cached = sum(a.num_cached_tokens for a in begun) / max(1, sum(a.num_prompt_tokens for a in begun))
    rows = strata([arrival.num_prompt_tokens for arrival in arrivals], NUM_SAMPLES)
    now_s, times_s = now_ns / 1e9, [arrival.at_ns / 1e9 for arrival in arrivals]
    rhythm = rhythm_of(times_s, now_s - span_s, now_s)
    ages_s = [now_s - at_s for at_s in times_s]
    return Demand(
        requests_per_s=rate_of_late(ages_s, span_s) if rhythm is None else len(arrivals) / span_s,
        samples=tuple(_sample(arrivals[row], mean_output, mean_cached) for row in rows),
        longest_tokens=max(a.num_prompt_tokens + (a.num_output_tokens or mean_output) for a in arrivals),
        burstiness=dispersion(times_s, SLOT_S),
        rhythm=rhythm,
        num_waiting=num_waiting,
    )


def _mean_output(arrivals: Sequence[WatchedRequest], mean_before: float | None) -> float | None:
    """Tokens of an answer; None: nothing is known of them. Until some have ended, not less than of the kind before."""
    ended = [arrival.num_output_tokens for arrival in arrivals if arrival.num_output_tokens]
    running = [arrival.num_so_far for arrival in arrivals if arrival.num_output_tokens is None]
    if not ended and mean_before is None:
        return None
    mean = mean_length(ended, running)
    return mean if len(ended) >= _FEWEST_ENDED or mean_before is None else max(mean, mean_before)


def _sample(arrival: WatchedRequest, mean_output: int, mean_cached: float) -> Sample:
    num_output = arrival.num_output_tokens or max(mean_output, arrival.num_so_far)
    has_begun = bool(arrival.num_so_far or arrival.num_output_tokens)
    num_cached = arrival.num_cached_tokens if has_begun else int(mean_cached * arrival.num_prompt_tokens)
    return Sample(arrival.num_prompt_tokens, num_output, (num_cached,))
