"""A process of ours that was started and waits for its configuration: what it needs is imported meanwhile.

Owns the pipes between it and its starter. Which process it becomes, and what it is told, is the starter's to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from relevo.wire.child_process import Lifeline, python_command, python_environment


@dataclass(slots=True)
class StartedProcess:
    """Belongs to the event loop that it was started in. `configure` or `end` it once."""

    kind: str
    inherited_fds: tuple[int, ...]
    process: asyncio.subprocess.Process
    lifeline: Lifeline
    status_fd: int  # where its statuses arrive
    _told_status_fd: int  # where it writes them: the number in that process
    is_configured: bool = False

    def configure(self, config: Mapping[str, object]) -> None:
        """Does not wait until it is read."""
        assert self.process.stdin is not None
        self.is_configured = True
        own = {"status_fd": self._told_status_fd, "life_fd": self.lifeline.read_fd}
        self.process.stdin.write(msgspec.json.encode({**config, **own}))
        self.process.stdin.close()

    async def end(self) -> None:
        """If it was not configured: its starter has no use for it. Idempotent."""
        if self.is_configured:
            return
        self.is_configured = True
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        self.lifeline.close()
        os.close(self.status_fd)


async def start_process(kind: str, inherited_fds: tuple[int, ...]) -> StartedProcess:
    """`kind`: as `cli.child` has them. Raises OSError, or RuntimeError for want of a thread that waits for it; then
    nothing is left open."""
    with contextlib.ExitStack() as passed, contextlib.ExitStack() as ours:
        lifeline = Lifeline()
        passed.callback(lifeline.passed)
        ours.callback(lifeline.close)
        read_fd, write_fd = os.pipe()
        passed.callback(os.close, write_fd)
        ours.callback(os.close, read_fd)
        process = await asyncio.create_subprocess_exec(
            *python_command("relevo.cli.child", kind, str(lifeline.read_fd)),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(*inherited_fds, lifeline.read_fd, write_fd),
            env=python_environment(),
            start_new_session=True,  # a Ctrl-C on the terminal reaches the supervisor only
        )
        ours.pop_all()
    return StartedProcess(kind, inherited_fds, process, lifeline, read_fd, write_fd)
