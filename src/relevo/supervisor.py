"""The parent process: starts workers, gateways and a node process, restarts what dies, ends everything cleanly.

Owns child processes, the listening socket, the shared arena's file descriptor and the runtime folder. Knows nothing of
models, requests or HTTP. Children report over a pipe, one JSON object per line (`Status`). Another pipe ties them to
the supervisor (`wire.leash`), so that kill -9 of it, at whatever instant, leaves nothing behind; over it they are asked
for a sign of life, and one whose loop does not answer is ended and started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from relevo.policy.http.liveness import INTERVAL_S, Liveness
from relevo.wire.child_process import CUT_OFF, Lifeline, scarcity
from relevo.wire.started_process import StartedProcess, start_process
from relevo.wire.status import Status

log = logging.getLogger("relevo.supervisor")

_RESTART_DELAYS_S = (0.0, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0)  # arbitrary: quick first, then polite, back in seconds
GATEWAY_END_S = 8.0  # for a gateway to keep the rows of answers that were cut; longer than its own deadlines
NODE_END_S = 2.0  # for a node process to say good-bye once its workers have finished
_HEALTHY_AFTER_S = 60.0  # a child that lived this long starts the delays anew


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """How to start one child. `config` is written to the child's stdin as JSON with `epoch` set to the incarnation."""

    name: str
    kind: str  # "worker", "gateway" or "node", the first argument of cli.child
    config: dict[str, object] = field(repr=False)  # may hold secrets
    inherited_fds: tuple[int, ...] = ()
    heartbeat_timeout_s: float = 8.0  # without a sign of life from its loop, once it was ready


@dataclass(slots=True)
class Child:
    spec: ChildSpec
    epoch: int = 0
    process: asyncio.subprocess.Process | None = None
    started_at_s: float = 0.0
    deadline: asyncio.TimerHandle | None = None  # until it is ready
    num_fast_deaths: int = 0
    was_ready: bool = False
    is_ready: bool = False  # this incarnation
    failure: str = ""
    liveness: Liveness = field(init=False)

    def __post_init__(self) -> None:
        self.liveness = Liveness.within(self.spec.heartbeat_timeout_s)

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.process.returncode is None else None


class StartFailed(Exception):
    """A child could not start; the message is for the operator. `may_mend`: it gave no reason, so that all of it may
    work at another time; otherwise a person has to change something first."""

    def __init__(self, message: str, *, may_mend: bool = False) -> None:
        super().__init__(message)
        self.may_mend = may_mend


@dataclass(slots=True)
class Supervisor:
    """Runs until `stop` is called or a child cannot start. All gateways accept on the one listening socket."""

    workers: list[ChildSpec]
    gateways: list[ChildSpec]
    start_timeout_s: float  # from a child's start until it is ready
    shutdown_timeout_s: float
    nodes: list[ChildSpec] = field(default_factory=list)  # one, where the box belongs to a cluster
    waiting: Sequence[StartedProcess] = ()  # each becomes a child that would be started in the same way
    on_status: Callable[[str, Status], None] = lambda name, status: None
    on_stopping: Callable[[], None] = lambda: None  # before the gateways are asked to end
    pulse_interval_s: float = INTERVAL_S
    stop_reason: str = ""  # why a child has asked for the end of all; empty: it was done, or asked for from outside
    _children: dict[str, Child] = field(default_factory=dict)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _signals: int = 0

    async def run(self) -> None:
        """Start everything and keep it running. Raises StartFailed; always ends every child it started."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        try:
            async with asyncio.TaskGroup() as group:
                keepers = [group.create_task(self._keep(spec)) for spec in (*self.workers, *self.nodes, *self.gateways)]
                group.create_task(self._shut_down(keepers))
        except ExceptionGroup as failures:  # not `except*`: older Pythons wrap what is raised there into a group again
            failed, others = failures.split(StartFailed)
            if failed is None or others is not None:
                raise
            first = failed.exceptions[0]
            raise StartFailed(str(first), may_mend=isinstance(first, StartFailed) and first.may_mend) from None
        finally:
            self._kill_all()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def waited_for(self) -> list[str]:
        """Names of the children that are not ready, in this incarnation of theirs."""
        children = {name: child for name, child in self._children.items() if child.is_ready and child.pid is not None}
        return [spec.name for spec in (*self.workers, *self.nodes, *self.gateways) if spec.name not in children]

    def stop(self) -> None:
        """Drain and end; returns at once, `run` returns when it is done."""
        self._stopping.set()

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            log.info(
                "stopping: running requests may finish for %.0f s, Ctrl-C again cuts them off", self.shutdown_timeout_s
            )
            self.stop()
        elif self._signals == 2:
            log.info("stopping: running requests are cut off, Ctrl-C again kills every process and loses usage rows")
            self._cut_off()
        else:
            self._kill_all()

    async def _keep(self, spec: ChildSpec) -> None:
        """Start the child again whenever it ends, until the supervisor stops."""
        child = self._children[spec.name] = Child(spec)
        while not self._stopping.is_set():
            await self._run_once(child)
            if self._stopping.is_set():
                return
            if child.failure and not child.was_ready:
                raise StartFailed(child.failure)
            delay_s = self._restart_delay_s(child)
            log.warning("%s ended (%s), restart in %.1f s", spec.name, _why(child), delay_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)

    def _restart_delay_s(self, child: Child) -> float:
        if child.was_ready and child.process is not None and child.process.returncode == 0:
            return 0.0  # it was asked to leave
        if time.monotonic() - child.started_at_s > _HEALTHY_AFTER_S:
            child.num_fast_deaths = 0
        child.num_fast_deaths += 1
        if not child.was_ready and child.num_fast_deaths >= len(_RESTART_DELAYS_S):
            raise StartFailed(
                f"{child.spec.name} ended {child.num_fast_deaths} times before it was ready ({_why(child)})",
                may_mend=True,
            )
        return _RESTART_DELAYS_S[min(child.num_fast_deaths, len(_RESTART_DELAYS_S)) - 1]

    async def _run_once(self, child: Child) -> None:
        child.epoch += 1
        child.failure = ""
        child.is_ready = False
        child.liveness.heard()
        child.started_at_s = time.monotonic()
        child.process = None
        try:
            started = await self._spawn(child)
        except (OSError, RuntimeError) as error:
            child.failure = _why_not_started(child.spec.name, error)
            return
        try:
            await self._run_on(child, started.lifeline, started.status_fd)
        finally:
            started.lifeline.close()

    async def _spawn(self, child: Child) -> StartedProcess:
        """Raises as `start_process`."""
        spec = child.spec
        waiting = (each for each in self.waiting if (each.kind, each.inherited_fds) == (spec.kind, spec.inherited_fds))
        started = next((each for each in waiting if not each.is_configured), None)
        if started is None:
            started = await start_process(spec.kind, spec.inherited_fds)
        child.process = started.process
        started.configure({**spec.config, "epoch": child.epoch})
        return started

    async def _run_on(self, child: Child, lifeline: Lifeline, read_fd: int) -> None:
        assert child.process is not None
        if self._stopping.is_set():  # too late for `_shut_down` to have seen it
            child.process.kill()
        child.deadline = asyncio.get_running_loop().call_later(self.start_timeout_s, self._start_took_too_long, child)
        watching = asyncio.create_task(self._watch(child, lifeline))
        try:
            await self._read_statuses(child, read_fd)
            await child.process.wait()
        finally:
            child.deadline.cancel()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self, child: Child, lifeline: Lifeline) -> None:
        """Ask for a sign of life again and again; end the child when none comes."""
        while True:
            await asyncio.sleep(self.pulse_interval_s)
            if not child.is_ready:
                continue
            if not child.liveness.ask():
                break
            lifeline.pulse()
        silent_s = child.liveness.num_unanswered * self.pulse_interval_s
        child.failure = f"its loop has not answered for {silent_s:.0f} s"
        log.error("ending %s (epoch %d): %s", child.spec.name, child.epoch, child.failure)
        self._kill([child])

    async def _read_statuses(self, child: Child, read_fd: int) -> None:
        """Until the child closes its end, which it does at the latest by ending."""
        reader = asyncio.StreamReader()
        pipe = os.fdopen(read_fd, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while line := await reader.readline():
                self._handle(child, msgspec.json.decode(line, type=Status))
        finally:
            transport.close()

    def _handle(self, child: Child, status: Status) -> None:
        child.liveness.heard()
        if status.kind == "alive":
            return
        if status.kind == "ready":
            child.was_ready = child.is_ready = True
            if child.deadline is not None:
                child.deadline.cancel()
        elif status.kind == "failed":
            child.failure = status.message
        elif status.kind == "kill":
            self._kill_worker(status)
        elif status.kind == "stop":
            self.stop_reason = status.message
            self.stop()
        self.on_status(child.spec.name, status)

    def _start_took_too_long(self, child: Child) -> None:
        assert child.process is not None
        child.failure = (
            f"{child.spec.name} was not ready {self.start_timeout_s:g} s after its start; if it only loads slowly, "
            "raise --start-timeout-s"
        )
        with contextlib.suppress(ProcessLookupError):
            child.process.kill()

    def _kill_worker(self, status: Status) -> None:
        """A gateway asks to end a worker that does not let go of blocks; an older incarnation is already gone."""
        target = self._children.get(status.worker_id)
        if target is not None and target.epoch == status.epoch and target.pid is not None:
            log.error("ending %s (epoch %d): %s", status.worker_id, status.epoch, status.message)
            target.process.kill()  # type: ignore[union-attr]  # pid is not None

    async def _shut_down(self, keepers: list[asyncio.Task[None]]) -> None:
        """Gateways first (they wait for running requests), then the node process (it waits for those of other boxes'
        gateways), then the workers."""
        await self._stopping.wait()
        self.on_stopping()
        await self._end([self._children[spec.name] for spec in self.gateways], self.shutdown_timeout_s + GATEWAY_END_S)
        await self._end([self._children[spec.name] for spec in self.nodes], self.shutdown_timeout_s + NODE_END_S)
        await self._end([self._children[spec.name] for spec in self.workers], 5.0)
        await asyncio.gather(*keepers, return_exceptions=True)

    def _cut_off(self) -> None:
        """The gateways end within GATEWAY_END_S of it."""
        children = [self._children[spec.name] for spec in self.gateways if spec.name in self._children]
        for child in children:
            if child.pid is not None:
                child.process.send_signal(CUT_OFF)  # type: ignore[union-attr]  # pid is not None
        loop = asyncio.get_running_loop()
        loop.call_later(GATEWAY_END_S, self._kill, children)

    async def _end(self, children: list[Child], deadline_s: float) -> None:
        running = [
            child.process for child in children if child.process is not None and child.process.returncode is None
        ]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                for process in running:
                    await process.wait()
        for process in running:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()

    def _kill_all(self) -> None:
        self._kill(self._children.values())

    def _kill(self, children: Iterable[Child]) -> None:
        for child in children:
            if child.process is not None and child.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.kill()


def _why_not_started(name: str, error: OSError | RuntimeError) -> str:
    found = scarcity(error)
    if found is None:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        program = (isinstance(error, OSError) and error.filename) or "Python"
        return f"no process can be started for {name} ({reason}); this user must be able to run {program}"
    return f"no process can be started for {name} ({found.reason}); {found.fix}"


def _why(child: Child) -> str:
    code = child.process.returncode if child.process is not None else None
    if child.failure:
        return child.failure
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"
