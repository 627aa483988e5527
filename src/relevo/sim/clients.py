"""Clients of a simulated world: each sends one request of a workload, reads what comes, and may leave.

Owns what came of each request, as its client sees it. A client that reads slowly has its tokens later and costs the
gateway nothing but the tokens it keeps.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from relevo.core import errors
from relevo.core.events import TokenOutput
from relevo.core.ids import RequestId
from relevo.core.outcome import Cause, Outcome, RequestEnd
from relevo.core.request import EngineRequest, SamplingParams, ServiceTerms
from relevo.orchestrator.ports import StartedRequest
from relevo.sim.kernel import Event, Kernel, seconds
from relevo.sim.prompts import Text, VirtualTokens
from relevo.sim.quiet import Arrivals
from relevo.sim.results import RequestOutcome, RequestResult
from relevo.workload.requests import WorkloadRequest

_NO_TERMS = ServiceTerms()
_GONE = RequestEnd(cause=Cause.CLIENT_GONE)
_TURNED_AWAY = frozenset((errors.Overloaded.code, errors.NoWorker.code))


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What a client asks of the service, and how it behaves."""

    terms: ServiceTerms = _NO_TERMS
    priority: int = 0
    session: bytes = b""
    num_samples: int = 1
    ignores_eos: bool = False  # no token of the model ends its answer, so it is known how long it will be
    salt: bytes = b""
    leaves_after_s: float | None = None  # of its arrival, if it has no end by then
    leaves_after_tokens: int | None = None  # read
    reads_every_s: float = 0.0  # a token


@dataclass(slots=True, eq=False)
class Client:
    """Implements orchestrator.ports.OutputSink."""

    kernel: Kernel
    row: WorkloadRequest
    habits: Habits
    text: Text
    ended: Callable[[Client], None]
    arrivals: Arrivals
    result: RequestResult = field(init=False)
    end: RequestEnd | None = None
    _started: StartedRequest | None = None
    _times: array[int] = field(default_factory=lambda: array("q"))
    _leaving: Event | None = None
    _reads_next_at_ns: int = 0

    def request(self) -> EngineRequest:
        """To be sent now."""
        row, habits, now_ns = self.row, self.habits, self.kernel.now_ns()
        self.result = RequestResult(row=row.row, arrived_at_ns=now_ns, num_prompt_tokens=row.num_prompt_tokens)
        self.result.token_at_ns.append(self._times)
        return EngineRequest(
            request_id=RequestId(f"r{row.row}"),
            prompt_token_ids=VirtualTokens(self.text, row.num_prompt_tokens),  # type: ignore[arg-type]
            sampling=SamplingParams(
                max_tokens=row.num_output_tokens,
                seed=0,
                n=habits.num_samples,
                temperature=0.0,
                ignore_eos=habits.ignores_eos,
            ),
            salt=habits.salt,
            priority=habits.priority,
            arrived_at_ns=now_ns,
            session=habits.session,
            terms=habits.terms,
        )

    def started(self, request: StartedRequest) -> None:
        """It is with a gateway."""
        self._started = request
        if self.end is None and self.habits.leaves_after_s is not None:
            self._leaving = self.kernel.call_after(seconds(self.habits.leaves_after_s), self.leave)

    def leave(self) -> None:
        """It closes its connection."""
        if self.end is None and self._started is not None:
            self._started.end(_GONE)

    # ---- OutputSink --------------------------------------------------------------------------------------------------

    def on_output(self, output: TokenOutput) -> None:
        if self.arrivals.at_ns:
            if self.habits.reads_every_s:
                for at_ns in self.arrivals.at_ns:
                    self._take(at_ns)
            else:
                self._times.extend(self.arrivals.at_ns)
            return
        if output.facts is not None:
            self.result.prefill_worker = output.facts.worker_id
            self.result.num_cached_tokens = output.facts.num_cached_tokens
        for _ in output.tokens:
            self._take(self.kernel.now_ns())
        most = self.habits.leaves_after_tokens
        if most is not None and len(self._times) >= most and self._leaving is None:
            self._leaving = self.kernel.call_at(self._times[-1], self.leave)

    def _take(self, at_ns: int) -> None:
        """One token."""
        if self.habits.reads_every_s:
            at_ns = max(at_ns, self._reads_next_at_ns)
            self._reads_next_at_ns = at_ns + seconds(self.habits.reads_every_s)
        self._times.append(at_ns)

    def on_end(self, end: RequestEnd) -> None:
        self.end = end
        if self._leaving is not None:
            self._leaving.cancel()
        result = self.result
        result.ended_at_ns = max(self.kernel.now_ns(), self._times[-1] if self._times else 0)
        result.outcome, result.reason = _outcome_of(end, has_tokens=bool(self._times)), end.limit or end.code or ""
        self.ended(self)


def _outcome_of(end: RequestEnd, *, has_tokens: bool) -> RequestOutcome:
    if end.outcome is Outcome.FAILED and end.code in _TURNED_AWAY and not has_tokens:
        return RequestOutcome.REJECTED
    return RequestOutcome(end.outcome.value)
