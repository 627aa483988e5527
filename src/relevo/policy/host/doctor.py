"""What `relevo doctor` makes of a machine: for each thing whether it is right, and the command that mends it. Pure.

`fail`: `relevo serve` would not start, or would lose something. `warn`: it works, and something would be better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from relevo.policy.host.machine_facts import MachineFacts

MIN_PYTHON = (3, 11)
MIN_DESCRIPTORS = 4096  # arbitrary: a few thousand clients; fewer are served too
MAX_SOCKET_PATH_CHARS = 100  # as wire.address has it; the kernel takes 107
LOW_DISK_BYTES = 2**30  # arbitrary
NO_DISK_BYTES = 50 * 2**20  # arbitrary: less than the ledger writes in a busy day
MODEL_DISK_BYTES = 300 * 10**6  # the packaged model, packed and unpacked, with room
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies")  # reading the time is a system call there
MAX_TIME_BEHIND_S = 86_400.0  # files may carry another zone's time
_MI, _GI = 2**20, 2**30


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    status: Status
    found: str
    fix: str = ""  # a command, or what to do


def findings(facts: MachineFacts) -> list[Finding]:
    """In the order in which they matter."""
    return [finding for judge in _JUDGES for finding in judge(facts)]


def _ok(name: str, found: str) -> Finding:
    return Finding(name, Status.OK, found)


def _warn(name: str, found: str, fix: str) -> Finding:
    return Finding(name, Status.WARN, found, fix)


def _fail(name: str, found: str, fix: str) -> Finding:
    return Finding(name, Status.FAIL, found, fix)


def _platform(facts: MachineFacts) -> Iterator[Finding]:
    runtime = facts.runtime
    found = f"relevo {runtime.relevo_version}, Python {runtime.python_version}"
    version = tuple(int(part) for part in runtime.python_version.split(".")[:2])
    if not runtime.is_linux:
        yield _fail("platform", f"{found}, not on Linux", "run it on Linux, or in a Linux container")
    elif version < MIN_PYTHON:
        yield _fail("platform", found, "install Python 3.11 or newer")
    else:
        yield _ok("platform", found)
    if facts.settings_problem:
        yield _fail("settings", facts.settings_problem, "change or unset that RELEVO_ variable")


def _engine(facts: MachineFacts) -> Iterator[Finding]:
    engine = facts.engine
    if engine.problem:
        yield _fail(
            "CPU kernels", engine.problem, "unset RELEVO_CPU_PATH, or pip install --force-reinstall relevo-native"
        )
    elif not engine.native_version:
        with_compiler = "; in a checkout: pip install ./native" if _can_compile(facts) else ""
        yield _fail("CPU kernels", "not installed", f"pip install 'relevo[cpu]'{with_compiler}")
    elif engine.native_version != facts.runtime.relevo_version:
        wanted = facts.runtime.relevo_version
        yield _fail("CPU kernels", f"of version {engine.native_version}", f"pip install relevo-native=={wanted}")
    else:
        yield _path(facts)
    yield _compiler(facts)
    torch = f"torch {engine.torch_version}" if engine.torch_version else "no torch: only CUDA devices need it"
    yield _ok("torch", torch)


def _compiler(facts: MachineFacts) -> Finding:
    engine = facts.engine
    if _can_compile(facts):
        return _ok("compiler", f"{engine.compiler}, with Python's headers")
    parts = (("a C++ compiler", engine.compiler), ("Python.h", engine.has_python_headers))
    missing = " and ".join(part for part, is_there in parts if not is_there)
    if engine.native_version:
        return _ok("compiler", f"missing: {missing}; not needed, since the kernels are installed")
    return _warn("compiler", f"missing: {missing}, to compile the kernels with", "apt-get install g++ python3-dev")


def _can_compile(facts: MachineFacts) -> bool:
    return bool(facts.engine.compiler) and facts.engine.has_python_headers


def _path(facts: MachineFacts) -> Finding:
    engine = facts.engine
    best = engine.available_paths[-1] if engine.available_paths else engine.cpu_path
    if engine.cpu_path != best:
        return _warn("CPU path", f"{engine.cpu_path} is forced, {best} is faster", "unset RELEVO_CPU_PATH")
    if engine.cpu_path == "portable":
        return _warn("CPU path", engine.cpu_reason, "use a processor with AVX2 (x86), or a 64-bit Arm one")
    return _ok("CPU path", f"{engine.cpu_path}, the best that this processor has (relevo version --cpu: why no other)")


def _cores(facts: MachineFacts) -> Iterator[Finding]:
    cores = facts.cores
    count = len(cores.cores)
    found = f"{count} of {cores.num_online}" if count < cores.num_online else str(count)
    if 0 < cores.num_physical < count:
        found += f" hardware threads on {cores.num_physical} cores"
    if count < 2:
        fix = "allow a second core (taskset, cpuset, quota)"
        yield _warn("cores", f"{found}: {cores.topology_reason}", fix)
    else:
        yield _ok("cores", f"{found}; --topology auto is {cores.topology}")
    for note in cores.limit_notes:
        yield _warn("container", note, "raise the container's limit if that is too little")
    if cores.governor == "powersave":
        yield _warn("clock rates", "the governor is powersave", "cpupower frequency-set -g performance")


def _memory(facts: MachineFacts) -> Iterator[Finding]:
    memory, needed = facts.memory, 2 * facts.model.weights_bytes + 2**28
    found = f"{memory.available_bytes / _GI:.1f} GiB {memory.limited_by or 'free'}"
    if memory.available_bytes < needed:
        yield _fail(
            "memory",
            f"{found}; two workers of {facts.model.name} need about {needed / _GI:.1f}",
            "end other programs, raise the container's limit, or serve --topology unified or a smaller model",
        )
    else:
        yield _ok("memory", found)
    if memory.huge_pages == "never":
        command = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        yield _warn("huge pages", "turned off: reading weights misses the TLB more often", command)
    elif memory.huge_pages:
        yield _ok("huge pages", f"{memory.huge_pages}; a KV arena that workers share: {memory.arena_pages}")
    if memory.shm_bytes is not None:
        yield _ok("/dev/shm", f"{memory.shm_bytes / _MI:.0f} MiB, not used: the KV arena is a nameless file in memory")


def _port(facts: MachineFacts) -> Iterator[Finding]:
    port = facts.port
    place = f"{port.host}:{port.port}"
    if not port.problem:
        yield _ok("port", f"{place} is free")
    elif "relevo" in port.holder:
        yield _ok("port", f"{place} is held by a running Relevo (process {port.holder_pid})")
    else:
        by = f" by process {port.holder_pid} ({port.holder})" if port.holder_pid else ""
        found = f"{place} is held{by}" if port.holder_pid else f"{place}: {port.problem}"
        yield _fail("port", found, f"relevo serve --port {port.port + 1 if port.port < 65535 else 8000}")


def _limits(facts: MachineFacts) -> Iterator[Finding]:
    runtime = facts.runtime
    if runtime.descriptors < MIN_DESCRIPTORS:
        found = f"{runtime.descriptors} a process, one for each connection"
        yield _warn("descriptors", found, "ulimit -Hn 65536 as root, or LimitNOFILE=65536 in the unit")
    else:
        yield _ok("descriptors", f"{runtime.descriptors} a process")
    chars = runtime.socket_path_chars
    if runtime.temporary_problem:
        yield _fail(
            "temporary folder", runtime.temporary_problem, "export TMPDIR=/tmp, or another folder that can be written"
        )
    elif chars > MAX_SOCKET_PATH_CHARS:
        found = (
            f"{runtime.temporary_folder} makes socket paths of {chars} characters, {MAX_SOCKET_PATH_CHARS} are allowed"
        )
        yield _fail("temporary folder", found, "export TMPDIR=/tmp, or another short folder")
    else:
        yield _ok("temporary folder", runtime.temporary_folder)


def _data(facts: MachineFacts) -> Iterator[Finding]:
    data = facts.data
    elsewhere = "relevo serve --data-dir FOLDER, or --database-url memory to keep nothing"
    if data.problem:
        yield _fail("data folder", data.problem, elsewhere)
        return
    if not data.is_file:
        yield _ok("database", data.location)
        return
    if not data.exists:
        yield _ok("database", f"{data.location} will be made; no API key: every client is served")
    elif data.mode & 0o077:
        yield _warn("database", f"{data.location} can be read by others", f"chmod 600 {data.location}")
    elif not data.is_ours:
        yield _warn("database", f"{data.location} belongs to another user", f"chown $(id -u) {data.location}")
    else:
        keys = (
            f"{data.num_usable_keys} of {data.num_keys} API keys can be used"
            if data.num_keys
            else "no API key: open to all"
        )
        yield _ok("database", f"{data.location}; {keys}")
    if data.free_bytes is not None and data.free_bytes < NO_DISK_BYTES:
        yield _fail("disk", f"{data.free_bytes / _MI:.0f} MiB free for the ledger", elsewhere)
    elif data.free_bytes is not None and data.free_bytes < LOW_DISK_BYTES:
        yield _warn("disk", f"{data.free_bytes / _MI:.0f} MiB free for the ledger", "free some, or " + elsewhere)
    elif data.free_bytes is not None:
        yield _ok("disk", f"{data.free_bytes / _GI:.1f} GiB free for the ledger")


def _model(facts: MachineFacts) -> Iterator[Finding]:
    model = facts.model
    if model.problem:
        yield _fail("model", model.problem, "relevo serve MODEL with a GGUF file, a folder or a hub id")
    elif model.is_downloaded_first:
        room = model.free_bytes
        if room is not None and room < MODEL_DISK_BYTES:
            yield _fail(
                "model", f"{model.name} has to be downloaded and {room / _MI:.0f} MiB are free", "--download-dir FOLDER"
            )
        else:
            yield _ok("model", f"{model.name} is downloaded at the first start: {model.is_downloaded_first}")
    else:
        size = f" ({model.weights_bytes / 1e6:.0f} MB)" if model.weights_bytes else ""
        yield _ok("model", f"{model.name}: {model.path}{size}" if model.path else model.name)


def _clock(facts: MachineFacts) -> Iterator[Finding]:
    runtime = facts.runtime
    if runtime.unix_time_s < runtime.newest_file_s - MAX_TIME_BEHIND_S:
        yield _fail(
            "clock",
            "behind the files of this installation: keys expire and bills are dated by it",
            "timedatectl set-ntp true",
        )
    elif runtime.clock_source in SLOW_CLOCKS:
        yield _warn(
            "clock", f"{runtime.clock_source}: slow to read", "boot with clocksource=tsc where the machine has one"
        )
    else:
        yield _ok("clock", runtime.clock_source or "set")


def _server(facts: MachineFacts) -> Iterator[Finding]:
    server = facts.server
    if server is None:
        return
    if server.problem:
        yield _fail("server", f"{server.url}: {server.problem}", "relevo serve, or another --url")
    elif server.status == "ok":
        yield _ok("server", f"{server.url} serves {', '.join(server.models)}")
    elif server.status == "degraded":
        yield _warn("server", f"{server.url}: {server.reason}", "see its log")
    else:
        yield _fail("server", f"{server.url} is {server.status}: {server.reason}", "see its log")


_JUDGES: tuple[Callable[[MachineFacts], Iterator[Finding]], ...] = (
    *(_platform, _engine, _model, _cores, _memory),
    *(_port, _limits, _data, _clock, _server),
)
