"""Processor time of the processes of a server, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path

from relevo.core.errors import StartError


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


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in tasks.read_text().split():
            found += [int(child), *_children(int(child))]
    return found
