"""What a container leaves to this process: memory, CPU time and cores of its control groups, version 1 and 2.

Pure over file texts: `container_limits` is given a `read` and asks it for paths, `files_below` makes one that reads a
real (or another) root. A limit of any group above this process binds it too, so the least of all counts. Knows nothing
of what the limits are used for. Formats: Linux' Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst,
scheduler/sched-bwc.rst, proc_pid_mountinfo(5).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

Read = Callable[[str], str | None]  # of an absolute path: its text, None if there is none

_MOUNT_POINT = "/sys/fs/cgroup"
_OLD_CONTROLLERS = ("memory", "cpu", "cpuset")
_NO_LIMIT_BYTES = 2**60  # version 1 writes the largest multiple of a page for "none"; no machine has that much
_OCTAL = re.compile(r"\\([0-7]{3})")  # blanks in the names of mount points


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The group that leaves least. What the kernel can take back (file pages) is not counted as used."""

    limit_bytes: int
    used_bytes: int
    file: str

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuQuota:
    num_cpus: float  # seconds of CPU per second
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSet:
    cores: frozenset[int]
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimits:
    """None: nothing is limited. Each names the file that said so."""

    memory: MemoryLimit | None = None
    cpu: CpuQuota | None = None
    cores: CoreSet | None = None


def files_below(root: Path) -> Read:
    """Paths are taken below `root`; what cannot be read is not there."""

    def read(path: str) -> str | None:
        try:
            return (root / path.lstrip("/")).read_text()
        except (OSError, UnicodeDecodeError):
            return None

    return read


def container_limits(read: Read) -> ContainerLimits:
    folders = {controller: list(dict.fromkeys(_folders(read, controller))) for controller in ("", *_OLD_CONTROLLERS)}
    memory = [
        limit
        for found in (
            *(_memory_limit(read, folder) for folder in folders[""]),
            *(_old_memory_limit(read, folder) for folder in folders["memory"]),
        )
        if (limit := found) is not None
    ]
    cpu = [
        quota
        for found in (
            *(_quota(read, folder) for folder in folders[""]),
            *(_old_quota(read, folder) for folder in folders["cpu"]),
        )
        if (quota := found) is not None
    ]
    return ContainerLimits(
        memory=min(memory, key=lambda limit: limit.free_bytes, default=None),
        cpu=min(cpu, key=lambda quota: quota.num_cpus, default=None),
        cores=_core_set(read, (*folders[""], *folders["cpuset"])),
    )


def host_memory_bytes(read: Read) -> int | None:
    """What the whole machine has free (MemAvailable). None where the system does not tell."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", read("/proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else None


# ---- where the groups are --------------------------------------------------------------------------------------------


def _folders(read: Read, controller: str) -> Iterator[str]:
    """Of every group that this process is in, the innermost first. `controller`: empty for version 2."""
    group = _group(read("/proc/self/cgroup") or "", controller)
    for root, point in _mounts(read("/proc/self/mountinfo") or "", controller):
        yield from _upwards(point, _below(group, root))
    usual = (_MOUNT_POINT,) if not controller else (f"{_MOUNT_POINT}/{controller}", f"{_MOUNT_POINT}/cpu,cpuacct")
    for point in usual if controller in ("", "cpu") else usual[:1]:
        yield from _upwards(point, _below(group, "/"))


def _group(text: str, controller: str) -> str:
    """As /proc/self/cgroup names it: `hierarchy:controllers:path`."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number == "0" and not controllers) if not controller else controller in controllers.split(","):
            return path
    return "/"


def _mounts(text: str, controller: str) -> Iterator[tuple[str, str]]:
    """(root within the hierarchy, mount point) of the hierarchy with that controller."""
    for line in text.splitlines():
        head, separator, tail = line.partition(" - ")
        fields, kinds = head.split(), tail.split()
        if not separator or len(fields) < 5 or len(kinds) < 3:
            continue
        is_wanted = kinds[0] == "cgroup2" if not controller else kinds[0] == "cgroup"
        if is_wanted and (not controller or controller in kinds[2].split(",")):
            yield _decoded(fields[3]), _decoded(fields[4])


def _decoded(name: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), name)


def _below(group: str, root: str) -> tuple[str, ...]:
    """The group's parts below a mount's root; none if it lies elsewhere, as in a namespace of its own."""
    path = PurePosixPath(group)
    if ".." in path.parts or not path.is_relative_to(root):
        return ()
    return path.relative_to(root).parts


def _upwards(point: str, parts: tuple[str, ...]) -> Iterator[str]:
    for length in range(len(parts), -1, -1):
        yield "/".join((point, *parts[:length]))


# ---- what they say ---------------------------------------------------------------------------------------------------


def _memory_limit(read: Read, folder: str) -> MemoryLimit | None:
    limits = [(size, name) for name in ("max", "high") if (size := _size(read(f"{folder}/memory.{name}"))) is not None]
    if not limits:
        return None
    size, name = min(limits)
    stat = _stat(read(f"{folder}/memory.stat"))
    used = (_size(read(f"{folder}/memory.current")) or 0) - stat.get("inactive_file", 0) - stat.get("active_file", 0)
    return MemoryLimit(limit_bytes=size, used_bytes=max(0, used), file=f"{folder}/memory.{name}")


def _old_memory_limit(read: Read, folder: str) -> MemoryLimit | None:
    """Also of a group above that this process cannot see: memory.stat has the least of all."""
    stat = _stat(read(f"{folder}/memory.stat"))
    stated = {"limit_in_bytes": read(f"{folder}/memory.limit_in_bytes"), "stat": stat.get("hierarchical_memory_limit")}
    limits = [(size, name) for name, text in stated.items() if (size := _size(str(text))) is not None]
    if not limits:
        return None
    size, name = min(limits)
    used = (_size(read(f"{folder}/memory.usage_in_bytes")) or 0) - sum(
        stat.get(name, 0) for name in ("total_inactive_file", "total_active_file")
    )
    return MemoryLimit(limit_bytes=size, used_bytes=max(0, used), file=f"{folder}/memory.{name}")


def _size(text: str | None) -> int | None:
    """None: no limit, or nothing that can be read as one."""
    word = (text or "").strip()
    return int(word) if word.isdecimal() and int(word) < _NO_LIMIT_BYTES else None


def _stat(text: str | None) -> dict[str, int]:
    lines = (line.split() for line in (text or "").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdecimal()}


def _quota(read: Read, folder: str) -> CpuQuota | None:
    return _cpu_quota((read(f"{folder}/cpu.max") or "").split(), f"{folder}/cpu.max")


def _old_quota(read: Read, folder: str) -> CpuQuota | None:
    file = f"{folder}/cpu.cfs_quota_us"  # -1: none
    return _cpu_quota([*(read(file) or "").split(), *(read(f"{folder}/cpu.cfs_period_us") or "").split()], file)


def _cpu_quota(words: list[str], file: str) -> CpuQuota | None:
    if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
        return None
    return CpuQuota(num_cpus=int(words[0]) / int(words[1]), file=file)


def _core_set(read: Read, folders: tuple[str, ...]) -> CoreSet | None:
    """Of the innermost group that says: the kernel keeps it within those above."""
    for folder in folders:
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            cores = _cores(read(f"{folder}/{name}") or "")
            if cores:
                return CoreSet(cores=cores, file=f"{folder}/{name}")
    return None


def _cores(text: str) -> frozenset[int]:
    """`0-3,8` as numbers."""
    ranges = [part.partition("-") for part in text.strip().split(",")]
    if not all(first.isdecimal() and (last.isdecimal() or not dash) for first, dash, last in ranges):
        return frozenset()
    return frozenset(core for first, dash, last in ranges for core in range(int(first), int(last or first) + 1))
