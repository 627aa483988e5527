"""From what the user asked of one model to frozen configurations: pure arithmetic and checks, no I/O.

`resolve_model(ask, hardware)` either returns a `ModelPlan` that can work or raises a SettingsError whose one sentence
names the values, the rule and the fix. What several models share out is `build.plan`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relevo.build.auto_topology import check_history, number_config, planner_of, what_may_change
from relevo.build.block_sizes import layouts_of_roles
from relevo.build.configs import EngineConfig, ServedModelConfig, WorkerAddress, WorkerConfig
from relevo.build.expert_loads import Loads
from relevo.build.hardware import Hardware, gib
from relevo.build.model import kv_layout
from relevo.build.placed_experts import placed_experts
from relevo.build.states import check_states
from relevo.build.tensor_group import collectives_of, group_size, weights_of_an_expert, whole_everywhere
from relevo.build.worker_notes import worker_notes
from relevo.core.errors import SettingsError
from relevo.core.handoff import Reach
from relevo.core.kv import KVLayout
from relevo.core.model import ModelConfig
from relevo.engine.models.rope_config import length_notes
from relevo.engines.spec import EngineSpec
from relevo.kv.transports.registry import TRANSPORTS
from relevo.policy.host.auto_mode import itl_target_s
from relevo.policy.host.generation_defaults import checked_overrides
from relevo.policy.host.topology import UNIFIED, Topology, assign_cores, choose_topology, parse_part, parse_topology
from relevo.policy.worker.table_rules import TableRule, num_blocks_of, num_pool_tokens, table_rules
from relevo.settings import Settings

_KV_MEMORY_FRACTION = 0.3  # of the free memory, over all workers of all models; arbitrary
_KV_MEMORY_MAX_BYTES = 4 * 2**30  # per worker, when nothing is asked for; arbitrary
_MIN_BLOCKS = 4
_CPU_BATCHED_TOKENS = 512  # upper bounds; `max_step_s` and the measured costs decide below them
_GPU_BATCHED_TOKENS = 2048
_FLOATS = ("float32", "bfloat16", "float16")
_ONLY_NATIVE = {"quantization": "int8", "kv-cache-dtype": "int8", "activation-dtype": "bfloat16"}
_BYTES_PER_PARAMETER = {"float32": 4, "bfloat16": 2, "float16": 2}

# What processes take besides weights and KV. Measured with SmolLM2 on two cores, rounded up: a worker 42 MB, a gateway
# 85 MB after four prompts of 1,500 tokens (the texts of many requests come on top), the supervisor 40 MB.
WORKER_BYTES = 64 * 2**20
TORCH_BYTES = 192 * 2**20  # of a process that has loaded it; measured
GATEWAY_BYTES = 192 * 2**20
SUPERVISOR_BYTES = 48 * 2**20
_LEAST_KV_TOKENS = 2048  # `auto` splits only where each worker can hold a request of that length; arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAsk:
    """One model as it was asked for, and what its files say of it."""

    settings: Settings  # `cores` are what its section reserves for it
    model: ModelConfig
    model_hash: str
    weights_bytes: int = 0  # as stored
    num_parameters: int = 0
    block_formats: Mapping[str, str] = field(default_factory=dict)  # that are multiplied as stored, by tensor
    expert_loads: Loads | None = None  # of the file that `settings.expert_load` names
    notes: tuple[str, ...] = ()  # of the loader, on its files
    section: str = ""  # of the file of models; empty: the model named on the command line
    script: str = ""  # of the fake engine, packed
    price: Mapping[str, Any] | None = None  # written in the section; else `settings.prices` names a file

    @property
    def served_names(self) -> tuple[str, ...]:
        return self.settings.served_model_name or (self.section or default_model_name(self.settings.model),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """What will be started for one model, and why. File descriptors and addresses are still open (-1, empty)."""

    ask: ModelAsk
    topology: Topology
    topology_reason: str
    layout: KVLayout
    workers: tuple[WorkerConfig, ...]
    served: ServedModelConfig
    notes: tuple[str, ...]
    engines: tuple[EngineSpec, ...] = ()  # instead of workers of our own
    commands: tuple[EngineConfig, ...] = ()  # of those, what Relevo starts

    @property
    def num_arena_blocks(self) -> int:
        return self.workers[0].num_arena_blocks

    @property
    def is_arena_shared(self) -> bool:
        return bool(self.workers) and is_arena_shared(self.workers[0].transports)

    @property
    def kv_bytes(self) -> int:
        """Of all its workers."""
        return sum(worker.num_blocks * self.layout.bytes_of_blocks(worker.block_size) for worker in self.workers)


def resolve_model(ask: ModelAsk, hardware: Hardware, memory_fraction: float = 1.0) -> ModelPlan:
    """`hardware.cores` are this model's; of the free memory it takes `memory_fraction` of what all models take if it
    does not say how much KV cache it wants. Raises SettingsError when the combination cannot work."""
    settings, model = ask.settings, ask.model
    device = _device(settings, hardware)
    _check_model(settings, model, device)
    backend = _backend(settings, model, device)
    tensor_parallel_size = group_size(settings, model, backend, device, ask.block_formats)
    expert_ranks = placed_experts(settings, ask.expert_loads, tensor_parallel_size)
    dtype = _dtype(settings, model, device, backend, hardware)
    kv_dtype = _kv_dtype(settings, dtype)
    if model.architecture == "fake":
        backend, dtype, kv_dtype = "fake", "uint64", "uint64"
    layout = kv_layout(model, ask.model_hash, kv_dtype, settings.block_size)
    topology, topology_reason = _topology(ask, layout, device, hardware)
    num_workers = topology.num_workers
    budget = _budget(settings, device)
    transports = _transports(settings, device)
    is_shared = is_arena_shared(transports)
    layouts = layouts_of_roles(settings, topology, layout, is_shared)
    pools = {each: _num_blocks(ask, each, device, num_workers, hardware, memory_fraction) for each in layouts.values()}
    max_model_len = min(_max_model_len(settings, model, each, pools.get(each, 0), budget) for each in pools or [layout])
    assigned_cores = assign_cores(list(hardware.cores), topology, may_share=may_share_cores(settings))
    workers = tuple(
        WorkerConfig(
            worker_id=worker_id,
            section=ask.section,
            role=role,
            address="",
            model=settings.model,
            revision=settings.revision,
            download_dir=settings.download_dir,
            device=device,
            backend=backend,
            dtype=dtype,
            quantization=settings.quantization,
            activation_dtype=settings.activation_dtype,
            kv_cache_dtype=kv_dtype,
            block_size=layouts[role].block_size,
            first_block_id=index * pools[layouts[role]] if is_shared else 0,
            num_blocks=pools[layouts[role]],
            num_arena_blocks=pools[layouts[role]] * (num_workers if is_shared else 1),
            arena_fd=-1,
            transports=transports,
            cores=tuple(worker_cores),
            max_model_len=max_model_len,
            max_num_seqs=settings.max_num_seqs,
            tenant_weights=_tenant_weights(settings.tenant_weight),
            max_num_batched_tokens=budget,
            max_prefill_tokens=settings.max_prefill_tokens,
            itl_target_s=itl_target_s(settings.slo_itl_p90, is_auto=settings.topology == "auto"),
            max_step_s=settings.max_step_s if settings.max_num_batched_tokens is None else 0.0,
            enable_prefix_caching=settings.enable_prefix_caching,
            drain_lease_s=settings.drain_lease_s,
            drain_timeout_s=settings.drain_timeout_s,
            fake_base_s=settings.fake_base_s,
            fake_per_token_s=settings.fake_per_token_s,
            fake_per_kv_token_s=settings.fake_per_kv_token_s,
            script=ask.script,
            log_level=settings.log_level,
            pipeline_parallel_size=settings.pipeline_parallel_size,
            tensor_parallel_size=tensor_parallel_size,
            enable_expert_parallel=settings.enable_expert_parallel,
            expert_ranks=expert_ranks,
            collectives=collectives_of(settings, tensor_parallel_size, hardware.num_cuda_devices),
        )
        for index, ((worker_id, role), worker_cores) in enumerate(
            zip(_worker_roles(ask, topology), assigned_cores, strict=True)
        )
    )
    return ModelPlan(
        ask=ask,
        topology=topology,
        topology_reason=topology_reason,
        layout=layout,
        workers=workers,
        served=served_config(ask, topology, max_model_len, budget, more_groups=table_rules(layout)),
        notes=(
            *ask.notes,
            *length_notes(ask.model, max_model_len),
            *worker_notes(settings, ask.expert_loads, workers, layout),
        ),
    )


def _budget(settings: Settings, device: str) -> int:
    """Tokens of a step, at most."""
    budget = settings.max_num_batched_tokens or (_CPU_BATCHED_TOKENS if device == "cpu" else _GPU_BATCHED_TOKENS)
    if budget < settings.max_num_seqs:
        raise SettingsError(
            f"--max-num-batched-tokens {budget} is less than --max-num-seqs {settings.max_num_seqs}, but every running "
            f"request needs one token per step; raise the first or lower the second"
        )
    return budget


def _transports(settings: Settings, device: str) -> tuple[str, ...]:
    asked = tuple(dict.fromkeys(settings.kv_transport))
    if not asked or not TRANSPORTS.keys() >= set(asked):
        raise SettingsError(f"--kv-transport {','.join(asked)} must name one or more of {', '.join(TRANSPORTS)}")
    if settings.cluster or settings.join:  # others are reached over the network
        over_network = [name for name, kind in TRANSPORTS.items() if kind.reach is Reach.NETWORK]
        asked = tuple(dict.fromkeys((*asked, over_network[0])))
    return asked if device == "cpu" else ()  # what lies in device memory is not handed over


def is_arena_shared(transports: Iterable[str]) -> bool:
    return any(TRANSPORTS[name].reach is Reach.ARENA for name in transports)


def may_share_cores(settings: Settings) -> bool:
    return settings.share_cores or settings.model == "fake"  # which computes nothing


def _worker_roles(ask: ModelAsk, topology: Topology) -> tuple[tuple[str, str], ...]:
    """Worker ids are unique over all models: those of a section begin with its name."""
    prefix = f"{ask.section}/" if ask.section else ""
    return tuple((prefix + worker_id, role) for worker_id, role in topology.worker_roles())


def _device(settings: Settings, hardware: Hardware) -> str:
    if settings.device == "cuda" and not hardware.num_cuda_devices:
        raise SettingsError("--device cuda, but no CUDA device is visible; install its driver or use --device cpu")
    if settings.device == "auto":
        return "cuda" if hardware.num_cuda_devices else "cpu"
    return settings.device


def _backend(settings: Settings, model: ModelConfig, device: str) -> str:
    backend = settings.backend
    if backend == "auto":
        backend = "native" if device == "cpu" else "torch"
    if backend == "native" and device != "cpu":
        raise SettingsError(f"--backend native computes on CPUs, not on {device}; use --backend torch or --device cpu")
    if backend == "torch":
        for flag, value in _ONLY_NATIVE.items():
            if getattr(settings, flag.replace("-", "_")) == value:
                raise SettingsError(
                    f"--{flag} {value} needs --backend native, not torch; leave it out or change the backend"
                )
    made_of = f"--quantization {settings.quantization}" if settings.quantization else f"--dtype {settings.dtype}"
    if settings.activation_dtype == "bfloat16" and made_of not in ("--dtype auto", "--dtype bfloat16"):
        raise SettingsError(
            f"--activation-dtype bfloat16 is for matrices of bfloat16, and {made_of} leaves none; use "
            "--dtype bfloat16, or leave it out"
        )
    return backend


def _kv_dtype(settings: Settings, dtype: str) -> str:
    if settings.kv_cache_dtype != "auto":
        return settings.kv_cache_dtype
    return "float16" if dtype == "auto" else dtype


def _check_model(settings: Settings, model: ModelConfig, device: str) -> None:
    """Raises SettingsError for what the model cannot be served with, and for stages that it cannot be cut into here."""
    check_states(settings, model)
    asked = settings.pipeline_parallel_size
    if asked == 1:
        return
    if model.architecture == "fake":
        raise SettingsError(
            f"--pipeline-parallel-size {asked} shares out the layers of a model, and `fake` has none; name a model, or "
            "leave it out"
        )
    if device != "cpu":
        raise SettingsError(
            f"--pipeline-parallel-size {asked} needs KV that several processes map, and --device {device} keeps it in "
            "device memory; use --device cpu, or leave it out"
        )
    if asked > model.num_layers:
        raise SettingsError(
            f"--pipeline-parallel-size {asked} is more than the {model.num_layers} layers of the model, and every "
            f"stage needs one; use at most {model.num_layers}"
        )


def _dtype(settings: Settings, model: ModelConfig, device: str, backend: str, hardware: Hardware) -> str:
    if settings.dtype != "auto" or backend == "native":
        return settings.dtype
    if device == "cpu":
        return "bfloat16" if hardware.has_bf16 else "float32"
    return model.dtype if model.dtype in _FLOATS else "bfloat16"


def _topology(ask: ModelAsk, layout: KVLayout, device: str, hardware: Hardware) -> tuple[Topology, str]:
    settings = ask.settings
    check_history(settings)
    if settings.topology == "auto":
        if device == "cuda":
            return parse_topology("unified"), "KV in device memory is not handed between processes yet"
        topology, reason = choose_topology(num_cores=len(hardware.cores), num_devices=0)
        kv_bytes = topology.num_workers * min(ask.model.max_context, _LEAST_KV_TOKENS) * layout.bytes_per_token
        if topology.num_workers > 1 and kv_bytes > room_for_kv(ask, topology.num_workers, hardware):
            return UNIFIED, (
                f"{topology.num_workers} workers with {gib(weights_bytes(ask))} GiB of weights each and room for KV "
                f"do not fit into the {gib(hardware.available_memory_bytes)} GiB {hardware.memory_reason}".rstrip()
            )
        return topology, reason + what_may_change(settings, topology)
    topology = topology_of(settings)
    if device == "cuda" and topology.num_workers > 1:
        raise SettingsError(
            f"--topology {settings.topology} needs KV in host memory, --device cuda keeps it in device memory; "
            f"use --topology unified or --device cpu"
        )
    return topology, "as asked for"


def topology_of(settings: Settings) -> Topology:
    """As written; `auto` is decided elsewhere. Raises SettingsError."""
    return parse_part(settings.topology) if settings.cluster or settings.join else parse_topology(settings.topology)


def room_for_kv(ask: ModelAsk, num_workers: int, hardware: Hardware) -> int:
    """Of all its workers, in the machine's own memory; below 0 if not even their weights fit."""
    return hardware.available_memory_bytes - num_workers * worker_bytes(ask)


def worker_bytes(ask: ModelAsk) -> int:
    """Of a worker and its ranks, without their KV. First and last stage both hold a matrix that is tied; what a tensor
    group does not share out each of its ranks holds, and copies of experts are held beside these."""
    settings, model = ask.settings, ask.model
    num_stages, size = settings.pipeline_parallel_size, settings.tensor_parallel_size or 1
    weights = weights_bytes(ask)
    again = size * model.vocab_size * model.hidden_size if num_stages > 1 and model.tie_word_embeddings else 0
    again += (size - 1) * whole_everywhere(model) + settings.num_redundant_experts * weights_of_an_expert(model)
    each = WORKER_BYTES + (TORCH_BYTES if settings.collectives != "shm" else 0)
    return weights + again * weights // max(1, ask.num_parameters) + num_stages * size * each


def weights_bytes(ask: ModelAsk) -> int:
    """Of one worker, at least: what is stored in a format that the backend does not multiply grows when it is read."""
    if ask.settings.quantization == "int8":
        return ask.num_parameters
    per_parameter = _BYTES_PER_PARAMETER.get(ask.settings.dtype)
    return ask.weights_bytes if per_parameter is None else ask.num_parameters * per_parameter


def _num_blocks(
    ask: ModelAsk, layout: KVLayout, device: str, num_workers: int, hardware: Hardware, memory_fraction: float
) -> int:
    settings = ask.settings
    if settings.num_kv_blocks is not None:
        return settings.num_kv_blocks
    memory_bytes = settings.kv_cache_memory_bytes
    if memory_bytes is None:
        available = hardware.cuda_memory_bytes if device == "cuda" else hardware.available_memory_bytes
        of_states = sum(rule.num_state_blocks for rule in table_rules(layout)) * layout.bytes_per_block
        most_useful = settings.max_num_seqs * (ask.model.max_context * layout.bytes_per_token + of_states)
        own = int(available * _KV_MEMORY_FRACTION * memory_fraction)
        if device == "cpu":
            own = min(own, int(room_for_kv(ask, num_workers, hardware) * memory_fraction))
            _check_room(ask, layout, own, num_workers, hardware)
        memory_bytes = min(own // num_workers, _KV_MEMORY_MAX_BYTES, most_useful)
    elif device == "cpu" and memory_bytes * num_workers > hardware.available_memory_bytes:
        raise SettingsError(
            f"--kv-cache-memory-bytes {memory_bytes} for each of {num_workers} workers is more than the "
            f"{gib(hardware.available_memory_bytes)} GiB that are free; ask for at most "
            f"{max(0, room_for_kv(ask, num_workers, hardware)) // num_workers}"
        )
    num_blocks = memory_bytes // layout.bytes_per_block
    if num_blocks < _MIN_BLOCKS:
        raise SettingsError(
            f"{memory_bytes} bytes of KV cache hold {num_blocks} blocks of {layout.bytes_per_block} bytes, at least "
            f"{_MIN_BLOCKS} are needed; raise --kv-cache-memory-bytes to {_MIN_BLOCKS * layout.bytes_per_block} or more"
        )
    return num_blocks


def _check_room(ask: ModelAsk, layout: KVLayout, kv_bytes: int, num_workers: int, hardware: Hardware) -> None:
    if kv_bytes >= num_workers * _MIN_BLOCKS * layout.bytes_per_block:
        return
    workers, each = (f"{num_workers} workers", " each") if num_workers > 1 else ("a worker", "")
    fewer = "--topology unified, " if num_workers > 1 else ""
    raise SettingsError(
        f"{workers} with {gib(weights_bytes(ask))} GiB of weights and "
        f"{gib(worker_bytes(ask) - weights_bytes(ask))} GiB besides{each} leave no room for a KV cache in the "
        f"{gib(max(0, hardware.available_memory_bytes))} GiB {hardware.memory_reason or 'that are free'}; use {fewer}"
        f"a smaller model or --quantization int8, or give it more memory"
    )


def _max_model_len(settings: Settings, model: ModelConfig, layout: KVLayout, num_blocks: int, budget: int) -> int:
    rules, size = table_rules(layout), layout.block_size
    pool_tokens = num_pool_tokens(rules, num_blocks, size, budget) if num_blocks else model.max_context
    if pool_tokens < 2:  # of other boxes' workers the pool is not known
        raise SettingsError(
            f"{num_blocks} blocks of KV cache do not hold what the layers of this model keep of two tokens; use at "
            f"least --num-kv-blocks {num_blocks_of(rules, 2, size, budget)}"
        )
    asked = settings.max_model_len
    if asked is None:
        return min(model.max_context, pool_tokens)
    if asked < 2:
        raise SettingsError(f"--max-model-len {asked} leaves no room for a prompt and an answer; use at least 2")
    if asked > model.max_context:
        raise SettingsError(
            f"--max-model-len {asked} is more than the {model.max_context} tokens the model was made for; "
            f"use --max-model-len {model.max_context} or auto"
        )
    if asked > pool_tokens:
        raise SettingsError(
            f"--max-model-len {asked} does not fit the KV cache of {pool_tokens} tokens; use --max-model-len "
            f"{pool_tokens} or --num-kv-blocks {num_blocks_of(rules, asked, size, budget)}"
        )
    return asked


def served_config(
    ask: ModelAsk,
    topology: Topology,
    max_model_len: int,
    budget: int,
    engines: Sequence[EngineSpec] = (),
    more_groups: tuple[TableRule, ...] = (),
) -> ServedModelConfig:
    """Of a model whose tokens `engines` make, or workers of our own."""
    settings = ask.settings
    of_engines = [
        WorkerAddress(worker_id=spec.worker_id, role=spec.role, address=spec.address, engine=spec) for spec in engines
    ]
    ours = [WorkerAddress(worker_id=w, role=role, address="") for w, role in _worker_roles(ask, topology)]
    return ServedModelConfig(
        section=ask.section,
        served_model_names=ask.served_names,
        workers=tuple(of_engines or ours),
        topology=str(topology),
        model=settings.model,
        revision=settings.revision,
        download_dir=settings.download_dir,
        chat_template=settings.chat_template,
        tool_emulation=settings.tool_emulation,
        tool_call_parser=settings.tool_call_parser,
        reasoning_parser=settings.reasoning_parser,
        generation_config=settings.generation_config,
        override_generation_config=checked_overrides(settings.override_generation_config),
        model_hash=ask.model_hash,
        vocab_size=ask.model.vocab_size,
        max_model_len=max_model_len,
        block_size=settings.block_size,
        more_groups=more_groups,
        max_num_batched_tokens=budget,
        seed=settings.seed,
        max_num_queued_reqs=settings.max_num_queued_reqs,
        max_num_queued_tokens=settings.max_num_queued_tokens,
        max_num_queued_batch_reqs=settings.max_num_queued_batch_reqs,
        max_queue_ttft_s=settings.max_queue_ttft_s,
        dispatch_ahead_s=settings.dispatch_ahead_s,
        dispatch_ahead_tokens=2 * budget,  # the step that runs and the next one
        max_num_seqs=settings.max_num_seqs,
        tenant_weights=_tenant_weights(settings.tenant_weight),
        batch_queue_timeout_s=settings.batch_queue_timeout_s,
        queue_timeout_s=settings.queue_timeout_s,
        prefill_timeout_s=settings.prefill_timeout_s,
        transfer_timeout_s=settings.transfer_timeout_s,
        drain_lease_s=settings.drain_lease_s,
        heartbeat_timeout_s=settings.heartbeat_timeout_s,
        max_attempts=settings.max_attempts,
        routing_policy=settings.routing_policy,
        affinity_load_factor=settings.affinity_load_factor,
        affinity_max_penalty_s=settings.affinity_max_penalty_s,
        conditional_disaggregation=settings.conditional_disaggregation,
        enable_prefix_caching=settings.enable_prefix_caching,
        planner=planner_of(settings, topology),
        number=number_config(settings),
        slo_ttft_s=settings.slo_ttft_p90 or 0.0,
        slo_itl_s=itl_target_s(settings.slo_itl_p90, is_auto=settings.topology == "auto"),
    )


def _tenant_weights(entries: tuple[str, ...]) -> dict[str, float]:
    """Raises SettingsError for what is not NAME=WEIGHT with a weight above 0."""
    weights: dict[str, float] = {}
    for entry in entries:
        name, _, weight = entry.rpartition("=")
        try:
            weights[name] = float(weight)
        except ValueError:
            weights[name] = 0.0
        if not name or not 0.0 < weights[name] < float("inf"):
            raise SettingsError(f"--tenant-weight {entry} is not NAME=WEIGHT; write for example team-a=2")
    return weights


def default_model_name(model: str) -> str:
    """A path's last part without `.gguf`; a hub id or alias as it is."""
    if model.startswith((".", "/", "~")) or model.endswith(".gguf"):
        return re.sub(r"\.gguf$", "", model.rstrip("/").rsplit("/", 1)[-1])
    return model
