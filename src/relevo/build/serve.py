"""Composition root of `relevo serve`: from settings to a supervisor that is ready to run."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from relevo.build.backend import check_installed
from relevo.build.configs import GatewayConfig, WorkerConfig
from relevo.build.gateways import gateway_configs
from relevo.build.ledger import with_metering
from relevo.build.resolve import Hardware, ServePlan, resolve
from relevo.core.errors import SettingsError
from relevo.core.model import ModelConfig
from relevo.kv.arena import Arena
from relevo.settings import Settings
from relevo.supervisor import ChildSpec, Supervisor
from relevo.wire.status import Status


def plan_serving(settings: Settings) -> ServePlan:
    """Read the head of the model file, look at the machine, decide, try the database. Raises StartError; no weights."""
    model, model_hash = model_head(settings)
    plan = resolve(settings, model, model_hash, detect_hardware(settings.device))
    if settings.model != "fake":
        check_installed(plan.workers[0].backend)
    return with_metering(plan, settings)


def model_head(settings: Settings) -> tuple[ModelConfig, str]:
    """Architecture and hash of the model, without its weights."""
    if settings.model == "fake":
        from relevo.engine.fake_model import FAKE_MODEL

        return FAKE_MODEL, "fake"
    from relevo.engine.loaders.resolve import load_model_files

    files = load_model_files(settings.model, revision=settings.revision, download_dir=settings.download_dir)
    return files.config, files.model_hash


def detect_hardware(device: str) -> Hardware:
    """What this process may use. CUDA is asked for only where a device node exists."""
    cores = (
        tuple(sorted(os.sched_getaffinity(0)))
        if hasattr(os, "sched_getaffinity")
        else tuple(range(os.cpu_count() or 1))
    )
    num_devices, device_memory_bytes = 0, 0
    if device != "cpu" and Path("/dev/nvidia0").exists() and importlib.util.find_spec("torch") is not None:
        from relevo.engine.ops.torch.device import cuda_devices

        num_devices, device_memory_bytes = cuda_devices()
    return Hardware(
        cores=cores,
        available_memory_bytes=_available_memory_bytes(),
        has_bf16=_cpu_has_bf16(),
        num_cuda_devices=num_devices,
        cuda_memory_bytes=device_memory_bytes,
    )


def open_listener(host: str, port: int) -> socket.socket:
    """Bound and listening, so that a taken port is found before anything is loaded. Raises SettingsError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise SettingsError(
            f"--host {host} cannot be resolved: {error.strerror}; use an address of this machine"
        ) from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"{host}:{port} cannot be used: {error.strerror}; choose another --port, or 0 for a free one"
        ) from error
    listener.listen(2048)
    return listener


@contextlib.contextmanager
def serving(
    settings: Settings, plan: ServePlan, listener: socket.socket, on_status: Callable[[str, Status], None]
) -> Iterator[Supervisor]:
    """A supervisor and what it owns: the runtime folder and the shared arena, which has no name in any file system."""
    with tempfile.TemporaryDirectory(prefix="relevo-", ignore_cleanup_errors=True) as runtime_folder:
        arena = Arena.create(plan.layout, plan.num_arena_blocks, shared=True) if plan.is_arena_shared else None
        arena_fd = arena.fd if arena is not None else -1
        workers = [_located(worker, runtime_folder, arena_fd) for worker in plan.workers]
        gateway = msgspec.structs.replace(
            plan.gateway,
            listen_fd=listener.fileno(),
            workers=tuple(
                msgspec.structs.replace(entry, address=worker.address)
                for entry, worker in zip(plan.gateway.workers, workers, strict=True)
            ),
        )
        worker_fds = (arena_fd,) if arena is not None else ()
        gateways = gateway_configs(gateway, settings.gateways, runtime_folder)
        yield Supervisor(
            workers=[_child(worker.worker_id, "worker", worker, worker_fds) for worker in workers],
            gateways=[_child(each.gateway_id, "gateway", each, (listener.fileno(),)) for each in gateways],
            shutdown_timeout_s=settings.shutdown_timeout_s,
            on_status=on_status,
        )


def _located(worker: WorkerConfig, runtime_folder: str, arena_fd: int) -> WorkerConfig:
    return msgspec.structs.replace(worker, address=f"unix:{runtime_folder}/{worker.worker_id}.sock", arena_fd=arena_fd)


def _child(name: str, kind: str, config: WorkerConfig | GatewayConfig, fds: tuple[int, ...]) -> ChildSpec:
    return ChildSpec(name=name, kind=kind, config=msgspec.to_builtins(config), inherited_fds=fds)


def _available_memory_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _cpu_has_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "amx_bf16" in flags or "avx512_bf16" in flags or " bf16" in flags
