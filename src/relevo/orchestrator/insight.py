"""What one model's dispatcher remembers of its requests for those who watch: what went to which worker and came from
it, the gaps between outputs by worker, the sessions that were seen last, and the last decisions.

Owns these counts, each bounded by the number of workers or by a constant. Told on the hot path, so it counts and does
nothing else. Decides nothing, and nothing is decided by it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relevo.core.events import TokenOutput
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.request import EngineRequest
from relevo.orchestrator.decision_ring import DecisionRing
from relevo.policy.admission.words import TenantCount
from relevo.telemetry.latency_histogram import LatencyHistogram
from relevo.telemetry.live_latency import LiveLatency

MAX_SESSIONS = 256  # arbitrary; those used last


@dataclass(slots=True)
class Carried:
    """Since this gateway started."""

    num_requests: int = 0
    num_tokens: int = 0
    num_bytes: int = 0

    def add(self, num_tokens: int, num_bytes: int = 0) -> None:
        self.num_requests += 1
        self.num_tokens += num_tokens
        self.num_bytes += num_bytes


@dataclass(slots=True)
class WorkerOutputs:
    """What one incarnation of a worker gave since this gateway first heard of it."""

    worker: WorkerRef
    num_requests: int = 0
    num_tokens: int = 0
    gaps: LatencyHistogram = field(default_factory=LatencyHistogram)  # of the interval that is under way


@dataclass(slots=True)
class LastOutput:
    """Of one request, of its first continuation."""

    at_ns: int = 0
    source: WorkerOutputs | None = None


@dataclass(slots=True)
class SeenSession:
    tenant: str
    worker_id: WorkerId  # that decodes its last request
    num_prompt_tokens: int
    num_cached_tokens: int
    last_seen_at_ns: int
    num_requests: int = 0


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """One that has not ended."""

    request_id: RequestId
    tenant: str
    phase: str  # of its handoff
    arrived_at_ns: int
    num_prompt_tokens: int
    num_output_tokens: int
    first_written_at_ns: int | None = None  # None: its client has no token so far


@dataclass(slots=True)
class Insight:
    """`tenants`, `running`: as the dispatcher knows them when they are called. Of `running` at most so many as are
    asked for, the oldest first."""

    decisions: DecisionRing = field(default_factory=DecisionRing)
    latency: LiveLatency = field(default_factory=LiveLatency)  # as clients have it
    prompts: dict[WorkerId, Carried] = field(default_factory=dict)  # to be computed there
    outputs: dict[WorkerRef, WorkerOutputs] = field(default_factory=dict)
    handoffs: dict[tuple[WorkerId, WorkerId], Carried] = field(default_factory=dict)  # from, to
    sessions: OrderedDict[bytes, SeenSession] = field(default_factory=OrderedDict)  # used last comes last
    tenants: Callable[[], Sequence[TenantCount]] = lambda: ()
    running: Callable[[int], Sequence[RunningRequest]] = lambda most: ()

    def routed(self, request: EngineRequest, worker: WorkerRef, num_uncached_tokens: int, now_ns: int) -> None:
        """It decodes there."""
        if not request.session:
            return
        num_prompt_tokens = len(request.prompt_token_ids)
        num_cached_tokens = max(0, num_prompt_tokens - num_uncached_tokens)
        seen = self.sessions.get(request.session)
        if seen is None:
            tenant = request.terms.tenant
            seen = SeenSession(tenant, worker.worker_id, num_prompt_tokens, num_cached_tokens, now_ns)
            self.sessions[request.session] = seen
            if len(self.sessions) > MAX_SESSIONS:
                self.sessions.popitem(last=False)
        else:
            self.sessions.move_to_end(request.session)
            seen.worker_id, seen.last_seen_at_ns = worker.worker_id, now_ns
            seen.num_prompt_tokens, seen.num_cached_tokens = num_prompt_tokens, num_cached_tokens
        seen.num_requests += 1

    def asked(self, worker: WorkerRef, num_tokens: int) -> None:
        """It is to compute so much of a prompt."""
        carried = self.prompts.get(worker.worker_id)
        if carried is None:
            carried = self.prompts[worker.worker_id] = Carried()
        carried.add(num_tokens)

    def gave(self, last: LastOutput, worker: WorkerRef, output: TokenOutput, now_ns: int) -> None:
        """An output came. `last`: the request's own; a gap is that worker's which gave the output before it, too."""
        source = last.source
        num_tokens = len(output.tokens)
        if source is not None and source.worker is worker:
            source.num_tokens += num_tokens
            if output.sample_index or not num_tokens:
                return
            source.gaps.add(now_ns - last.at_ns)
        else:
            source = self._outputs_of(worker)
            source.num_tokens += num_tokens
            if output.sample_index or not num_tokens:
                return
            if source is last.source:
                source.gaps.add(now_ns - last.at_ns)
            else:
                source.num_requests += 1
                last.source = source
        last.at_ns = now_ns
        if num_tokens > 1:
            source.gaps.add(0, num_tokens - 1)

    def _outputs_of(self, worker: WorkerRef) -> WorkerOutputs:
        outputs = self.outputs.get(worker)
        if outputs is None:
            outputs = self.outputs[worker] = WorkerOutputs(worker)
        return outputs

    def handed_over(self, source: WorkerRef, target: WorkerRef, num_tokens: int, num_bytes: int) -> None:
        carried = self.handoffs.setdefault((source.worker_id, target.worker_id), Carried())
        carried.add(num_tokens, num_bytes)

    def forget(self, worker: WorkerRef) -> None:
        """This incarnation is gone, and its gaps that were not taken with it."""
        self.outputs.pop(worker, None)

    def keep_only(self, workers: frozenset[WorkerRef]) -> None:
        """The others are not members any more, or former incarnations."""
        worker_ids = frozenset(worker.worker_id for worker in workers)
        for worker in self.outputs.keys() - workers:
            del self.outputs[worker]
        for worker_id in self.prompts.keys() - worker_ids:
            del self.prompts[worker_id]
        for pair in [pair for pair in self.handoffs if not worker_ids.issuperset(pair)]:
            del self.handoffs[pair]

    def take_gaps(self) -> dict[WorkerId, LatencyHistogram]:
        """All since the last call; counting begins anew."""
        taken = {worker.worker_id: outputs.gaps for worker, outputs in self.outputs.items()}
        for outputs in self.outputs.values():
            outputs.gaps = LatencyHistogram()
        return taken
