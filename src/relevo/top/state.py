"""What is read of `GET /v1/state`, whichever release the server is of: what it does not say has a default.

Owns which of its fields are used here. Their meaning is the server's (`gateway.console.state`); names in it are any
text at all. None stands for what is not known.
"""

from __future__ import annotations

from msgspec import Struct


class Percentiles(Struct, frozen=True, kw_only=True):
    num_samples: int = 0
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None


NONE_MEASURED = Percentiles()


class Viewer(Struct, frozen=True, kw_only=True):
    sees_all: bool = True
    is_admin: bool = False
    tenant: str = ""


class Server(Struct, frozen=True, kw_only=True):
    version: str
    uptime_s: float = 0.0
    is_ready: bool = True
    is_draining: bool = False
    failure: str = ""


class Gateway(Struct, frozen=True, kw_only=True):
    gateway_id: str = ""
    answers: bool = True


class Model(Struct, frozen=True, kw_only=True):
    name: str
    is_ready: bool = True
    reason: str = ""
    topology: str = ""
    num_queued: int = 0
    num_in_flight: int = 0


class Blocks(Struct, frozen=True, kw_only=True):
    num_total: int = 0
    num_held: int = 0
    num_reusable: int = 0
    num_quarantined: int = 0


class Rates(Struct, frozen=True, kw_only=True):
    prefill_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    hit_fraction: float | None = None


class Costs(Struct, frozen=True, kw_only=True):
    base_s: float = 0.0
    per_token_s: float = 0.0
    per_kv_token_s: float = 0.0


class Worker(Struct, frozen=True, kw_only=True):
    worker_id: str
    model: str = ""
    role: str = ""
    is_ready: bool = True
    why_not_ready: str = ""
    epoch: int = 0
    num_running: int = 0
    num_waiting: int = 0
    blocks: Blocks = Blocks()
    rates: Rates = Rates()
    costs: Costs = Costs()
    itl: Percentiles = NONE_MEASURED
    busy_fraction: float | None = None
    limit: str | None = None
    limit_fraction: float | None = None

    @property
    def key(self) -> str:
        return f"{self.model}\0{self.worker_id}"


class Latency(Struct, frozen=True, kw_only=True):
    model: str = ""
    ttft: Percentiles = NONE_MEASURED
    itl: Percentiles = NONE_MEASURED
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    hit_fraction: float | None = None


class ClassLine(Struct, frozen=True, kw_only=True):
    model: str = ""
    class_name: str = ""
    num_waiting: int = 0
    oldest_wait_s: float = 0.0


class Decision(Struct, frozen=True, kw_only=True):
    number: int
    gateway_id: str = ""
    at_unix_s: float = 0.0
    model: str = ""
    kind: str = ""
    reason: str = ""
    worker_id: str = ""
    request_id: str = ""

    @property
    def key(self) -> str:
        return f"{self.gateway_id}\0{self.number}"


class Request(Struct, frozen=True, kw_only=True):
    request_id: str
    gateway_id: str = ""
    model: str = ""
    tenant: str = ""
    started_at_unix_s: float = 0.0
    phase: str = ""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    ttft_s: float | None = None
    e2e_s: float = 0.0
    cause: str = ""
    sentence: str = ""

    @property
    def key(self) -> str:
        return self.request_id

    @property
    def is_over(self) -> bool:
        return self.phase == "ended"


class Requests(Struct, frozen=True, kw_only=True):
    num_in_flight: int
    in_flight: tuple[Request, ...] = ()
    slowest: tuple[Request, ...] = ()


class Session(Struct, frozen=True, kw_only=True):
    session: str
    model: str = ""
    tenant: str = ""
    home_worker_id: str = ""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_requests: int = 0
    last_seen_unix_s: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.model}\0{self.tenant}\0{self.session}"


class State(Struct, frozen=True, kw_only=True):
    """What has no default tells a server of ours from others."""

    at_unix_s: float
    server: Server
    models: tuple[Model, ...]
    workers: tuple[Worker, ...]
    requests: Requests
    viewer: Viewer = Viewer()
    gateways: tuple[Gateway, ...] = ()
    latency: tuple[Latency, ...] = ()
    lines: tuple[ClassLine, ...] = ()
    decisions: tuple[Decision, ...] = ()
    sessions: tuple[Session, ...] = ()

    @property
    def over_all(self) -> Latency:
        """All models together."""
        return next((each for each in self.latency if not each.model), Latency())
