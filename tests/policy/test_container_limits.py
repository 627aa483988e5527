"""What control groups leave to a process: every version, every ancestor, every place where they are mounted.

Red when a limit is looked for at one path only, or only in the process's own group.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from relevo.build.container import ContainerLimits, container_limits, host_memory_bytes
from relevo.build.hardware import cores_in_quota, limit_notes, usable_cores, usable_memory

GIB = 2**30
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "36 31 0:33 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "37 31 0:34 {root} /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
)
V1_GROUPS = "9:name=systemd:/x\n4:memory:{path}\n3:cpuset:{path}\n2:cpu,cpuacct:{path}\n0::/\n"


def limits_of(files: Mapping[str, str]) -> ContainerLimits:
    return container_limits(files.get)


def test_without_groups_nothing_is_limited() -> None:
    assert limits_of({}) == ContainerLimits()


@pytest.mark.parametrize(
    ("files", "limit_bytes", "used_bytes"),
    [
        ({"memory.max": "1073741824\n"}, GIB, 0),
        ({"memory.max": "1073741824\n", "memory.current": "1000\n"}, GIB, 1000),
        ({"memory.max": "max\n", "memory.high": "536870912\n"}, GIB // 2, 0),
        (
            {
                "memory.max": "1073741824",
                "memory.current": "9000",
                "memory.stat": "anon 1\ninactive_file 4000\nactive_file 2000\n",
            },
            GIB,
            3000,
        ),
    ],
    ids=["max", "used", "high", "what-the-kernel-takes-back"],
)
def test_memory_of_version_2(files: dict[str, str], limit_bytes: int, used_bytes: int) -> None:
    below = {f"/sys/fs/cgroup/{name}": text for name, text in files.items()}
    memory = limits_of({"/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": V2_MOUNT, **below}).memory
    assert memory is not None
    assert (memory.limit_bytes, memory.used_bytes) == (limit_bytes, used_bytes)
    assert memory.free_bytes == limit_bytes - used_bytes


@pytest.mark.parametrize("where", ["a/b/c", "a/b", "a", ""])
def test_the_tightest_of_all_ancestors_binds(where: str) -> None:
    files = {
        "/proc/self/cgroup": "0::/a/b/c\n",
        "/proc/self/mountinfo": V2_MOUNT,
        **{f"/sys/fs/cgroup/{folder}/memory.max": str(8 * GIB) for folder in ("a/b/c", "a/b", "a")},
        **{f"/sys/fs/cgroup/{folder}/cpu.max": "max 100000" for folder in ("a/b/c", "a/b", "a")},
        f"/sys/fs/cgroup/{where}/memory.max".replace("//", "/"): str(GIB),
        f"/sys/fs/cgroup/{where}/cpu.max".replace("//", "/"): "150000 100000",
    }
    found = limits_of(files)
    assert found.memory is not None and found.memory.limit_bytes == GIB
    assert found.cpu is not None and found.cpu.num_cpus == 1.5


def test_a_group_with_more_room_and_more_use_binds_too() -> None:
    """What is left counts, not what is allowed: neighbours in the same pod use memory as well."""
    files = {
        "/proc/self/cgroup": "0::/pod/us\n",
        "/proc/self/mountinfo": V2_MOUNT,
        "/sys/fs/cgroup/pod/us/memory.max": str(2 * GIB),
        "/sys/fs/cgroup/pod/memory.max": str(4 * GIB),
        "/sys/fs/cgroup/pod/memory.current": str(3 * GIB),
    }
    memory = limits_of(files).memory
    assert memory is not None and memory.free_bytes == GIB and memory.file == "/sys/fs/cgroup/pod/memory.max"


@pytest.mark.parametrize(
    ("root", "path", "at"), [("/", "/docker/abc", "/docker/abc"), ("/docker/abc", "/docker/abc", "")]
)
def test_limits_of_version_1(root: str, path: str, at: str) -> None:
    """With the whole hierarchy in sight, and with the container's own part mounted as its root."""
    files = {
        "/proc/self/cgroup": V1_GROUPS.format(path=path),
        "/proc/self/mountinfo": V1_MOUNTS.format(root=root),
        f"/sys/fs/cgroup/memory{at}/memory.limit_in_bytes": "1073741824\n",
        f"/sys/fs/cgroup/memory{at}/memory.usage_in_bytes": "5000\n",
        f"/sys/fs/cgroup/memory{at}/memory.stat": "total_inactive_file 1000\ntotal_active_file 500\n",
        f"/sys/fs/cgroup/cpu,cpuacct{at}/cpu.cfs_quota_us": "200000\n",
        f"/sys/fs/cgroup/cpu,cpuacct{at}/cpu.cfs_period_us": "100000\n",
        f"/sys/fs/cgroup/cpuset{at}/cpuset.cpus": "0-1,4\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes.root": "",
    }
    found = limits_of(files)
    assert found.memory is not None and found.memory.free_bytes == GIB - 3500
    assert found.cpu is not None and found.cpu.num_cpus == 2.0
    assert found.cores is not None and found.cores.cores == {0, 1, 4}


def test_a_limit_of_a_group_that_cannot_be_seen_binds_in_version_1() -> None:
    """Red when only a group's own file is read: a pod's limit lies above its container, out of sight."""
    files = {
        "/proc/self/cgroup": V1_GROUPS.format(path="/"),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/memory/memory.stat": f"cache 1\nhierarchical_memory_limit {GIB}\ntotal_rss 5\n",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
    }
    memory = limits_of(files).memory
    assert memory is not None
    assert (memory.limit_bytes, memory.used_bytes, memory.file) == (GIB, 1000, "/sys/fs/cgroup/memory/memory.stat")


def test_what_says_no_limit_is_none() -> None:
    files = {
        "/proc/self/cgroup": V1_GROUPS.format(path="/"),
        "/proc/self/mountinfo": V1_MOUNTS.format(root="/"),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "/sys/fs/cgroup/memory.max": "max\n",
        "/sys/fs/cgroup/cpu.max": "max 100000\n",
    }
    assert limits_of(files) == ContainerLimits()


@pytest.mark.parametrize("text", ["", "nonsense", "0 0", "-", "\x00", "12 0", "1e9", "0-", "5-x"])
def test_what_cannot_be_read_limits_nothing(text: str) -> None:
    names = ("memory.max", "memory.high", "cpu.max", "cpuset.cpus.effective", "memory.stat")
    files = dict.fromkeys((*(f"/sys/fs/cgroup/{name}" for name in names), "/proc/self/cgroup"), text)
    assert limits_of(files | {"/proc/self/mountinfo": text}) == ContainerLimits()


def test_a_group_outside_of_the_namespace_is_looked_for_at_the_mount() -> None:
    files = {
        "/proc/self/cgroup": "0::/../../elsewhere\n",
        "/proc/self/mountinfo": "30 23 0:26 /../.. /run/my\\040groups rw - cgroup2 cgroup rw\n",
        "/run/my groups/memory.max": str(GIB),
    }
    memory = limits_of(files).memory
    assert memory is not None and memory.limit_bytes == GIB


def test_memory_is_the_least_of_machine_and_container() -> None:
    limits = limits_of({"/sys/fs/cgroup/memory.max": str(GIB)})
    assert usable_memory(8 * GIB, limits)[0] == GIB
    assert "/sys/fs/cgroup/memory.max" in usable_memory(8 * GIB, limits)[1]
    assert usable_memory(GIB // 2, limits)[0] == GIB // 2
    assert host_memory_bytes({"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   5 kB\n"}.get) == 5 * 1024
    assert host_memory_bytes({}.get) is None


@pytest.mark.parametrize(("cpu_max", "count"), [("50000 100000", 1), ("199000 100000", 1), ("300000 100000", 3)])
def test_a_cpu_quota_is_kept_busy_and_not_exceeded(cpu_max: str, count: int) -> None:
    limits = limits_of({"/sys/fs/cgroup/cpu.max": cpu_max})
    cores = tuple(range(8))
    picked = {cores_in_quota(cores, limits, first) for first in range(8)}
    assert {len(cores_in) for cores_in in picked} == {count} and all(set(each) <= set(cores) for each in picked)
    assert len(picked) == 8, "containers that are alike compute on different cores"
    assert any("cpu.max" in note for note in limit_notes(limits, cores, min(picked), 8 * GIB))
    assert cores_in_quota((3,), limits, 0) in ((), (3,))


def test_a_quota_that_pays_for_all_cores_changes_nothing() -> None:
    limits = limits_of({"/sys/fs/cgroup/cpu.max": "800000 100000"})
    assert cores_in_quota((0, 1), limits, 1) == ()
    assert limit_notes(limits, (0, 1), (0, 1), GIB) == ()


def test_cores_are_those_of_the_process_and_of_its_group() -> None:
    limits = limits_of({"/sys/fs/cgroup/cpuset.cpus.effective": "2-3"})
    assert usable_cores((0, 1, 2), limits) == (2,)
    assert usable_cores((0, 1), ContainerLimits()) == (0, 1)
