"""What `relevo doctor` makes of facts: a sound machine is all right, each fault is named with the way to mend it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from relevo.policy.host.doctor import Finding, Status, findings
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
from relevo.wire.address import MAX_UNIX_PATH

SOUND = MachineFacts(
    runtime=RuntimeFacts(
        relevo_version="1.2.3",
        python_version="3.11.7",
        is_linux=True,
        descriptors=65536,
        socket_path_chars=40,
        temporary_folder="/tmp",
        unix_time_s=2e9,
        newest_file_s=1.9e9,
        clock_source="tsc",
    ),
    engine=EngineFacts(
        native_version="1.2.3",
        cpu_path="avx2",
        cpu_reason="avx2 is the best",
        available_paths=("portable", "avx2"),
        compiler="g++",
        has_python_headers=True,
    ),
    cores=CoreFacts(cores=(0, 1), num_online=2, topology="1p1d", topology_reason="two"),
    memory=MemoryFacts(available_bytes=8 * 2**30, huge_pages="madvise", shm_bytes=2**20),
    port=PortFacts(host="127.0.0.1", port=8000),
    data=DataFacts(location="/home/a/relevo.db", is_file=True, exists=True, mode=0o600, free_bytes=2**40),
    model=ModelFacts(name="smollm2", path="/a.gguf", weights_bytes=10**8),
)


def changed(group: str, **values: Any) -> list[Finding]:
    return findings(replace(SOUND, **{group: replace(getattr(SOUND, group), **values)}))


def test_a_sound_machine_is_all_right() -> None:
    assert {finding.status for finding in findings(SOUND)} == {Status.OK}


@pytest.mark.parametrize(
    ("group", "values", "name", "status", "fix"),
    [
        ("runtime", {"is_linux": False}, "platform", "fail", "Linux"),
        ("runtime", {"python_version": "3.10.1"}, "platform", "fail", "3.11"),
        ("runtime", {"descriptors": 256}, "descriptors", "warn", "ulimit"),
        ("runtime", {"socket_path_chars": 101}, "temporary folder", "fail", "TMPDIR"),
        ("runtime", {"temporary_problem": "none can be written"}, "temporary folder", "fail", "TMPDIR"),
        ("runtime", {"unix_time_s": 0.0}, "clock", "fail", "ntp"),
        ("runtime", {"clock_source": "hpet"}, "clock", "warn", "tsc"),
        ("engine", {"native_version": ""}, "CPU kernels", "fail", "pip install 'relevo[cpu]'"),
        ("engine", {"native_version": "1.2.2"}, "CPU kernels", "fail", "relevo-native==1.2.3"),
        ("engine", {"problem": "no such path"}, "CPU kernels", "fail", "RELEVO_CPU_PATH"),
        ("engine", {"cpu_path": "portable"}, "CPU path", "warn", "unset RELEVO_CPU_PATH"),
        ("engine", {"cpu_path": "portable", "available_paths": ("portable",)}, "CPU path", "warn", "AVX2"),
        ("engine", {"native_version": "", "compiler": ""}, "compiler", "warn", "apt-get install g++"),
        ("cores", {"cores": (3,)}, "cores", "warn", "second core"),
        ("cores", {"limit_notes": ("half a core",)}, "container", "warn", "limit"),
        ("cores", {"governor": "powersave"}, "clock rates", "warn", "performance"),
        ("memory", {"available_bytes": 2**28}, "memory", "fail", "unified"),
        ("memory", {"huge_pages": "never"}, "huge pages", "warn", "transparent_hugepage"),
        ("port", {"problem": "in use", "holder": "nginx", "holder_pid": 7}, "port", "fail", "--port 8001"),
        ("port", {"problem": "not allowed"}, "port", "fail", "--port 8001"),
        ("data", {"problem": "cannot be written"}, "data folder", "fail", "--data-dir"),
        ("data", {"mode": 0o644}, "database", "warn", "chmod 600"),
        ("data", {"is_ours": False}, "database", "warn", "chown"),
        ("data", {"free_bytes": 10**9}, "disk", "warn", "--data-dir"),
        ("data", {"free_bytes": 10**6}, "disk", "fail", "--data-dir"),
        ("model", {"problem": "there is no file"}, "model", "fail", "relevo serve MODEL"),
        ("model", {"is_downloaded_first": "93 MB", "free_bytes": 10**6}, "model", "fail", "--download-dir"),
    ],
)
def test_a_fault_is_named_with_the_way_to_mend_it(
    group: str, values: dict[str, Any], name: str, status: str, fix: str
) -> None:
    (wrong,) = [finding for finding in changed(group, **values) if finding.name == name]
    assert wrong.status == status
    assert fix in wrong.fix
    assert all(finding.fix for finding in changed(group, **values) if finding.status is not Status.OK)


@pytest.mark.parametrize(
    ("group", "values", "name"),
    [
        ("engine", {"compiler": "", "has_python_headers": False}, "compiler"),  # the kernels are there
        ("port", {"problem": "in use", "holder": "python -m relevo serve", "holder_pid": 7}, "port"),
        ("data", {"exists": False, "mode": 0}, "database"),  # it will be made
        ("model", {"is_downloaded_first": "93 MB", "free_bytes": 2**40}, "model"),
    ],
)
def test_what_is_no_fault_is_all_right(group: str, values: dict[str, Any], name: str) -> None:
    assert [finding.status for finding in changed(group, **values) if finding.name == name] == [Status.OK]


@pytest.mark.parametrize(
    ("server", "status"),
    [
        (ServerFacts(url="u", status="ok", models=("m",)), "ok"),
        (ServerFacts(url="u", status="degraded", reason="the ledger"), "warn"),
        (ServerFacts(url="u", status="unavailable", reason="no worker"), "fail"),
        (ServerFacts(url="u", problem="cannot reach"), "fail"),
    ],
)
def test_a_running_server_is_judged_by_its_health(server: ServerFacts, status: str) -> None:
    assert findings(replace(SOUND, server=server))[-1].status == status


def test_settings_that_cannot_be_read_are_a_fault() -> None:
    found = findings(replace(SOUND, settings_problem="--port tcp://1: should be a number"))
    assert [finding.name for finding in found if finding.status is Status.FAIL] == ["settings"]


def test_the_bound_of_socket_paths_is_that_of_the_wire() -> None:
    at_the_bound = changed("runtime", socket_path_chars=MAX_UNIX_PATH)
    assert {finding.status for finding in at_the_bound} == {Status.OK}
