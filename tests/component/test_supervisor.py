"""The supervisor and its children, which are small programs here."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relevo.build.configs import GatewayConfig
from relevo.cli import child
from relevo.supervisor import ChildSpec, StartFailed, Supervisor
from relevo.wire.child_process import python_command
from relevo.wire.started_process import start_process
from relevo.wire.status import Status


async def test_a_stop_while_a_child_is_being_started_ends_that_child_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when only children are ended that were there when the stop began: it would wait for the late one for ever."""
    start = asyncio.create_subprocess_exec
    processes: list[asyncio.subprocess.Process] = []
    supervisor = Supervisor(
        workers=[],
        gateways=[ChildSpec(name="gateway-0", kind="gateway", config={})],
        start_timeout_s=600.0,
        shutdown_timeout_s=0.0,
    )

    async def start_late(*_: Any, **options: Any) -> asyncio.subprocess.Process:
        supervisor.stop()
        for _turn in range(5):  # the stop has looked at who is there
            await asyncio.sleep(0)
        processes.append(await start("sleep", "600", **options))
        return processes[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_late)
    running = asyncio.create_task(supervisor.run())
    try:
        async with asyncio.timeout(20.0):
            await running
        assert processes[0].returncode is not None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def with_worker(worker_id: str, start_timeout_s: float) -> Supervisor:
    workers = [ChildSpec(name=worker_id, kind="worker", config={})]
    return Supervisor(workers=workers, gateways=[], start_timeout_s=start_timeout_s, shutdown_timeout_s=0.0)


async def test_a_first_start_that_never_ends_is_given_up_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    start = asyncio.create_subprocess_exec
    monkeypatch.setattr(asyncio, "create_subprocess_exec", lambda *_, **options: start("sleep", "600", **options))
    async with asyncio.timeout(20.0):
        with pytest.raises(StartFailed, match=r"decode-0 was not ready 0\.2 s after its start.*--start-timeout-s"):
            await with_worker("decode-0", 0.2).run()


async def test_a_worker_that_hangs_while_it_starts_again_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when only a worker that has said hello is watched: one that hangs before would be missing for ever."""
    start = asyncio.create_subprocess_exec
    processes: list[asyncio.subprocess.Process] = []
    supervisor = with_worker("decode-0", 600.0)

    async def start_next(*_: Any, **options: Any) -> asyncio.subprocess.Process:
        status_fd = options["pass_fds"][-1]
        programs = {0: f"""echo '{{"kind": "ready"}}' >&{status_fd}""", 1: "exec sleep 600"}
        if len(processes) == 1:
            supervisor.start_timeout_s = 0.2  # now that it was ready once, at whatever pace
        if len(processes) == 2:
            supervisor.stop()
        processes.append(await start("bash", "-c", programs.get(len(processes), "exit 0"), **options))
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_next)
    async with asyncio.timeout(20.0):
        await supervisor.run()
    assert [process.returncode for process in processes[:2]] == [0, -9]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BlockingIOError(errno.EAGAIN, ""), r"Resource temporarily unavailable\); .*pids\.max"),
        (OSError(errno.ENOMEM, ""), r"Cannot allocate memory\); .*memory"),
        (RuntimeError("can't start new thread"), r"Resource temporarily unavailable\); .*ulimit -u"),
        (OSError(errno.EMFILE, ""), r"Too many open files\); .*ulimit -n"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/x/python"),
            r"Permission denied\); .* able to run /x/python$",
        ),
    ],
)
async def test_a_process_that_cannot_be_started_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    """Red when a limit of processes ends a start with a traceback; and nothing stays open."""

    async def refuse(*_: Any, **__: Any) -> asyncio.subprocess.Process:
        raise error

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    num_open = num_open_files()
    with pytest.raises(StartFailed, match=r"^no process can be started for decode-0 \(" + words):
        await with_worker("decode-0", 600.0).run()
    assert num_open_files() == num_open


@pytest.mark.parametrize("was_ready", [False, True])
def test_a_process_without_room_to_start_says_so_once(monkeypatch: pytest.MonkeyPatch, was_ready: bool) -> None:
    """Red when a limit of threads is a traceback per try; one that had served shows where it came from."""
    read_fd, write_fd = os.pipe()

    def run(config: GatewayConfig, report: child.StatusPipe) -> None:
        if was_ready:
            report(Status(kind="ready"))
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(sys, "argv", ["child", "gateway", "0"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    monkeypatch.setattr(child, "end_with_parent", lambda fd: None)
    monkeypatch.setattr(child.signal, "signal", lambda *_: None)
    monkeypatch.setattr(child.gc, "disable", lambda: None)
    monkeypatch.setattr(child.msgspec.json, "decode", lambda *_, **__: SimpleNamespace(status_fd=write_fd))
    monkeypatch.setattr("relevo.build.gateway.run_gateway", run)
    with pytest.raises(RuntimeError if was_ready else SystemExit):
        child.main()
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as told:
        said = told.read()
    assert (b"gateway cannot be started (Resource temporarily unavailable); allow more processes" in said) != was_ready


async def test_a_process_that_cannot_be_started_again_is_tried_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a moment without room for a process ends the server, which runs on with what it has."""
    start = asyncio.create_subprocess_exec
    supervisor = with_worker("decode-0", 600.0)
    num_tries = 0

    async def start_next(*_: Any, **options: Any) -> asyncio.subprocess.Process:
        nonlocal num_tries
        num_tries += 1
        if num_tries == 2:
            raise BlockingIOError(errno.EAGAIN, "")
        if num_tries == 3:
            supervisor.stop()
        return await start("bash", "-c", f"""echo '{{"kind": "ready"}}' >&{options["pass_fds"][-1]}""", **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_next)
    async with asyncio.timeout(20.0):
        await supervisor.run()
    assert num_tries == 3


async def test_a_child_that_does_not_answer_is_ended_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: red when only workers are watched, or only while a gateway is connected to them."""
    start = asyncio.create_subprocess_exec
    processes: list[asyncio.subprocess.Process] = []
    gateway = ChildSpec(name="gateway", kind="gateway", config={}, heartbeat_timeout_s=2.0)

    def on_status(name: str, status: Status) -> None:
        if status.kind == "ready" and len(processes) == 2:
            supervisor.stop()

    supervisor = Supervisor(
        workers=[],
        gateways=[gateway],
        start_timeout_s=600.0,
        shutdown_timeout_s=0.0,
        on_status=on_status,
        pulse_interval_s=0.01,
    )

    async def start_silent(*_: Any, **options: Any) -> asyncio.subprocess.Process:
        says = f"""echo '{{"kind": "ready"}}' >&{options["pass_fds"][-1]}; exec sleep 600"""
        processes.append(await start("bash", "-c", says, **options))
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_silent)
    async with asyncio.timeout(60.0):
        await supervisor.run()
    assert processes[0].returncode == -9
    assert len(processes) >= 2


async def test_the_listening_socket_is_let_go_of_before_the_gateways_are_asked_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Red when the supervisor keeps its copy: connections are taken that nobody answers."""
    start = asyncio.create_subprocess_exec
    processes: list[asyncio.subprocess.Process] = []
    still_running: list[bool] = []
    supervisor = Supervisor(
        workers=[],
        gateways=[ChildSpec(name="gateway", kind="gateway", config={})],
        start_timeout_s=600.0,
        shutdown_timeout_s=0.0,
        on_status=lambda name, status: supervisor.stop(),
        on_stopping=lambda: still_running.append(processes[0].returncode is None),
    )

    async def start_ready(*_: Any, **options: Any) -> asyncio.subprocess.Process:
        says = f"""echo '{{"kind": "ready"}}' >&{options["pass_fds"][-1]}; exec sleep 600"""
        processes.append(await start("bash", "-c", says, **options))
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_ready)
    async with asyncio.timeout(60.0):
        await supervisor.run()
    assert still_running == [True]
    assert processes[0].returncode == -15


_READER = """
import json, os, sys, time
config = json.load(sys.stdin)
os.write(config["status_fd"], json.dumps({"kind": "note", "epoch": config["epoch"]}).encode() + b"\\n")
time.sleep(600)
"""


async def test_a_process_that_waits_becomes_the_first_child_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when what was started ahead is started twice, or told nothing, or stays when it is not needed."""
    start, told, has_told = asyncio.create_subprocess_exec, [], asyncio.Event()

    def on_status(name: str, status: Status) -> None:
        told.append((name, status.epoch))
        has_told.set()

    async def start_reader(*_: Any, **options: Any) -> asyncio.subprocess.Process:
        return await start(sys.executable, "-I", "-S", "-c", _READER, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_reader)
    num_open = num_open_files()
    needed, spare = await start_process("worker", ()), await start_process("gateway", ())
    supervisor = with_worker("decode-0", 600.0)
    supervisor.waiting, supervisor.on_status = [spare, needed], on_status
    running = asyncio.create_task(supervisor.run())
    async with asyncio.timeout(60.0):
        await has_told.wait()
        supervisor.stop()
        await running
        assert (needed.process.returncode, spare.process.returncode) == (-signal.SIGTERM, None)
        await spare.end()
        await spare.end()
    assert spare.process.returncode == -signal.SIGKILL
    assert told == [("decode-0", 1)]
    assert num_open_files() == num_open


def test_a_process_that_is_told_nothing_ends_without_a_word() -> None:
    """Red when a server that cannot be planned leaves a traceback of the gateway that was to come."""
    life_fd, other_end = os.pipe()
    command = python_command("relevo.cli.child", "gateway", str(life_fd))
    run = subprocess.run(command, stdin=subprocess.DEVNULL, pass_fds=(life_fd,), capture_output=True, check=False)
    os.close(life_fd)
    os.close(other_end)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")
