"""What all models of one server share out: names, cores, memory, and the gateway in front of them. Pure, no I/O.

Cores: a model whose section names `cores` has those. The others share the rest: each first gets one core per worker,
then every further core goes to the model that has least for its `resource_share`. Memory: models that do not say how
much KV cache they want get parts of the default in the same proportion; what all of them need must be free.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from relevo.build.about_model import about_model
from relevo.build.configs import GatewayConfig, HttpConfig, WorkerConfig
from relevo.build.engines import has_engines, plan_engines
from relevo.build.hardware import Hardware, gib
from relevo.build.resolve import (
    GATEWAY_BYTES,
    SUPERVISOR_BYTES,
    ModelAsk,
    ModelPlan,
    may_share_cores,
    resolve_model,
    topology_of,
    worker_bytes,
)
from relevo.core.errors import SettingsError
from relevo.gateway.http.byte_account import room_for
from relevo.policy.host.topology import share_cores
from relevo.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """What will be started, and why. File descriptors and addresses are still open (-1, empty)."""

    models: tuple[ModelPlan, ...]
    gateway: GatewayConfig
    notes: tuple[str, ...] = ()

    @property
    def workers(self) -> tuple[WorkerConfig, ...]:
        """Of all models."""
        return tuple(worker for model in self.models for worker in model.workers)


def resolve(settings: Settings, asks: Sequence[ModelAsk], hardware: Hardware) -> ServePlan:
    """`settings`: those of the whole server. Raises SettingsError when the combination cannot work."""
    _check_names(asks)
    ours = [ask for ask in asks if not has_engines(ask.settings)]
    plans = _with_own_workers(settings, ours, hardware)
    plans |= {id(ask): _engines(ask) for ask in asks if has_engines(ask.settings)}
    in_order = [plans[id(ask)] for ask in asks]
    return ServePlan(models=tuple(in_order), gateway=_gateway(settings, in_order), notes=hardware.notes)


def _engines(ask: ModelAsk) -> ModelPlan:
    with about_model(ask.section):
        return plan_engines(ask)


def _with_own_workers(settings: Settings, asks: Sequence[ModelAsk], hardware: Hardware) -> dict[int, ModelPlan]:
    """By `id` of the ask."""
    if not asks:
        return {}
    total_share = sum(ask.settings.resource_share for ask in asks)
    plans = []
    cores_of = _cores(settings, asks, hardware)
    own_bytes = [_at_least_bytes(ask, cores, hardware) for ask, cores in zip(asks, cores_of, strict=True)]
    in_front_bytes = settings.gateways * GATEWAY_BYTES + SUPERVISOR_BYTES
    for ask, cores, needed in zip(asks, cores_of, own_bytes, strict=True):
        with about_model(ask.section):
            others_bytes = in_front_bytes + sum(own_bytes) - needed
            own = replace(hardware, cores=cores, available_memory_bytes=hardware.available_memory_bytes - others_bytes)
            plans.append(resolve_model(ask, own, ask.settings.resource_share / total_share))
    _check_memory(plans, in_front_bytes, hardware)
    return {id(ask): plan for ask, plan in zip(asks, plans, strict=True)}


def _at_least_bytes(ask: ModelAsk, cores: Sequence[int], hardware: Hardware) -> int:
    """Of a model's workers without their KV; 0 where they compute in the memory of devices."""
    if ask.settings.device == "cuda" or (ask.settings.device == "auto" and hardware.num_cuda_devices):
        return 0
    num_workers = min(2, len(cores)) if ask.settings.topology == "auto" else _num_workers(ask.settings)
    return num_workers * worker_bytes(ask)


def _check_names(asks: Sequence[ModelAsk]) -> None:
    owners: dict[str, ModelAsk] = {}
    for ask in asks:
        for name in ask.served_names:
            if not name.strip():
                raise SettingsError("--served-model-name is empty; write a name, or leave it out for the model's own")
            if name in owners:
                raise SettingsError(
                    f"models {owners[name].section} and {ask.section} both are to be served as {name}; give one of "
                    f"them another served_model_name"
                )
            owners[name] = ask


def _cores(settings: Settings, asks: Sequence[ModelAsk], hardware: Hardware) -> list[tuple[int, ...]]:
    """Each model's, in the order of `asks`."""
    usual = hardware.cores_in_quota or hardware.cores
    pool = allowed_cores(settings.cores, hardware.cores, "--cores") if settings.cores else usual
    own = {
        index: allowed_cores(ask.settings.cores, hardware.cores, f"cores of model {ask.section}:")
        for index, ask in enumerate(asks)
        if ask.section and ask.settings.cores
    }
    if not settings.share_cores:
        _check_disjoint(asks, own)
    taken = {core for cores in own.values() for core in cores}
    sharing = [index for index in range(len(asks)) if index not in own]
    may_share = all(may_share_cores(asks[index].settings) for index in sharing)
    left = [core for core in pool if core not in taken]
    parts = share_cores(
        pool if may_share and not left else left,
        weights=[asks[index].settings.resource_share for index in sharing],
        minimums=[_num_workers(asks[index].settings) for index in sharing],
        names=[asks[index].section for index in sharing],
        may_share=may_share,
    )
    own |= {index: tuple(cores) for index, cores in zip(sharing, parts, strict=True)}
    return [own[index] for index in range(len(asks))]


def _num_workers(settings: Settings) -> int:
    """At least; `auto` can do with one."""
    return 1 if settings.topology == "auto" else topology_of(settings).num_workers


def allowed_cores(asked: Sequence[str], allowed: tuple[int, ...], name: str) -> tuple[int, ...]:
    """`asked` as numbers, or all. Raises SettingsError, which begins with `name`."""
    if not asked:
        return allowed
    wrong = [core for core in asked if not core.isdecimal() or int(core) not in allowed]
    if wrong:
        shown = ",".join(map(str, allowed))
        raise SettingsError(f"{name} {','.join(asked)}: {wrong[0]} is not one of the allowed cores {shown}")
    return tuple(dict.fromkeys(int(core) for core in asked))


def _check_disjoint(asks: Sequence[ModelAsk], own: dict[int, tuple[int, ...]]) -> None:
    owners: dict[int, str] = {}
    for index, cores in own.items():
        for core in cores:
            if core in owners:
                raise SettingsError(
                    f"models {owners[core]} and {asks[index].section} both have core {core} in their cores; give each "
                    f"its own, or let them share with --share-cores"
                )
            owners[core] = asks[index].section


def _check_memory(plans: Sequence[ModelPlan], in_front_bytes: int, hardware: Hardware) -> None:
    """Weights, KV caches and processes of all workers that compute in the machine's own memory."""
    needs = [
        (plan, len(plan.workers) * worker_bytes(plan.ask) + plan.kv_bytes)
        for plan in plans
        if plan.workers and plan.workers[0].device == "cpu"
    ]
    needed_bytes = sum(num_bytes for _, num_bytes in needs) + in_front_bytes
    if not needs or needed_bytes <= hardware.available_memory_bytes:
        return
    parts = ", ".join(
        f"{plan.served.served_model_names[0]} {gib(num_bytes)} GiB with {len(plan.workers)} "
        f"worker{'s' if len(plan.workers) > 1 else ''}"
        for plan, num_bytes in needs
    )
    raise SettingsError(
        f"weights, KV caches and processes need {gib(needed_bytes)} GiB ({parts}, gateway and supervisor "
        f"{gib(in_front_bytes)} GiB), but only {gib(hardware.available_memory_bytes)} GiB are free"
        f"{f' ({hardware.memory_reason})' if hardware.memory_reason else ''}; lower --kv-cache-memory-bytes, start "
        f"fewer workers, or leave a model out"
    )


def _gateway(settings: Settings, plans: Sequence[ModelPlan]) -> GatewayConfig:
    return GatewayConfig(
        listen_fd=-1,
        http=HttpConfig(
            ssl_certfile=settings.ssl_certfile or "",
            ssl_keyfile=settings.ssl_keyfile or "",
            ssl_keyfile_password=settings.ssl_keyfile_password or "",
            ssl_ca_certs=settings.ssl_ca_certs or "",
            ssl_cert_reqs=settings.ssl_cert_reqs,
            root_path=settings.root_path.rstrip("/"),
            max_connections=settings.max_connections or 0,
            max_connections_per_address=settings.max_connections_per_address or 0,
            allowed_hosts=settings.allowed_hosts,
            allowed_origins=settings.allowed_origins,
            trusted_proxies=settings.trusted_proxies,
            header_timeout_s=settings.header_timeout_s,
            keep_alive_timeout_s=settings.keep_alive_timeout_s,
            stall_timeout_s=settings.stall_timeout_s,
        ),
        models=tuple(plan.served for plan in plans),
        api_key_hashes=tuple(hashlib.sha256(key.encode()).hexdigest() for key in settings.api_key),
        admin_key_hashes=tuple(hashlib.sha256(key.encode()).hexdigest() for key in settings.admin_key),
        best_priority=settings.best_priority,
        metrics_require_key=settings.metrics_require_key,
        metrics_by_tenant=settings.metrics_by_tenant,
        expose_processes=settings.expose_processes,
        sse_keepalive_s=settings.sse_keepalive_s or 0.0,
        kept_requests=settings.kept_requests,
        ledger_timelines=settings.ledger_timelines,
        traffic_log_bytes=settings.traffic_log_bytes,
        response_lifetime_s=settings.response_lifetime_s,
        max_body_bytes=settings.max_body_bytes or 8 * 2**20,
        max_body_memory_bytes=max(
            settings.max_body_memory_bytes or 128 * 2**20, room_for(settings.max_body_bytes or 8 * 2**20)
        ),
        max_tokenize_bytes=settings.max_tokenize_bytes or 2**20,
        shutdown_timeout_s=settings.shutdown_timeout_s,
        log_level=settings.log_level,
        affinity_headers=settings.affinity_header,
    )
