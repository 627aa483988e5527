"""Composition root of `relevo serve`: from settings to a supervisor that is ready to run."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec

from relevo.build.about_model import about_model
from relevo.build.backend import check_collectives_installed, check_installed, instruction_path
from relevo.build.cluster import FEED_SOCKET, ClusterPart, node_config
from relevo.build.configs import EngineConfig, GatewayConfig, NodeConfig, ServedModelConfig, WorkerConfig
from relevo.build.engines import engine_ask, has_engines, with_engines, with_event_sockets
from relevo.build.gateways import gateway_configs
from relevo.build.hardware import detect_hardware
from relevo.build.ledger import with_metering
from relevo.build.model import block_formats, check_stored
from relevo.build.models_file import AskedModel, asked_models
from relevo.build.placed_experts import asked_expert_loads
from relevo.build.plan import ServePlan, resolve
from relevo.build.resolve import ModelAsk, ModelPlan
from relevo.build.runtime_folder import runtime_folder
from relevo.build.tracing import check_tracing
from relevo.core.errors import SettingsError
from relevo.kv.arena_file import create_arena_file
from relevo.kv.transports.registry import TRANSPORTS
from relevo.settings import Settings
from relevo.supervisor import ChildSpec, Supervisor
from relevo.wire.status import Status

_log = logging.getLogger("relevo.supervisor")


def plan_serving(settings: Settings) -> ServePlan:
    """Read the models' heads, look at the machine, decide, try the database. Raises StartError; reads no weights."""
    asks = [_with_head(asked) for asked in asked_models(settings)]
    asked = [ask.settings for ask in asks]
    device = "cpu" if all(each.device == "cpu" and each.collectives != "nccl" for each in asked) else "auto"
    plan = resolve(settings, asks, detect_hardware(device))
    for model in plan.models:
        if model.ask.settings.model != "fake" and model.workers:
            with about_model(model.ask.section):
                check_installed(model.workers[0].backend)
                check_collectives_installed(model.workers[0].collectives)
    metered = with_metering(_with_tracing(plan), settings)
    if all(model.ask.settings.auto_from is None for model in plan.models):
        return metered
    from relevo.build.start_history import with_histories  # who names none does not wait for the simulator's imports

    return with_histories(metered, settings)


def _with_tracing(plan: ServePlan) -> ServePlan:
    """Says where traces go, if the environment asks for them. Raises SettingsError."""
    asked = check_tracing(os.environ)
    return plan if asked is None else replace(plan, notes=(*plan.notes, f"traces go to {asked.shown}"))


def _with_head(asked: AskedModel) -> ModelAsk:
    """Adds what the model's files say of it, without its weights. Raises StartError."""
    settings = asked.settings
    if has_engines(settings) or settings.engine_args:
        with about_model(asked.section):
            return engine_ask(asked)
    if settings.model == "fake":
        from relevo.build.fake_head import fake_ask

        return fake_ask(asked)
    if settings.script is not None:
        raise SettingsError(
            f"--script {settings.script} says what the `fake` engine says, and MODEL is {settings.model}; "
            "use MODEL fake, or leave --script out"
        )
    from relevo.engine.loaders.resolve import load_model_files

    with about_model(asked.section):
        files = load_model_files(settings.model, revision=settings.revision, download_dir=settings.download_dir)
        check_stored(files)
        return ModelAsk(
            settings=settings,
            model=files.config,
            model_hash=files.model_hash,
            weights_bytes=files.file_bytes,
            num_parameters=files.num_parameters,
            block_formats=block_formats(files, instruction_path()) if settings.tensor_parallel_size else {},
            expert_loads=asked_expert_loads(settings, files.config),
            notes=files.notes,
            section=asked.section,
            price=asked.price,
        )


@contextlib.contextmanager
def serving(
    settings: Settings,
    plan: ServePlan,
    listener: socket.socket | None,
    on_status: Callable[[str, Status], None],
    part: ClusterPart | None = None,
) -> Iterator[Supervisor]:
    """A supervisor and what it owns: the runtime folder and the models' shared arenas, which have no names in any file
    system. Without a `listener` there is no gateway: this box works for those of others."""
    with contextlib.ExitStack() as owned:
        folder = owned.enter_context(runtime_folder())
        plan = _with_event_sockets(plan, folder)
        secret = secrets.token_hex(32)  # the supervisor's and the workers', for as long as this server runs
        located = []
        addresses = (f"unix:{folder}/w{number}.sock" for number in itertools.count())
        for model in plan.models:
            arena_fd = _arena_fd(model, owned)
            located.append(tuple(_located(worker, next(addresses), arena_fd, secret) for worker in model.workers))
        nodes = []
        if part is not None:
            config = node_config(plan, part, [worker for workers in located for worker in workers], settings, folder)
            nodes.append(_child("node", "node", config, (), settings.heartbeat_timeout_s))
        gateways = _gateways(settings, plan, listener, located, folder) if listener is not None else ()
        yield Supervisor(
            workers=[
                _worker_child(worker, model.served.heartbeat_timeout_s)
                for model, workers in zip(plan.models, located, strict=True)
                for worker in workers
            ]
            + [
                _child(command.worker_id, "engine", command, (), settings.heartbeat_timeout_s)
                for model in plan.models
                for command in model.commands
            ],
            gateways=[
                _child(each.gateway_id, "gateway", each, (each.listen_fd,), settings.heartbeat_timeout_s)
                for each in gateways
            ],
            nodes=nodes,
            start_timeout_s=settings.start_timeout_s,
            shutdown_timeout_s=settings.shutdown_timeout_s,
            on_status=on_status,
            # a copy that no process accepts from would keep clients waiting
            on_stopping=listener.close if listener is not None else lambda: None,
        )


def _with_event_sockets(plan: ServePlan, folder: str) -> ServePlan:
    models = tuple(with_event_sockets(model, folder, 100 * number) for number, model in enumerate(plan.models))
    served = tuple(with_engines(each, model.engines) for each, model in zip(plan.gateway.models, models, strict=True))
    return replace(plan, models=models, gateway=msgspec.structs.replace(plan.gateway, models=served))


def _gateways(
    settings: Settings,
    plan: ServePlan,
    listener: socket.socket,
    located: Sequence[tuple[WorkerConfig, ...]],
    folder: str,
) -> tuple[GatewayConfig, ...]:
    gateway = msgspec.structs.replace(
        plan.gateway,
        listen_fd=listener.fileno(),
        models=tuple(
            _with_addresses(model, workers) for model, workers in zip(plan.gateway.models, located, strict=True)
        ),
        feed_path=f"{folder}/{FEED_SOCKET}" if plan.gateway.cluster_folder else "",
    )
    return gateway_configs(gateway, settings.gateways, folder)


def _arena_fd(model: ModelPlan, owned: contextlib.ExitStack) -> int:
    """Of the arena that a model's workers share, open until `owned` is closed. -1: each worker makes its own."""
    if not model.is_arena_shared:
        return -1
    file = create_arena_file(model.layout, model.num_arena_blocks)
    owned.callback(os.close, file.fd)
    _log.info("KV arena of %s: %s", model.served.served_model_names[0], file.pages)
    return file.fd


def _located(worker: WorkerConfig, address: str, arena_fd: int, kv_secret: str) -> WorkerConfig:
    """With what this start gives it. The secret goes to workers that listen for others, over their standard input."""
    needs_secret = any(TRANSPORTS[name].needs_secret for name in worker.transports)
    secret = kv_secret if needs_secret else ""
    return msgspec.structs.replace(worker, address=address, arena_fd=arena_fd, kv_secret=secret)


def _with_addresses(model: ServedModelConfig, workers: tuple[WorkerConfig, ...]) -> ServedModelConfig:
    if not workers:
        return model  # engines have theirs
    entries = zip(model.workers, workers, strict=True)
    return msgspec.structs.replace(
        model, workers=tuple(msgspec.structs.replace(entry, address=worker.address) for entry, worker in entries)
    )


def _worker_child(worker: WorkerConfig, heartbeat_timeout_s: float) -> ChildSpec:
    fds = (worker.arena_fd,) if worker.arena_fd >= 0 else ()
    return _child(worker.worker_id, "worker", worker, fds, heartbeat_timeout_s)


def _child(
    name: str,
    kind: str,
    config: WorkerConfig | EngineConfig | GatewayConfig | NodeConfig,
    fds: tuple[int, ...],
    heartbeat_timeout_s: float,
) -> ChildSpec:
    return ChildSpec(
        name=name,
        kind=kind,
        config=msgspec.to_builtins(config),
        inherited_fds=fds,
        heartbeat_timeout_s=heartbeat_timeout_s,
    )
