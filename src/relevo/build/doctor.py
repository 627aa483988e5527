"""Looks at this machine for `relevo doctor`: thin probes, each of which finds something or says what kept it from it.

Makes and changes nothing: a port is bound for a moment and never listened on, a database is opened for reading. What
the facts mean is decided in `policy.host.doctor`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import resource
import shutil
import socket
import sqlite3
import sys
import sysconfig
import tempfile
import time
from importlib import metadata
from pathlib import Path

import relevo
from relevo.build.backend import CPU_PATH_VARIABLE
from relevo.build.hardware import Hardware, detect_hardware
from relevo.build.ledger import database_location, location_name
from relevo.core.errors import RelevoError
from relevo.engine.loaders.packaged_model import PACKAGE, PACKAGED_MODEL, download_folder, find_packaged_gguf
from relevo.kv.huge_pages import huge_page_file
from relevo.policy.host.machine_facts import (
    CoreFacts,
    DataFacts,
    EngineFacts,
    MachineFacts,
    MemoryFacts,
    ModelFacts,
    PortFacts,
    RuntimeFacts,
    ServerFacts,
)
from relevo.policy.host.topology import choose_topology
from relevo.settings import Settings

_COMPILERS = ("g++", "c++", "clang++")
_LONGEST_SOCKET = "/relevo-abcdefgh/gateway-10.sock"
_LISTENING = "0A"  # in /proc/net/tcp


def look(settings: Settings, *, settings_problem: str = "", server: ServerFacts | None = None) -> MachineFacts:
    hardware = detect_hardware("cpu")
    return MachineFacts(
        runtime=runtime_facts(),
        engine=engine_facts(),
        cores=core_facts(hardware),
        memory=memory_facts(hardware),
        port=port_facts(settings.host, settings.port),
        data=data_facts(settings.data_dir, settings.database_url),
        model=model_facts(settings.model, settings.download_dir),
        server=server,
        settings_problem=settings_problem,
    )


def runtime_facts() -> RuntimeFacts:
    folder, problem = "", ""
    try:
        folder = tempfile.gettempdir()
    except OSError as error:
        problem = str(error.strerror or error)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = Path(relevo.__file__).parent.glob("*.py")
    return RuntimeFacts(
        relevo_version=relevo.__version__,
        python_version=platform.python_version(),
        is_linux=sys.platform == "linux",
        descriptors=2**30 if hard == resource.RLIM_INFINITY else max(soft, hard),
        socket_path_chars=len(folder) + len(_LONGEST_SOCKET),
        temporary_folder=folder,
        temporary_problem=problem,
        unix_time_s=time.time(),
        newest_file_s=max((file.stat().st_mtime for file in files), default=0.0),
        clock_source=_text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    )


def engine_facts() -> EngineFacts:
    compiler = next((name for name in (os.environ.get("CXX") or "", *_COMPILERS) if name and shutil.which(name)), "")
    headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    torch = _version("torch")
    if importlib.util.find_spec("relevo_native") is None:
        return EngineFacts(compiler=compiler, has_python_headers=headers, torch_version=torch)
    forced = os.environ.get(CPU_PATH_VARIABLE, "")
    path, reason, problem = "", "", ""
    available: tuple[str, ...] = ()
    try:
        from relevo_native import _native

        available = tuple(_native.available_paths())
        path, reason = _native.choose_path(forced)
    except (ImportError, ValueError) as error:  # a module for another system, a path that there is not
        problem = str(error)
    return EngineFacts(
        native_version=_version("relevo-native"),
        cpu_path=path,
        cpu_reason=reason,
        available_paths=available,
        forced_path=forced,
        problem=problem,
        torch_version=torch,
        compiler=compiler,
        has_python_headers=headers,
    )


def core_facts(hardware: Hardware) -> CoreFacts:
    cores = hardware.cores_in_quota or hardware.cores
    topology, reason = choose_topology(len(cores))
    base = "/sys/devices/system/cpu"
    siblings = {_text(f"{base}/cpu{core}/topology/thread_siblings_list") for core in cores}
    return CoreFacts(
        cores=cores,
        num_online=os.cpu_count() or len(cores),
        num_physical=0 if "" in siblings else len(siblings),
        topology=str(topology),
        topology_reason=reason,
        limit_notes=hardware.notes,
        governor=_text(f"{base}/cpu{cores[0]}/cpufreq/scaling_governor"),
    )


def memory_facts(hardware: Hardware) -> MemoryFacts:
    shm = Path("/dev/shm")
    arena = huge_page_file()
    if arena.fd >= 0:
        os.close(arena.fd)
    return MemoryFacts(
        available_bytes=hardware.available_memory_bytes,
        limited_by=hardware.memory_reason,
        huge_pages=_chosen(_text("/sys/kernel/mm/transparent_hugepage/enabled")),
        arena_pages=arena.pages,
        shm_bytes=shutil.disk_usage(shm).total if shm.is_dir() else None,
    )


def port_facts(host: str, port: int) -> PortFacts:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        pid, command = _holder(port)
        return PortFacts(host=host, port=port, problem=error.strerror or str(error), holder=command, holder_pid=pid)
    return PortFacts(host=host, port=port)


def _holder(port: int) -> tuple[int, str]:
    """Process and command of what listens on a port; (0, "") if it cannot be seen, as of another user."""
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _text(table).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{fields[9]}]")
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda entry: int(entry.name)):
        with contextlib.suppress(OSError):
            if any(_link(entry) in sockets for entry in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                return int(folder.name), " ".join(words)[:80].strip()
    return 0, ""


def _link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""


def data_facts(data_dir: str | None, database_url: str | None) -> DataFacts:
    try:
        location = database_location(data_dir, database_url)
    except RelevoError as error:
        return DataFacts(problem=error.message)
    if location == "memory" or "://" in location:
        told = "usage is kept in memory only" if location == "memory" else f"{location_name(location)} (not asked)"
        return DataFacts(location=told)
    path = Path(location)
    try:
        return _of_file(path)
    except (OSError, sqlite3.Error) as error:
        return DataFacts(location=location, is_file=True, problem=f"{path}: {error}")


def _of_file(path: Path) -> DataFacts:
    there = next(folder for folder in path.parents if folder.exists())
    if not there.is_dir():
        return DataFacts(location=str(path), is_file=True, problem=f"{there} is no folder")
    free_bytes = shutil.disk_usage(there).free
    if (
        not os.access(path if path.exists() else there, os.W_OK)
        or not os.access(there, os.W_OK)
        or _is_read_only(there)
    ):
        return DataFacts(location=str(path), is_file=True, problem=f"{path} cannot be written")
    if not path.exists():
        return DataFacts(location=str(path), is_file=True, free_bytes=free_bytes)
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=1.0)) as database:
        now_ms = int(time.time() * 1e3)
        num_keys, num_usable = database.execute(
            "SELECT COUNT(*), COUNT(*) FILTER (WHERE revoked_at_ms IS NULL AND COALESCE(expires_at_ms > ?, TRUE)) "
            "FROM api_keys",
            (now_ms,),
        ).fetchone()
    status = path.stat()
    return DataFacts(
        location=str(path),
        is_file=True,
        exists=True,
        num_keys=num_keys,
        num_usable_keys=num_usable,
        mode=status.st_mode & 0o777,
        is_ours=status.st_uid == os.geteuid(),
        free_bytes=free_bytes,
    )


def _is_read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def model_facts(model: str, download_dir: str | None) -> ModelFacts:
    if model == "fake":
        return ModelFacts(name="fake, which needs no file")
    if model == PACKAGED_MODEL:
        return _packaged(download_dir)
    path = Path(model).expanduser()
    if not path.exists():
        if model.count("/") == 1 and not model.startswith((".", "/", "~")) and path.suffix != ".gguf":
            return ModelFacts(name=model, is_downloaded_first="a hub id")
        return ModelFacts(name=model, problem=f"there is no file or folder {model}")
    files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*.gguf")]
    if not files:
        return ModelFacts(name=model, problem=f"{model} has neither safetensors nor a GGUF file")
    return ModelFacts(name=path.name, path=str(path), weights_bytes=sum(file.stat().st_size for file in files))


def _packaged(download_dir: str | None) -> ModelFacts:
    try:
        path = find_packaged_gguf(download_dir)
        if path is not None:
            return ModelFacts(name=PACKAGED_MODEL, path=str(path), weights_bytes=path.stat().st_size)
        folder = download_folder(download_dir)
    except RelevoError as error:
        return ModelFacts(name=PACKAGED_MODEL, problem=error.message)
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(there, os.W_OK) or _is_read_only(there):
        return ModelFacts(name=PACKAGED_MODEL, problem=f"{PACKAGED_MODEL} is not here and {folder} cannot be written")
    told = f"93 MB, package {PACKAGE} into {folder}"
    return ModelFacts(name=PACKAGED_MODEL, is_downloaded_first=told, free_bytes=shutil.disk_usage(there).free)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _chosen(text: str) -> str:
    """`always [madvise] never` is madvise."""
    return text.partition("[")[2].partition("]")[0]
