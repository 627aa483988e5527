"""What the supervisor tells its children: frozen configurations without Optionals that mean "decide yourself".

Kept apart from the settings they come from, so that a child imports what it needs and nothing of how that was decided.
"""

from __future__ import annotations

from typing import Any

import msgspec

from relevo.core.cluster import ClusterFacts, NodeFacts
from relevo.core.model import ExpertRanks
from relevo.engines.spec import EngineSpec
from relevo.policy.worker.table_rules import TableRule


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker process needs. `epoch` and `status_fd` are filled in by the supervisor."""

    worker_id: str
    section: str  # of the file of models; empty: the model named on the command line
    role: str
    address: str
    model: str
    revision: str | None
    download_dir: str | None
    device: str
    backend: str  # "native", "torch" or "fake"
    dtype: str  # "auto" (as stored) for native only
    quantization: str | None
    activation_dtype: str  # "int16" or "int8", where weights are integers; "bfloat16", where they are bfloat16
    kv_cache_dtype: str
    block_size: int
    first_block_id: int
    num_blocks: int
    num_arena_blocks: int
    arena_fd: int  # -1: a private arena
    transports: tuple[str, ...]  # names in kv.transports.registry
    cores: tuple[int, ...]
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_prefill_tokens: int | None  # None: by measured costs, see policy.worker.chunking.least_tokens
    itl_target_s: float  # prompts beside decodes keep steps below it; 0: no target
    max_step_s: float  # 0: the budgets are as asked for; otherwise they are cut to steps of that length
    enable_prefix_caching: bool
    drain_lease_s: float
    drain_timeout_s: float
    fake_base_s: float
    fake_per_token_s: float
    fake_per_kv_token_s: float
    script: str  # of the fake engine, as engine.fake_script packs it; empty: none
    log_level: str
    pipeline_parallel_size: int = 1  # stages that its layers are shared out to, its own process computing the last
    tensor_parallel_size: int | None = None  # processes that share each layer of a stage; None: the model is not cut
    enable_expert_parallel: bool = False  # these have experts whole
    expert_ranks: ExpertRanks = ()  # which have each of them, by layer with experts; empty: in order, each once
    collectives: str = "shm"  # what all of these exchange arrays over: "shm", "gloo" or "nccl"
    kv_secret: str = ""  # hex; of one start of the server, drawn by `build.serve`; empty where no transport needs it
    tenant_weights: dict[str, float] = {}
    box_id: str = ""  # empty: that of this machine; otherwise of its node
    node_epoch: int = 0  # of the node that it belongs to; 0: none, or it is told later
    node_folder: str = ""  # of the identity by which workers of other boxes know it; empty: its KV stays in the box
    kv_host: str = "127.0.0.1"  # where its transports listen for other boxes; so the next
    kv_advertised_host: str = ""  # empty: the same
    kv_ports: tuple[int, int] = (0, 0)  # first and last; the first free one is taken. 0: any
    kv_encrypts: bool = True
    kv_streams: int = 4
    epoch: int = 0
    status_fd: int = -1
    life_fd: int = -1  # of `wire.child_process`

    def __repr__(self) -> str:
        """Without the secret, wherever it may be printed."""
        return f"WorkerConfig({self.worker_id!r}, epoch={self.epoch})"

    @property
    def group_size(self) -> int:
        """Ranks that compute a stage together."""
        return self.tensor_parallel_size or 1

    @property
    def num_ranks(self) -> int:
        """Processes that compute its steps."""
        return self.pipeline_parallel_size * self.group_size


class RankConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a rank process needs. Its worker starts it, and is the last rank itself."""

    worker: WorkerConfig
    rank: int  # stage by stage
    layers: tuple[int, int]  # of its stage: first, and the one after the last
    model_hash: str
    memory_fd: int  # as engine.ranks.shared_memory.RankEnds; so the next
    socket_fds: dict[int, int]
    status_fd: int
    life_fd: int


class WorkerAddress(msgspec.Struct, frozen=True, kw_only=True):
    worker_id: str
    role: str
    address: str
    engine: EngineSpec | None = None  # it is not ours


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that is not ours and that Relevo starts."""

    worker_id: str
    section: str
    argv: tuple[str, ...]
    environment: dict[str, str]  # beside that of the process; may hold a key
    url: str
    shutdown_timeout_s: float
    log_level: str
    epoch: int = 0
    status_fd: int = -1
    life_fd: int = -1

    def __repr__(self) -> str:
        return f"EngineConfig({self.worker_id!r}, epoch={self.epoch})"


class GatewayAddress(msgspec.Struct, frozen=True, kw_only=True):
    gateway_id: str
    path: str  # of the socket at which the others follow it


class PriceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Currency units per token as decimal text; see policy.billing.pricing."""

    input_cost_per_token: str
    cache_read_input_token_cost: str
    output_cost_per_token: str


class HistoryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for before: what `--topology auto` starts from."""

    source: str  # in words
    requests_per_s: float
    samples: tuple[tuple[int, int, int], ...]  # tokens of a prompt, of its answer, and of the prompt those cached
    longest_tokens: int
    costs: tuple[tuple[int, float, float, float], ...] = ()  # number of cores, and the coefficients of a step on them


class WorkerNumberConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Between which numbers of workers the planner chooses."""

    least: int
    most: int
    spare: int  # that may be away while the targets are kept
    start_s: float
    command: tuple[str, ...] = ()  # that brings workers; none: the number is only said
    command_timeout_s: float = 60.0


class ServedModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One model behind the gateway: where its text parts are, its workers, and what bounds and routes its requests."""

    section: str  # of the file of models; empty: the model named on the command line
    served_model_names: tuple[str, ...]
    workers: tuple[WorkerAddress, ...]
    topology: str
    model: str
    revision: str | None
    download_dir: str | None
    chat_template: str | None
    tool_emulation: str  # "auto" or "off"
    generation_config: str  # "auto", "vllm", or a folder
    override_generation_config: dict[str, Any]
    model_hash: str
    vocab_size: int
    max_model_len: int
    block_size: int
    seed: int | None
    max_num_queued_reqs: int
    max_num_queued_tokens: int
    max_num_queued_batch_reqs: int
    max_queue_ttft_s: float
    dispatch_ahead_s: float
    dispatch_ahead_tokens: int
    max_num_batched_tokens: int
    max_num_seqs: int
    tenant_weights: dict[str, float]
    batch_queue_timeout_s: float
    queue_timeout_s: float
    prefill_timeout_s: float
    transfer_timeout_s: float
    drain_lease_s: float
    heartbeat_timeout_s: float
    max_attempts: int
    tool_call_parser: str = "auto"  # or "none", or a name in gateway.dialects.registry; so the next
    reasoning_parser: str = "auto"
    routing_policy: str = "ttft"
    affinity_load_factor: float = 1.25
    affinity_max_penalty_s: float = 0.5
    conditional_disaggregation: bool = True
    enable_prefix_caching: bool = True
    planner: str = "off"  # or "dry-run" or "on"
    slo_ttft_s: float = 0.0  # 0: none was set; so the next
    slo_itl_s: float = 0.0
    more_groups: tuple[TableRule, ...] = ()  # KV groups after the first
    history: HistoryConfig | None = None
    number: WorkerNumberConfig | None = None  # None: how many workers there are is not planned


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Connections of one process that speaks HTTP. 0: what the process may have."""

    root_path: str = ""
    max_connections: int = 0
    max_connections_per_address: int = 0
    trusted_proxies: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    ssl_certfile: str = ""  # empty: no TLS
    ssl_keyfile: str = ""
    ssl_keyfile_password: str = ""
    ssl_ca_certs: str = ""
    ssl_cert_reqs: int = 0
    allowed_origins: tuple[str, ...] = ()
    header_timeout_s: float = 20.0
    keep_alive_timeout_s: float = 75.0
    stall_timeout_s: float = 30.0


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the node process needs: the one of a box that speaks to other boxes."""

    folder: str  # of its identity and epochs
    listen: str  # HOST:PORT of the control port
    control: str  # where other boxes reach it
    workers: tuple[WorkerAddress, ...]
    facts: NodeFacts
    heads: tuple[str, ...] = ()  # to join
    cluster: ClusterFacts | None = None  # None: it is no head
    feed_path: str = ""  # of a head, for the gateways of its box
    node_epoch: int = 0  # that its workers were started under
    drain_timeout_s: float = 30.0
    kv_encrypts: bool = True  # as its workers do
    log_level: str = "info"
    epoch: int = 0
    status_fd: int = -1
    life_fd: int = -1


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the gateway process needs."""

    listen_fd: int
    http: HttpConfig
    models: tuple[ServedModelConfig, ...]
    api_key_hashes: tuple[str, ...]
    admin_key_hashes: tuple[str, ...]
    best_priority: int
    metrics_require_key: bool
    metrics_by_tenant: bool = False
    expose_processes: bool
    max_body_bytes: int
    max_body_memory_bytes: int
    max_tokenize_bytes: int
    sse_keepalive_s: float  # 0: no comments
    response_lifetime_s: float = 86_400.0  # 0: none is stored
    sealing_key: str = ""  # of what clients give back; empty: drawn by each gateway
    shutdown_timeout_s: float
    log_level: str
    database: str = "memory"  # or a URL, or the path of an SQLite file; filled in by build.metering, like the prices
    ledger_fsync: bool = False
    kept_requests: int = 10_000  # by each gateway; 0: none
    ledger_timelines: int = 0  # in the database; 0: none
    traffic_log_bytes: int = 0  # of files; 0: none
    traffic_log_dir: str = ""
    traffic_log_key: str = ""  # hexadecimal; filled in by build.ledger, like the folder
    require_keys: bool = False  # also where there are none
    journal_dir: str = ""  # for rows that the database does not take; empty: nothing is kept
    prices: dict[str, PriceConfig] = {}  # by served name; none: everything is free
    affinity_headers: tuple[str, ...] = ()
    gateway_id: str = "gateway"
    gossip_path: str = ""  # empty: it is the only one
    peers: tuple[GatewayAddress, ...] = ()
    cluster_folder: str = ""  # of the identity by which other boxes know it; empty: it is in no cluster
    node_name: str = ""
    feed_path: str = ""  # of the node process of its box
    epoch: int = 0
    status_fd: int = -1
    life_fd: int = -1

    @property
    def served_model_names(self) -> tuple[str, ...]:
        """Every name of every model."""
        return tuple(name for model in self.models for name in model.served_model_names)
