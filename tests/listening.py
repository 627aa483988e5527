"""Where a process can be reached over TCP."""

from __future__ import annotations

import socket
from pathlib import Path


def listening_hosts(pid: int) -> set[str]:
    """Of the TCP sockets that a process listens at."""
    opened = [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {each.removeprefix("socket:[").removesuffix("]") for each in opened}
    lines = [line for kind in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]]
    rows = [line.split() for line in lines]
    hosts = {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}
    return {socket.inet_ntoa(bytes.fromhex(host)[::-1]) if len(host) == 8 else host for host in hosts}
