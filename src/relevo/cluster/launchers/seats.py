"""What a launcher is asked to run: one head and any number of nodes, each a supervisor with its command line.

Pure: no process is started here. Roles and settings are those of `relevo join` and `relevo serve`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from relevo.core.errors import SettingsError
from relevo.core.host_port import HostPort
from relevo.wire.child_process import python_command

HEAD = "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSeat:
    """`folder`: of the cluster's authority, on the disk of its machine; kept when it is started again."""

    model: str
    folder: str
    http_host: str = "0.0.0.0"
    http_port: int = 8000
    control_port: int = 7000
    flags: tuple[str, ...] = ()  # more of `relevo serve`
    drain_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeat:
    name: str
    role: str
    control_port: int = 7001  # not the head's: they may share a machine
    settings: tuple[str, ...] = ()  # NAME=VALUE of `relevo join --set`
    drain_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a seat needs of its machine, as the launcher counts it."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeadPlace:
    """Where the head is, and which authority it has: another one means that every node has to join anew."""

    address: str
    authority: str


@dataclass(frozen=True, slots=True)
class Invitation:
    place: HeadPlace
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatState:
    """`state`: waiting (for the head), running, ended (as it was asked to) or failed (a person has to mend it)."""

    name: str
    state: str
    host: str
    reason: str = ""
    num_starts: int = 0
    pid: int = 0


class Launcher(Protocol):
    """Raises SettingsError in one sentence where there is no place for what is asked."""

    def launch(self, head: HeadSeat, nodes: Sequence[tuple[NodeSeat, Room]]) -> None:
        """Everything is placed when this returns, and starts."""

    def url(self) -> str:
        """Where the gateway serves, as other machines reach it."""

    def states(self) -> list[SeatState]:
        """Of all seats, the head's first. One that does not answer is told as waiting."""

    def end(self) -> None:
        """Drain and end everything, the head last."""


def head_command(seat: HeadSeat, host: str) -> list[str]:
    return python_command(
        "relevo",
        *("serve", seat.model, "--topology", "none", "--cluster", str(HostPort(host, seat.control_port))),
        *("--cluster-dir", seat.folder, "--host", seat.http_host, "--port", str(seat.http_port)),
        *("--shutdown-timeout-s", f"{seat.drain_s:g}", *seat.flags),
    )


def node_command(seat: NodeSeat, host: str, address: str, folder: Path) -> list[str]:
    """`folder`: of its identity, with the file `join-token` in it."""
    settings = [f"shutdown_timeout_s={seat.drain_s:g}", *seat.settings]
    return python_command(
        "relevo",
        *("join", address, "--token-file", str(folder / "join-token"), "--cluster-dir", str(folder / "identity")),
        *("--name", seat.name, "--role", seat.role, "--listen", str(HostPort(host, seat.control_port))),
        *("--advertise", str(HostPort(host, seat.control_port))),
        *(word for each in settings for word in ("--set", each)),
    )


def node_seats(num_by_role: Sequence[tuple[str, int]], **common: Any) -> list[NodeSeat]:
    """`prefill-0, decode-0, decode-1`. Raises SettingsError."""
    seats = [
        NodeSeat(name=f"{role}-{number}", role=role, **common) for role, many in num_by_role for number in range(many)
    ]
    if not seats:
        raise SettingsError("no node would compute; give --nodes, or --prefill and --decode")
    return seats
