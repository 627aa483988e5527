"""A server as a child process, for measurements that compare several.

Owns the child's life: it is started in a session of its own, on a leash (it ends with us, `wire.leash`), waited for
until it says that it is ready, ended with SIGINT and waited for again. It signals its own child, and with `ends_group`
what that child left behind in its session; a Relevo server ends its own workers. Output goes to a log file whose end is
shown when the start fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import time
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from relevo.bench.client import OpenAIClient
from relevo.core.errors import StartError
from relevo.wire.child_process import Lifeline, on_leash, python_command, python_environment

POLL_INTERVAL_S = 0.2  # between looks at /ready; arbitrary
STOP_TIMEOUT_S = 40.0  # for a clean end; a little over the server's own shutdown_timeout_s of 30 s
KILL_TIMEOUT_S = 10.0  # for the kernel to end a killed process; arbitrary
LOG_TAIL_LINES = 15


def free_port() -> int:
    """A TCP port of the loopback on which no process listens at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_port_taken(port: int) -> bool:
    """Whether connections are accepted there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def serve_command(model: str | None, port: int, flags: Sequence[str] = ()) -> list[str]:
    """argv of `relevo serve` on the loopback."""
    named = [] if model is None else [model]
    where = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    return python_command("relevo", "serve", *named, *where, *flags)


@dataclass(slots=True)
class ServerProcess:
    """`async with ServerProcess(...) as server`: a server that is ready, and gone afterwards."""

    command: Sequence[str]
    port: int
    log_path: Path
    start_timeout_s: float = 300.0
    environment: Mapping[str, str] = field(default_factory=dict)  # added to this process's own
    stop_timeout_s: float = STOP_TIMEOUT_S
    poll_interval_s: float = POLL_INTERVAL_S
    ends_group: bool = False  # for servers of others, which may leave children behind when they are killed
    started_at_ns: int = 0  # monotonic clock, just before the command ran
    _process: Process | None = None
    _lifeline: Lifeline | None = None
    _has_ended: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def returncode(self) -> int | None:
        """None: it runs."""
        return self._process.returncode if self._process else None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start and wait until ready. Raises StartError with the end of the log; nothing is left running then."""
        if is_port_taken(self.port):
            raise StartError(f"port {self.port} is taken: another server would be measured instead; end it first")
        self.started_at_ns = time.monotonic_ns()
        try:
            await self._spawn()
            await self._wait_until_ready(self._running())
        except BaseException:
            await self.stop()
            raise

    async def _spawn(self) -> None:
        if shutil.which(self.command[0]) is None:
            raise StartError(f"cannot run {self.command[0]}: there is no such program")
        self._lifeline = Lifeline()
        with self.log_path.open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *on_leash(self._lifeline.read_fd, list(self.command)),
                    pass_fds=(self._lifeline.read_fd,),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # no usage is written down, and no key is asked for
                    env={**python_environment(), "RELEVO_DATABASE_URL": "memory", **self.environment},
                    start_new_session=True,  # Ctrl-C at the terminal reaches the load generator, which ends the server
                )
            except OSError as error:
                raise StartError(f"cannot run {self.command[0]}: {error.strerror or error}") from error
            finally:
                self._lifeline.passed()

    async def stop(self) -> None:
        """SIGINT, then SIGKILL if the server has not ended in time. Idempotent."""
        if self._process is None or self._has_ended:
            return
        await self._end(self._process)
        self._has_ended = True
        if self._lifeline is not None:
            self._lifeline.close()
        if self.ends_group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _end(self, process: Process) -> None:
        if process.returncode is not None:
            return
        for number, timeout_s in ((signal.SIGINT, self.stop_timeout_s), (signal.SIGKILL, KILL_TIMEOUT_S)):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await process.wait()
                    return

    async def _wait_until_ready(self, process: Process) -> None:
        deadline_s = time.monotonic() + self.start_timeout_s
        async with OpenAIClient(self.url) as client:
            while True:
                if process.returncode is not None:
                    raise StartError(f"the server ended with status {process.returncode} at start: {self._log_tail()}")
                if await client.is_ready():
                    return
                if time.monotonic() > deadline_s:
                    raise StartError(f"the server was not ready after {self.start_timeout_s:.0f} s: {self._log_tail()}")
                await asyncio.sleep(self.poll_interval_s)

    def _running(self) -> Process:
        assert self._process is not None, "the server was never started"
        return self._process

    def _log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"(end of {self.log_path})", *lines])
