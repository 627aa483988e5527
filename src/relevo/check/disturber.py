"""What chaos checks may do to a stack, and to which processes: signals to local ones, or a command of the operator's.

Touches nothing but the named processes, never this one or its ancestors, and undoes what can be undone.
Disturbing a link or a disk would reach beyond the processes, so it is left to the operator's command.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from relevo.core.errors import SettingsError, StartError

EXIT_UNSUPPORTED = 64  # required of a chaos command that does not know an action: EX_USAGE of sysexits.h
COMMAND_TIMEOUT_S = 60.0


class Action(StrEnum):
    KILL = "kill"  # at once, as by kill -9
    STOP = "stop"  # as by SIGSTOP
    CONTINUE = "continue"
    SLOW_LINK = "slow-link"
    NORMAL_LINK = "normal-link"
    FILL_DISK = "fill-disk"
    FREE_DISK = "free-disk"


class Disturber(Protocol):
    async def targets(self) -> list[str]:
        """The processes there are now, by name; killed ones come back under another name or never."""
        ...

    async def do(self, action: Action, target: str) -> bool:
        """Carry it out; False if this disturber cannot do that action."""
        ...


_BELOW = re.compile(r"(\d+)/(.*)")


@dataclass(frozen=True, slots=True)
class LocalProcesses:
    """Processes of this machine, by specifications of three kinds.

    `1234`: that process. `1234/EXPRESSION`: those below it whose command line the regular expression fits.
    `EXPRESSION`: all of the machine that it fits, other people's too.
    """

    specs: tuple[str, ...]

    @classmethod
    def of(cls, specs: Sequence[str]) -> LocalProcesses:
        """Raises SettingsError for an expression that is none."""
        for spec in specs:
            try:
                re.compile(_expression(spec))
            except re.error as error:
                raise SettingsError(
                    f"--processes {spec!r} is neither a pid nor a regular expression: {error}"
                ) from None
        return cls(tuple(specs))

    async def targets(self) -> list[str]:
        spared = own_lineage()
        return [str(pid) for pid in sorted(_living()) if pid not in spared and self._names(pid)]

    def _names(self, pid: int) -> bool:
        return any(_fits(spec, pid) for spec in self.specs)

    async def do(self, action: Action, target: str) -> bool:
        number = {Action.KILL: signal.SIGKILL, Action.STOP: signal.SIGSTOP, Action.CONTINUE: signal.SIGCONT}.get(action)
        if number is None:
            return False
        try:
            os.kill(int(target), number)
        except ProcessLookupError:
            pass  # it is gone, which is what kill wants and stop cannot change
        except PermissionError as error:
            raise StartError(f"process {target} may not be signalled by this user: {error}") from error
        return True


@dataclass(frozen=True, slots=True)
class ChaosCommand:
    """`COMMAND list` prints one target a line; `COMMAND ACTION TARGET` carries out; status 64: cannot do that."""

    command: str

    async def targets(self) -> list[str]:
        status, output = await self._run("list")
        if status != 0:
            raise StartError(f"'{self.command} list' ended with status {status}")
        return output.split()

    async def do(self, action: Action, target: str) -> bool:
        status, _ = await self._run(str(action), target)
        if status not in (0, EXIT_UNSUPPORTED):
            raise StartError(f"'{self.command} {action} {target}' ended with status {status}")
        return status == 0

    async def _run(self, *words: str) -> tuple[int, str]:
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(self.command), *words, stdout=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise StartError(f"--chaos-command {self.command!r} cannot be run: {error}") from error
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise StartError(f"'{self.command} {' '.join(words)}' took longer than {COMMAND_TIMEOUT_S:.0f} s") from None
        return process.returncode or 0, output.decode(errors="replace")


def _expression(spec: str) -> str:
    below = _BELOW.fullmatch(spec)
    return below.group(2) if below else spec


def _fits(spec: str, pid: int) -> bool:
    if spec.isdigit():
        return int(spec) == pid
    below = _BELOW.fullmatch(spec)
    if below and int(below.group(1)) not in lineage(pid) - {pid}:
        return False
    return bool(re.search(_expression(spec), _command_line(pid)))


def own_lineage() -> set[int]:
    return lineage(os.getpid())


def lineage(pid: int) -> set[int]:
    """A process and its ancestors."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        pid = _parent(pid)
    return found


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the name: state, parent, ...; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _living() -> list[int]:
    """Processes that are no zombies."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if (fields := _stat(pid)) and fields[0] != "Z"]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
