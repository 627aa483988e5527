"""Processor time of the processes of a server, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path

from relevo.core.errors import StartError

_KINDS = ("gateway", "worker", "rank")  # of children, by a word of their command line


def process_tree(pid: int | None) -> list[int]:
    """A process and all below it; none of None."""
    return [] if pid is None else [pid, *_children(pid)]


def gateway_pids(server_pid: int | None) -> list[int]:
    """The gateways alone, without the supervisor and the workers beside them. Raises StartError."""
    pids = [pid for pid in process_tree(server_pid) if b"\0gateway\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    if not pids:
        raise StartError("the gateway's process was not found under the server's")
    return pids


def cpu_s(pids: list[int]) -> float:
    """User and system time of these processes so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_s_by_kind(server_pid: int | None) -> dict[str, float]:
    """Of a Relevo server: its supervisor, and its children by what they are."""
    spent_s: dict[str, float] = {}
    for pid in process_tree(server_pid):
        kind = "supervisor"
        if pid != server_pid:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            kind = next((name for name in _KINDS if name in words), "others")
        spent_s[kind] = spent_s.get(kind, 0.0) + cpu_s([pid])
    return spent_s


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in tasks.read_text().split():
            found += [int(child), *_children(int(child))]
    return found
