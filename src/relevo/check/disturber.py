"""What chaos checks may do to a stack, and to which processes: signals to local ones, or a command of the operator's.

Touches nothing but the named processes, never this one or its ancestors, and undoes what can be undone.
Disturbing a link or a disk would reach beyond the processes, so it is left to the operator's command.
"""

from __future__ import annotations

import asyncio
import contextlib
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
        """Raises SettingsError for an expression that is none, or that says nothing and so fits everything."""
        for spec in specs:
            if not spec.strip():
                raise SettingsError("--processes is empty and would fit every process of the machine; name a pid")
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
        if action is not Action.CONTINUE and target not in await self.targets():
            return True  # it is gone, and its pid may be another process's by now
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

    @classmethod
    def of(cls, command: str) -> ChaosCommand:
        """Raises SettingsError for what no shell could split into words."""
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise SettingsError(f"--chaos-command {command!r} is not a command line: {error}") from None
        if not words:
            raise SettingsError("--chaos-command is empty; give the command that disturbs your processes")
        return cls(command)

    async def targets(self) -> list[str]:
        status, output = await self._run("list", stdout=asyncio.subprocess.PIPE)
        if status != 0:
            raise StartError(f"'{self.command} list' ended with status {status}")
        return [line.strip() for line in output.splitlines() if line.strip()]

    async def do(self, action: Action, target: str) -> bool:
        # nothing is read: what it leaves running in the background may keep a pipe open
        status, _ = await self._run(str(action), target, stdout=asyncio.subprocess.DEVNULL)
        if status not in (0, EXIT_UNSUPPORTED):
            raise StartError(f"'{self.command} {action} {target}' ended with status {status}")
        return status == 0

    async def _run(self, *words: str, stdout: int) -> tuple[int, str]:
        """Its status and output. One that is broken off is killed with all of its process group."""
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(self.command),
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout,
                process_group=0,  # out of the reach of Ctrl-C: what it began has to be undone
            )
        except OSError as error:
            raise StartError(f"--chaos-command {self.command!r} cannot be run: {error}") from error
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            raise StartError(f"'{self.command} {' '.join(words)}' took longer than {COMMAND_TIMEOUT_S:.0f} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return process.returncode or 0, (output or b"").decode(errors="replace")


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
