"""What `GET /v1/state` says: the server at one moment as one JSON object, for the console and `relevo top`.

Owns the shape; names are those of the JSON, with their units. Plain data: `gather` fills it in, `views` takes out what
a viewer may not see. Names of models, tenants and sessions come from operators and clients: they are any text at all.
None stands for what is not known (yet), never for zero. The same counters are on /metrics, with the same values.
"""

from __future__ import annotations

from msgspec import Struct


class Percentiles(Struct, frozen=True, kw_only=True):
    """Of one latency in one window; within 2 % of the samples' own."""

    num_samples: int = 0
    p50_s: float | None = None  # None: no samples
    p90_s: float | None = None
    p99_s: float | None = None


class Viewer(Struct, frozen=True, kw_only=True):
    """Whom this was made for."""

    sees_all: bool  # an admin key, or no keys at all; else one tenant's own, and of the others numbers
    is_admin: bool = False  # may drain workers
    tenant: str = ""  # of the key that asked


class Server(Struct, frozen=True, kw_only=True):
    version: str
    gateway_id: str  # that answered
    started_at_unix_s: int
    uptime_s: float  # of this gateway
    is_restarted: bool  # in place of a gateway that ended
    is_draining: bool  # it takes no new request
    is_ready: bool  # a request sent now to one of its models would be served
    failure: str = ""  # why no request is taken, whatever the model: the ledger, the keys


class Gateway(Struct, frozen=True, kw_only=True):
    """One of those that share the port."""

    gateway_id: str
    answers: bool  # False: nothing of what it knows is in here
    is_ready: bool
    is_draining: bool = False
    uptime_s: float | None = None
    num_in_flight: int = 0  # requests


class RoleCount(Struct, frozen=True, kw_only=True):
    num_workers: int
    num_ready: int


class Model(Struct, frozen=True, kw_only=True):
    name: str
    names: tuple[str, ...]  # all that clients may use
    is_ready: bool
    reason: str  # why not; empty: it is
    topology: str  # as --topology says it: "unified", "2p1d"
    roles: dict[str, RoleCount]  # by "prefill", "decode", "unified"
    max_model_len: int  # tokens
    num_queued: int  # requests that the gateways hold back
    num_in_flight: int  # requests, those included
    totals: ModelTotals


class ModelTotals(Struct, frozen=True, kw_only=True):
    """Counters since the gateways' start, summed over them; as on /metrics."""

    num_requests: dict[str, int] = {}  # ended ones by finish reason: vllm:request_success_total
    num_refusals: dict[str, int] = {}  # by limit, those that happened: vllm:admission_rejections_total
    num_handoffs: dict[str, int] = {}  # by outcome: relevo:handoffs_total
    num_prompt_tokens: int = 0  # vllm:prompt_tokens_total
    num_cached_tokens: int = 0  # of these: vllm:prompt_tokens_cached_total


class Blocks(Struct, frozen=True, kw_only=True):
    """KV blocks; held + reusable + free + quarantined = total."""

    num_total: int
    num_held: int  # by running requests
    num_reusable: int  # by none, and may be hit
    num_free: int  # worthless content
    num_quarantined: int  # a writer may still write into them


class WorkerTotals(Struct, frozen=True, kw_only=True):
    """Counters over all incarnations; as on /metrics."""

    num_steps: int = 0
    num_prefill_tokens: int = 0
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    num_prefix_queries: int = 0  # prompt tokens looked up
    num_prefix_hits: int = 0  # of these, found
    transferred_bytes: int = 0  # KV handed over
    transfer_s: float = 0.0
    busy_s: float = 0.0  # in steps
    product_ops: float = 0.0  # of products and attention; a multiply-add is two
    read_bytes: float = 0.0  # of memory, at least
    num_request_faults: int = 0
    num_restarts: int = 0


class WorkerRates(Struct, frozen=True, kw_only=True):
    """Over the last seconds; None: not watched for long enough."""

    window_s: float
    steps_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    transferred_bytes_per_s: float | None = None
    hit_fraction: float | None = None  # of prompt tokens looked up in the last minute; None: none were


class Costs(Struct, frozen=True, kw_only=True):
    """What a step costs this worker as it measured: base + per_token * tokens + per_kv_token * context read.

    All 0 before its first steps."""

    base_s: float
    per_token_s: float
    per_kv_token_s: float


class Worker(Struct, frozen=True, kw_only=True):
    worker_id: str
    model: str
    role: str  # "prefill", "decode" or "unified"
    is_ready: bool
    why_not_ready: str
    epoch: int  # which incarnation; 0: none was seen yet
    num_running: int  # continuations that decode
    num_waiting: int  # requests that wait for room or their first chunk
    num_reserved: int  # rooms granted, decode not started
    num_waiting_prefill_tokens: int  # prompt tokens yet to be computed
    num_decode_kv_tokens: int  # context of all that decodes
    max_running: int | None  # continuations that it takes at once
    step_budget_tokens: int
    blocks: Blocks
    totals: WorkerTotals
    rates: WorkerRates
    costs: Costs
    itl: Percentiles  # gaps between outputs that came from it in the last minute; a handoff is none of them
    busy_fraction: float | None = None  # of the last seconds, in steps
    product_fraction: float | None = None  # of the products that its cores can do at most
    read_fraction: float | None = None  # of the memory bandwidth that its cores have at most
    limit: str | None = None  # its own limit: "products" where it prefills, "bandwidth" where it decodes
    num_ranks: int = 1  # processes that compute its steps
    limit_fraction: float | None = None  # the one of the two that is meant; of a unified worker the larger one


class Flow(Struct, frozen=True, kw_only=True):
    """What goes from one process to another, of one model, over the last seconds. One per pair that is in use."""

    kind: str  # "prompt": gateway to worker; "output": worker to gateway; "handoff": worker to worker
    model: str
    source: str  # gateway id or worker id
    target: str
    requests_per_s: float
    tokens_per_s: float  # prompts: to be computed there; handoffs: whose KV is handed over
    bytes_per_s: float | None = None  # KV of handoffs; None: not counted


class Latency(Struct, frozen=True, kw_only=True):
    """Of a model, or of all (`model` empty), in the last minute."""

    model: str
    ttft: Percentiles
    itl: Percentiles  # gaps between tokens written to streams, as they are written
    e2e: Percentiles  # of requests that were completed
    requests_per_s: float | None  # ended
    output_tokens_per_s: float | None  # written
    hit_fraction: float | None  # of the prompt tokens of requests that got their first token; None: there were none


class ModelHistory(Struct, frozen=True, kw_only=True):
    """Columns, all of one length: one number per interval, oldest first. None: nothing happened in it."""

    model: str  # empty: all
    ttft_p50_s: list[float | None]
    ttft_p90_s: list[float | None]
    ttft_p99_s: list[float | None]
    itl_p50_s: list[float | None]
    itl_p90_s: list[float | None]
    itl_p99_s: list[float | None]
    hit_fraction: list[float | None]
    num_requests: list[int]  # ended
    num_refusals: list[int]
    num_output_tokens: list[int]
    num_queued: list[int | None]  # at the interval's end


class History(Struct, frozen=True, kw_only=True):
    """The last ten minutes."""

    interval_s: int
    at_unix_s: list[int]  # where each interval begins
    models: tuple[ModelHistory, ...]  # all together first

    @property
    def open_number(self) -> int:
        """Of the interval that was under way when this was made."""
        return self.at_unix_s[-1] // self.interval_s + 1


class ClassLine(Struct, frozen=True, kw_only=True):
    """What waits in the gateways, of one class."""

    model: str
    class_name: str  # "interactive" or "batch"
    num_waiting: int
    oldest_wait_s: float


class TenantLine(Struct, frozen=True, kw_only=True):
    """What one tenant has here; the tenants that have most."""

    model: str
    tenant: str  # empty: not the viewer's to know, or there are no keys
    number: int  # 1 has most; tells unnamed ones apart within this object only
    is_own: bool
    num_waiting: int  # in line
    num_waiting_batch: int  # of these
    num_sent: int  # at workers


class Budget(Struct, frozen=True, kw_only=True):
    """Of an API key with limits. Amounts are decimal text: JSON numbers would be rounded by their readers."""

    key_id: str
    key_prefix: str  # the beginning of the key, as lists show it
    name: str
    tenant: str
    spent: str | None  # in the present period, with what runs; None: no budget
    budget: str | None
    period: str  # "total", "day" or "month"
    spent_fraction: float | None
    tokens_per_minute: int | None
    remaining_tokens: int | None  # of the minute


class Decision(Struct, frozen=True, kw_only=True):
    """One thing that was decided, and why."""

    number: int  # grows; per gateway
    gateway_id: str
    at_unix_s: float
    model: str
    kind: str  # core.decisions.Decision: route, prefill, refuse, wait, fence, ready, lost, leave
    reason: str
    worker_id: str = ""
    request_id: str = ""  # empty: about none, or not the viewer's to know
    tenant: str = ""  # of that request; empty likewise
    facts: dict[str, str | float | bool] = {}


class RequestSummary(Struct, frozen=True, kw_only=True):
    """`GET /v1/requests/{id}` tells the rest."""

    request_id: str
    gateway_id: str
    model: str
    tenant: str
    started_at_unix_s: float
    phase: str  # where it is; "ended"
    num_prompt_tokens: int
    num_output_tokens: int
    ttft_s: float | None  # None: no token yet
    e2e_s: float  # so far
    cause: str = ""  # policy.slowness: what its time went to; empty: it runs, or nothing is kept
    sentence: str = ""


class Requests(Struct, frozen=True, kw_only=True):
    num_in_flight: int
    in_flight: tuple[RequestSummary, ...]  # the longest running ones the viewer may see
    slowest: tuple[RequestSummary, ...]  # ended in the last ten minutes, slowest first


class Session(Struct, frozen=True, kw_only=True):
    """Requests that meet the same KV cache, as the router knows them; those used last."""

    session: str  # a digest: nothing of what a client called it
    model: str
    tenant: str
    home_worker_id: str  # where its last request decodes
    num_prompt_tokens: int  # of the last one
    num_cached_tokens: int  # of these, found in caches
    num_requests: int
    last_seen_unix_s: float


class PlanStep(Struct, frozen=True, kw_only=True):
    """One decision of a planner; `GET /v1/plan` tells the rest."""

    at_unix_s: float
    verdict: str  # hold, unknown, change, undo, keep, adopt, infeasible
    mode: str  # from then on
    reason: str
    attained: float | None  # part of the requests of the last minute that met both targets; None: none ended
    expected_requests_per_s: float | None = None


class PlannedNumber(Struct, frozen=True, kw_only=True):
    """How many workers a planner wants of a model."""

    wanted: int | None  # None: not known yet, or another gateway decides
    there: int
    coming: int  # that were ordered
    reason: str  # of the number that is wanted
    min_workers: int
    max_workers: int


class ModelPlan(Struct, frozen=True, kw_only=True):
    """A model's planner."""

    model: str
    mode: str  # in which its workers are, as of the last tick; empty: there was none
    is_dry_run: bool  # it says what it would do, and does nothing
    targets: dict[str, float]
    num_changes: int
    decisions: tuple[PlanStep, ...]  # newest first; those that brought nothing new left out
    workers: PlannedNumber | None = None  # None: it plans no number


class SharedState(Struct, frozen=True, kw_only=True):
    """What all viewers see alike."""

    at_unix_s: float  # of the server; its own clock tells how old this is
    server: Server
    gateways: tuple[Gateway, ...]  # the only one too
    models: tuple[Model, ...]
    workers: tuple[Worker, ...]
    flows: tuple[Flow, ...]
    latency: tuple[Latency, ...]  # all models together first
    history: History | None
    lines: tuple[ClassLine, ...]
    plan: tuple[ModelPlan, ...] | None = None  # None: no planner runs
    nodes: tuple[None, ...] = ()  # and machines


class State(SharedState, frozen=True, kw_only=True):
    """`GET /v1/state` has all of it. In a stream that is so of the first event; later ones leave `history` out (null)
    where it has not changed since the event before, and have in `decisions` only what is new."""

    viewer: Viewer
    tenants: tuple[TenantLine, ...]
    budgets: tuple[Budget, ...]
    decisions: tuple[Decision, ...]  # oldest first
    requests: Requests
    sessions: tuple[Session, ...]
