"""Every knob of `relevo serve`: one frozen object, read by `cli` and `build` only.

Sources, first wins: command line, environment (`RELEVO_*`), defaults. `resolve.resolve` turns what the user asked for
into frozen configurations without Optionals. The table in docs/settings.md is generated from this file.
"""

from __future__ import annotations

import os
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from relevo.environment import read_environment
from relevo.setting_values import (
    Bytes,
    Command,
    DTypeName,
    ItlTarget,
    JsonObject,
    Keys,
    KVDTypeName,
    Length,
    Names,
    Networks,
    Parts,
    Seconds,
    ShellWords,
    TtftTarget,
    Words,
)


class Settings(BaseModel):
    """What the user asked for. `Settings(...)` looks into the environment for what it is not given."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # model
    model: str = Field(
        "smollm2",
        description="A GGUF file, a Hugging Face folder, a hub id, `smollm2` (embedded) or `fake` (no model).",
    )
    models: str | None = Field(
        None,
        description="TOML (or JSON) file with one section per model, instead of MODEL; see docs/guides/models.md.",
    )
    served_model_name: Names = Field(
        (), description="Names clients may use; the first is answered. Default: the model."
    )
    revision: str | None = Field(None, description="Branch, tag or commit of a hub id.")
    download_dir: str | None = Field(None, description="Hub cache folder; default: HF_HUB_CACHE or HF_HOME.")
    chat_template: str | None = Field(None, description="Jinja file that replaces the model's own chat template.")
    tool_emulation: Literal["auto", "off"] = Field(
        "auto",
        description="Where the chat template has no place for tools. auto: they are told in the system message; "
        "off: requests with tools are refused.",
    )
    tool_call_parser: str = Field(
        "auto",
        min_length=1,
        description="How the model writes calls of tools: a name of docs/guides/tools.md, none (calls are text), or "
        "auto (as its chat template shows).",
    )
    enable_auto_tool_choice: bool = Field(
        False, description="Taken for vLLM's sake, without effect: calls are always read where a request brings tools."
    )
    reasoning_parser: str = Field(
        "auto",
        min_length=1,
        description="How the model marks its reasoning: a name of docs/guides/tools.md, none (it is content), or auto.",
    )
    generation_config: str = Field(
        "auto",
        min_length=1,
        description="What requests sample with where they say nothing. auto: as the model's makers do "
        "(generation_config.json, keys of a GGUF file); vllm: neutral; or a folder with a generation_config.json.",
    )
    override_generation_config: JsonObject = Field(
        {}, description='JSON object whose values win over those, for example {"temperature": 0.5}.'
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the engine computes.")
    backend: Literal["auto", "native", "torch"] = Field(
        "auto", description="What computes: native (own kernels) or torch. auto: native on CPUs, torch on CUDA."
    )
    dtype: DTypeName = Field(
        "auto",
        description="Dtype of the weights. auto: as stored, quantised ones too (torch: float32 on a CPU without bf16).",
    )
    quantization: Literal["int8"] | None = Field(
        None, description="int8: every matrix becomes 8-bit integers, one scale per output, at load (native)."
    )
    activation_dtype: Literal["int16", "int8", "bfloat16"] = Field(
        "int16",
        description="What inputs of 4- and 8-bit matrices are rounded to (native). int8 prefills faster and can change "
        "answers. bfloat16: of bfloat16 matrices those of every layer, which stay float32 elsewhere (but on AMX).",
    )
    kv_cache_dtype: KVDTypeName = Field(
        "auto", description="Dtype of the KV cache. auto: that of --dtype, and float16 where that is auto."
    )
    max_model_len: Length = Field(None, description="Longest prompt + output in tokens: 8192, 8k, 8K or auto.")
    seed: int | None = Field(
        None, ge=0, le=2**64 - 1, description="Seed for requests that bring none; default: drawn per request."
    )

    # HTTP
    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    probe_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="Port on the same address where the supervisor, which no request can delay, answers GET /live and "
        "GET /ready of a service manager. Default: none.",
    )
    api_key: Keys = Field((), description="Keys clients must send (Bearer or x-api-key). None: open.")
    best_priority: int = Field(
        0,
        ge=-(2**31 - 1),
        le=0,
        description="Best `priority` that clients without a key, or with one of --api-key, may ask for; lower is "
        "served earlier. Keys of `relevo keys create` have their own.",
    )
    admin_key: Keys = Field(
        (),
        description="Keys of operators: `relevo drain`, usage of every key. They ask nothing of others. Besides these: "
        "the key in the file operator-key beside the ledger, and admin keys of the database.",
    )
    allowed_origins: Names = Field((), description="Origins browsers may call from (CORS). None: same origin only.")
    metrics_require_key: bool = Field(
        False,
        description="GET /metrics asks for a key, as /v1 does. Without keys, or by default, it is open to probes.",
    )
    metrics_by_tenant: bool = Field(
        False,
        description="GET /metrics counts requests and tokens by tenant, and so shows tenants' names to all who may "
        "read it: the first 1000 of each gateway, the others together.",
    )
    expose_processes: bool = Field(
        False,
        description="GET /ready names process ids and socket addresses of workers to every client, not to admin keys "
        "alone.",
    )
    allowed_hosts: Names = Field(
        (),
        description="Names a server without keys on a loopback address may be called by, beside localhost and "
        "addresses; * for any.",
    )
    max_body_bytes: Bytes = Field(8 * 2**20, ge=1, description="Longest accepted request body.")
    max_body_memory_bytes: Bytes = Field(
        128 * 2**20, ge=1, description="Request bodies being read at once by a gateway; more are answered 429."
    )
    max_tokenize_bytes: Bytes = Field(
        2**20,
        ge=1,
        description="Longest accepted body of /tokenize and /detokenize; tokenizing takes 180 times it.",
    )
    root_path: str = Field("", description="Path prefix when a proxy strips one.")
    ssl_certfile: str | None = Field(
        None, description="PEM file of the certificate and its chain: HTTPS. A renewed file is taken while it runs."
    )
    ssl_keyfile: str | None = Field(None, description="PEM file of the key. Default: it is in ssl_certfile.")
    ssl_keyfile_password: str | None = Field(
        None, description="Of an encrypted key; better given in the environment than on the command line."
    )
    ssl_ca_certs: str | None = Field(None, description="PEM file of who may sign the certificates of clients.")
    ssl_cert_reqs: int = Field(
        0, ge=0, le=2, description="Certificates of clients: 0 asks for none, 1 checks one that is sent, 2 needs one."
    )
    sse_keepalive_s: Seconds | None = Field(
        None,
        gt=0,
        description="Longest silence of a stream, waiting for its first token included: then a comment is sent, and an "
        "error is an event. Default: none.",
    )
    response_lifetime_s: Seconds = Field(
        86_400.0,
        ge=0,
        description="How long a response of /v1/responses is stored for `previous_response_id`, in the usage database. "
        "0: none is.",
    )
    keep_alive_timeout_s: Seconds = Field(
        75.0, gt=0, description="How long a connection without a request is kept for the next one."
    )
    header_timeout_s: Seconds = Field(
        20.0, gt=0, description="How long a client may take for the headers of a request, or for a TLS handshake."
    )
    stall_timeout_s: Seconds = Field(
        30.0,
        gt=0,
        description="A client that sends a body, or reads an answer, at less than 240 bytes/s for so long is cut off.",
    )
    max_connections: int | None = Field(
        None,
        ge=1,
        description="Open connections of a gateway; above it the longest idle is closed. Default: what the descriptor "
        "limit allows, at most 16384.",
    )
    max_connections_per_address: int | None = Field(
        None,
        ge=1,
        description="Open connections of one client address (IPv6: of one /64). Default: half of all.",
    )
    trusted_proxies: Networks = Field(
        (), description="Addresses or networks (10.0.0.0/8) that are not bounded per address: proxies in front of us."
    )
    gateways: int = Field(
        1, ge=1, le=64, description="Gateway processes that share the port, for when one core is not enough for HTTP."
    )

    # metering
    require_keys: bool = Field(
        False,
        description="Refuse to start, and every request, where there is no API key: a lost key database opens nothing.",
    )
    data_dir: str | None = Field(
        None,
        description="Folder of the usage ledger and API keys (relevo.db). Default: $XDG_STATE_HOME/relevo, which is "
        "~/.local/state/relevo where that is not set.",
    )
    database_url: str | None = Field(
        None,
        description="PostgreSQL instead of the file: postgresql://user:password@host/name. `memory`: nothing is kept.",
    )
    kept_requests: int = Field(
        10_000,
        ge=0,
        le=1_000_000,
        description="Requests whose phases each gateway keeps for GET /v1/requests: the last ones, some 2 KB each.",
    )
    ledger_timelines: int = Field(
        0,
        ge=0,
        le=10_000_000,
        description="Ended requests whose phases are kept in the usage database too, of all gateways: the last ones, "
        "some 3 KB each. 0: none; they are gone with their gateway.",
    )
    traffic_log_bytes: int = Field(
        0,
        ge=0,
        le=2**40,
        description="Bytes of files in the data folder that keep of each request what simulate --ledger replays: its "
        "arrival, lengths, times, and keyed hashes of its blocks and tenant, never text. The oldest go. 0: none.",
    )
    ledger_fsync: bool = Field(
        False,
        description="Rows in the ledger file survive a power cut too, not only kill -9; commits wait for the disk.",
    )
    prices: str | None = Field(
        None, description="JSON or TOML file with prices per model under LiteLLM's names. Default: everything costs 0."
    )

    # topology
    topology: str = Field(
        "auto",
        description="auto (by this machine, then by its traffic), unified, hybrid, or NpMd: N prefill and M decode "
        "workers, for example 1p1d. In a cluster also Np, Md, prefill, decode, and none: all workers are on other "
        "boxes.",
    )
    auto_from: str | None = Field(
        None,
        description="With --topology auto: start in the mode that is best for traffic that was, `ledger` (what this "
        "server was asked for in the last week) or a trace's file. Default: by the cores.",
    )
    engine: Literal["relevo", "vllm", "sglang"] = Field(
        "relevo",
        description="What computes: Relevo's own engine, or one that Relevo starts, restarts and hands KV between; "
        "flags of that go after --. See docs/guides/engines.md.",
    )
    worker: Words = Field(
        (),
        description="A running engine as a worker, once for each: URL,role=prefill,engine=vllm and more, see "
        "docs/guides/engines.md. MODEL names its tokenizer. In the environment spaces lie between them.",
    )
    engine_args: ShellWords = Field((), description="Flags of an engine that Relevo starts: all that stands after --.")
    kv_transport: Parts = Field(
        ("shm",),
        description="How KV blocks change worker: shm (one shared arena, nothing is copied), tcp, or several, for "
        "example shm,tcp: each pair of workers takes the nearest that both have.",
    )
    kv_port: str = Field(
        "0",
        description="Port, or range as 7100-7107, at which workers take KV of other boxes. 0: any free one.",
    )
    kv_encryption: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Whether KV travels encrypted between boxes: on, off, or auto: on if this processor sends it at "
        "80 % of the plain rate; where it does not, the server asks for on or off.",
    )
    kv_streams: int = Field(
        4, ge=1, le=64, description="Connections per pair of workers on two boxes, at most; more than one when busy."
    )
    cores: Parts = Field((), description="CPU cores the workers may use, for example 0,1. Default: all allowed ones.")
    share_cores: bool = Field(False, description="Let workers share cores if there are fewer cores than workers.")
    resource_share: float = Field(
        1.0, gt=0, description="A model's part of cores and default KV memory, relative to the others of --models."
    )

    # engine
    pipeline_parallel_size: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes that share out the layers of each worker's model, as stages of a pipeline; answers keep "
        "their bits. See docs/guides/ranks.md.",
    )
    tensor_parallel_size: int | None = Field(
        None,
        ge=1,
        description="Processes that share every layer of each worker's model: 1, 2, 4 or 8, with the same bits for "
        "each. Default: one process and a model that is not cut, whose last bits are others. See docs/guides/ranks.md.",
    )
    enable_expert_parallel: bool = Field(
        False,
        description="With tensor_parallel_size: a process has some of the experts whole instead of a part of each.",
    )
    expert_load: str | None = Field(
        None,
        description="With enable_expert_parallel: a file that says how many tokens pass each expert, such as the saved "
        "/metrics of a server; experts are placed on processes by it, and answers keep their bits.",
    )
    num_redundant_experts: int = Field(
        0, ge=0, description="With expert_load: copies of the hottest experts of each layer, over all its processes."
    )
    collectives: Literal["shm", "gloo", "nccl"] = Field("shm", description="How ranks of a worker exchange arrays.")
    block_size: int = Field(16, ge=1, le=256, description="Tokens per KV block.")
    decode_block_size: int | None = Field(None, ge=1, le=256, description="Of decode workers; over kv_transport tcp.")
    kv_cache_memory_bytes: Bytes = Field(
        None, ge=1, description="KV cache per worker, for example 2GiB. Default: sized from free memory."
    )
    num_kv_blocks: int | None = Field(None, ge=1, description="KV blocks per worker; overrides kv_cache_memory_bytes.")
    max_num_seqs: int = Field(64, ge=1, description="Most continuations that decode together on a worker.")
    max_num_batched_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens per step: decodes first, prefill chunks from the rest. Default: what fits into max_step_s.",
    )
    max_step_s: Seconds = Field(
        0.5, gt=0, description="Longest step the default token budget aims at; messages are heard between steps."
    )
    max_prefill_tokens: int | None = Field(
        None, ge=1, description="Most prefill tokens in a step that also decodes. Default: as few as lose no speed."
    )
    planner: Literal["auto", "off", "dry-run", "on"] = Field(
        "auto",
        description="on: who computes prompts and who decodes follows the traffic. dry-run: it is only said what "
        "would be done, in the log and at /v1/plan. auto: on with --topology auto, two workers and one gateway.",
    )
    min_workers: int = Field(1, ge=0, description="Fewest workers that the planner wants; see max_workers.")
    max_workers: int | None = Field(
        None,
        ge=1,
        description="Most workers that the planner wants of a cluster. How many it wants, and why, is in the log, at "
        "/v1/plan and relevo:planner_wanted_workers; see docs/guides/planner.md. Default: it plans no number.",
    )
    worker_start_s: Seconds = Field(
        60.0, gt=0, description="From ordering a worker until it serves, until the first one has come."
    )
    scale_command: Command = Field(
        (),
        description="Program, and arguments, that is run with the number of workers that the planner wants as its last "
        "one, where that changes: it brings boxes that join. Those that are given back are drained before.",
    )
    scale_timeout_s: Seconds = Field(60.0, gt=0, description="Longest run of scale_command, which is then ended.")
    slo_ttft_p90: TtftTarget = Field(
        None, gt=0, description="Time to the first token that the planner aims at: 500ms, 2s, or seconds. Default: 2 s."
    )
    slo_itl_p90: ItlTarget = Field(
        None,
        gt=0,
        description="Time between tokens to aim at, as 50ms: prompts that share steps with running streams are cut "
        "so that a step stays below it, by measured costs. Default: 0.1 s with --topology auto; otherwise only "
        "max_prefill_tokens bounds them.",
    )
    enable_prefix_caching: bool = Field(True, description="Reuse KV blocks of equal prefixes.")

    # routing
    routing_policy: Literal["ttft", "round_robin", "least_requests", "prefix_only"] = Field(
        "ttft", description="How workers are chosen. ttft: shortest estimated TTFT; the others are for comparison."
    )
    affinity_max_penalty_s: Seconds = Field(
        0.5, ge=0, description="Most TTFT that keeping a session or prefix on its worker may cost."
    )
    affinity_load_factor: float = Field(
        1.25, ge=1, description="A preferred worker may have so many times the mean load."
    )
    conditional_disaggregation: bool = Field(
        True,
        description="A decode worker computes a prompt itself where that is estimated to be faster. Off: every prompt "
        "is handed over while a prefill worker is ready.",
    )
    affinity_header: Names = Field((), description="More request headers that name a session, asked after the known.")

    # limits
    max_num_queued_reqs: int = Field(256, ge=0, description="Requests that may wait; more are answered 429.")
    max_num_queued_tokens: int = Field(
        1_000_000, ge=1, description="Prompt tokens that may wait; more are answered 429."
    )
    max_num_queued_batch_reqs: int = Field(
        1024, ge=0, description="Batch requests that may wait; more are answered 429."
    )
    max_queue_ttft_s: Seconds = Field(
        60.0, gt=0, description="Who would wait longer than this for its first token is answered 429 at once."
    )
    dispatch_ahead_s: Seconds = Field(
        0.5, gt=0, description="Prompt work that may wait on a worker; the rest waits in the gateway, in fair order."
    )
    tenant_weight: Names = Field(
        (), description="NAME=WEIGHT of a tenant's share when requests wait, for example team-a=2. Default: 1."
    )
    batch_queue_timeout_s: Seconds = Field(
        3600.0, gt=0, description="Longest wait of a batch request in the gateway, or set aside on a worker."
    )
    queue_timeout_s: Seconds = Field(
        300.0, gt=0, description="Longest wait in the gateway, and longest wait for decode room on a worker."
    )
    prefill_timeout_s: Seconds = Field(300.0, gt=0, description="Longest prefill, its queue included.")
    transfer_timeout_s: Seconds = Field(30.0, gt=0, description="Longest wait from the last chunk to the sealed KV.")
    drain_lease_s: Seconds = Field(
        5.0, ge=0.5, description="How long a prefill worker may take to let go of blocks before it is ended."
    )
    heartbeat_timeout_s: Seconds = Field(
        8.0,
        ge=2.0,
        description="A worker or gateway whose loop does not answer for so long is ended and started again.",
    )
    max_attempts: int = Field(3, ge=1, description="How often a request is tried when workers fail.")
    drain_timeout_s: Seconds = Field(
        30.0, ge=0, description="How long a worker that leaves waits for what it runs; the rest continues elsewhere."
    )
    start_timeout_s: Seconds = Field(
        1800.0, gt=0, description="A process that is not ready so long after its start is ended, and started again."
    )
    shutdown_timeout_s: Seconds = Field(30.0, ge=0, description="How long Ctrl-C waits for running requests.")

    # operation
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe line that is logged."
    )
    quiet: bool = Field(False, description="Show no progress at the terminal while the server starts.")

    # cluster
    cluster: str | None = Field(
        None, description="HOST:PORT at which other boxes join this server; see docs/guides/cluster.md."
    )
    join: Names = Field((), description="HOST:PORT of heads that are there already; nodes of each are nodes of all.")
    advertise: str | None = Field(
        None, description="HOST[:PORT] where other boxes reach this one, if that is not the address it listens at."
    )
    token_file: str | None = Field(None, description="File with a join token, for the first join of this box.")
    cluster_dir: str | None = Field(
        None, description="Folder of this box's certificate and epochs. Default: `cluster` in the data folder."
    )

    # fake engine (model `fake`): for tests of everything around an engine
    script: str | None = Field(
        None, description="`fake` engine: TOML or JSON file of what to say; see docs/guides/scripted-engine.md."
    )
    fake_base_s: Seconds = Field(0.0, ge=0, description="`fake` engine: seconds per step.")
    fake_per_token_s: Seconds = Field(0.0, ge=0, description="`fake` engine: seconds per computed token.")
    fake_per_kv_token_s: Seconds = Field(0.0, ge=0, description="`fake` engine: seconds per token of context read.")

    @model_validator(mode="before")
    @classmethod
    def _with_environment(cls, given: dict[str, Any]) -> dict[str, Any]:
        return read_environment(os.environ, cls.model_fields).values | given
