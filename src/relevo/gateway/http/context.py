"""What the HTTP side of the gateway is given: one frozen object, composed in `relevo.build`.

Starts nothing. What belongs to one model is in `gateway.text.served_models`; here is what all of them
share.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from relevo.core.ports import Clock
from relevo.gateway.answers.memory import MemoryAnswers
from relevo.gateway.answers.store import AnswerStore
from relevo.gateway.console.watch import Watch
from relevo.gateway.http.auth import ApiKeys, Authenticator
from relevo.gateway.http.byte_account import ByteAccount
from relevo.gateway.http.site import Site
from relevo.gateway.http.stopping import Stopping
from relevo.gateway.metering.meter import NoMeter, UsageMeter
from relevo.gateway.metering.usage_query import NoUsage, UsageSource
from relevo.gateway.requests.history import RequestHistory
from relevo.gateway.requests.query import SlowestQuery
from relevo.gateway.requests.store import NoReports, ReportStore
from relevo.gateway.text.served_models import ServedModels
from relevo.gateway.text.text_work import TextWork
from relevo.orchestrator.ports import EngineStatus
from relevo.policy.tracing.words import CallTrace
from relevo.telemetry.latency import RequestRecord
from relevo.telemetry.merged_series import SeriesFamily
from relevo.telemetry.text_format import TextFormat


class RequestMetrics(Protocol):
    """Where finished requests and responses are counted."""

    def request_finished(self, record: RequestRecord) -> None: ...

    def http_response(self, handler: str, method: str, status: int) -> None: ...

    def http_took(self, handler: str, method: str, took_s: float) -> None:
        """Of one response, to its last byte."""
        ...

    def worker_totals(self, statuses: Mapping[str, EngineStatus]) -> Mapping[tuple[str, str], Mapping[str, float]]:
        """Counters of each worker over all its incarnations, by model and worker id."""
        ...

    def counts(self, name: str) -> Sequence[tuple[Mapping[str, str], float]]:
        """The values of one counter of requests, with the labels of each."""
        ...

    def render(self, statuses: Mapping[str, EngineStatus], text: TextFormat) -> tuple[bytes, str]:
        """The body of /metrics and its content type. `statuses`: of each model, by its name."""
        ...

    def render_merged(
        self,
        statuses: Mapping[str, EngineStatus],
        asked: str,
        others: Mapping[str, Sequence[SeriesFamily] | None],
        text: TextFormat,
    ) -> tuple[bytes, str]:
        """The same for several gateways, of which this one is `asked`."""
        ...


class ClusterView(Protocol):
    """The machines of a cluster; `build.gateway_cluster` has it."""

    def nodes(self) -> list[dict[str, Any]]:
        """As GET /v1/nodes shows them."""
        ...

    def drain(self, node: str, *, for_good: bool) -> bool:
        """False: the node process of this box is away, nothing was asked."""
        ...


class RequestTraces(Protocol):
    """Where requests are told of to a collector; `gateway.tracing.open_traces` has them."""

    def begin(self, headers: Iterable[tuple[bytes, bytes]], method: str, route: str, now_ns: int) -> CallTrace: ...

    def end(self, call: CallTrace) -> None: ...


class OtherGateways(Protocol):
    """Those that share the port; `build.gossip` has them."""

    @property
    def gateway_id(self) -> str:
        """Of this one."""
        ...

    async def metrics(self) -> dict[str, Sequence[SeriesFamily] | None]:
        """By gateway; None: no answer in time."""
        ...

    async def readiness(self) -> dict[str, dict[str, Any] | None]:
        """What /ready says of each alone; None: no answer in time."""
        ...

    async def states(self, question: str) -> dict[str, bytes | None]:
        """What each says of its state, as `gateway.console.reading` reads it; None: no answer in time."""

    async def request_report(self, name: str, tenant: str, *, is_admin: bool) -> dict[str, dict[str, Any] | None]:
        """What each has of a request; None: nothing, or no answer in time."""
        ...

    async def slowest_requests(self, query: SlowestQuery) -> dict[str, list[dict[str, Any]] | None]:
        """What each has; None: no answer in time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayContext:
    """Everything the routes need. Values are resolved: nothing here is read from settings again."""

    models: ServedModels
    metrics: RequestMetrics
    clock: Clock
    api_keys: Authenticator = field(default_factory=ApiKeys)  # none: open to every client that reaches the port
    meter: UsageMeter = field(default_factory=NoMeter)
    usage: UsageSource = field(default_factory=NoUsage)
    answers: AnswerStore = field(default_factory=MemoryAnswers)  # that clients may ask for again
    sealing_key: bytes = field(default_factory=lambda: secrets.token_bytes(32))  # of what clients give back
    allowed_origins: tuple[str, ...] = ()  # none: no cross-origin access from browsers
    metrics_require_key: bool = False
    expose_processes: bool = False  # /ready names processes and addresses to every client, not to admins alone
    max_body_bytes: int = 32 * 1024 * 1024
    sse_keepalive_s: float | None = None  # None: no keep-alive comments
    started_at_unix_s: int = 0  # `created` of the models listed
    is_restarted: bool = False  # in place of a gateway that ended; what it serves had started before
    affinity_headers: tuple[str, ...] = ()  # more headers that name a session
    gateway_id: str = "gateway"
    requests: RequestHistory = field(default_factory=RequestHistory)  # those that run, and the last ones
    reports: ReportStore = field(default_factory=NoReports)  # of requests that ended, where they outlive the process
    others: OtherGateways | None = None  # None: it is the only one
    text_work: TextWork = field(default_factory=TextWork)
    body_memory: ByteAccount = field(default_factory=lambda: ByteAccount(128 * 2**20))  # request bodies being read
    answer_memory: ByteAccount = field(default_factory=lambda: ByteAccount(256 * 2**20))  # of answers sent whole
    max_tokenize_bytes: int = 2**20  # of the bodies of /tokenize and /detokenize, whose texts have no other bound
    stopping: Stopping = field(default_factory=Stopping)
    site: Site = field(default_factory=Site)
    plans: tuple[Callable[[], dict[str, Any]], ...] = ()  # what the planner of each model decided
    traces: RequestTraces | None = None  # None: none are made
    cluster: ClusterView | None = None  # None: it serves with the workers of its box alone
    watch: Watch = field(default_factory=Watch)  # what is kept for those who look at the state
