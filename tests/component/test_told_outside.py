"""Probes and the service manager hear of a supervisor's processes, whatever strangers do at the port.

Red when a stranger can keep a probe from its answer, which would have the pod killed, when children are told systemd's
socket, and when `READY=1` is said before every process is ready.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from relevo.build import outside
from relevo.build.outside import ServiceManager, answered_meanwhile, open_probe_port, told_outside
from relevo.core.errors import SettingsError


@dataclass
class Processes:
    waiting: list[str] = field(default_factory=lambda: ["decode-0"])
    is_stopping: bool = False

    def waited_for(self) -> list[str]:
        return self.waiting


@asynccontextmanager
async def probed(processes: Processes) -> AsyncIterator[int]:
    listener = open_probe_port("127.0.0.1", free_port())
    assert listener is not None
    port = listener.getsockname()[1]
    async with told_outside(processes, listener, {}):
        yield port


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def ask(port: int, head: bytes) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + b"\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(10.0):
        said = await reader.read()
    writer.close()
    return said.decode()


async def test_ready_follows_the_processes_and_live_does_not() -> None:
    processes = Processes()
    async with probed(processes) as port:
        assert "503" in (said := await ask(port, b"GET /ready HTTP/1.1")) and "decode-0" in said
        assert (await ask(port, b"GET /live HTTP/1.1")).startswith("HTTP/1.1 200")
        processes.waiting = []
        assert (await ask(port, b"GET /ready?verbose HTTP/1.1")).startswith("HTTP/1.1 200")
        processes.is_stopping = True
        assert "being stopped" in await ask(port, b"GET /ready HTTP/1.1")
        assert (await ask(port, b"GET /live HTTP/1.1")).startswith("HTTP/1.1 200")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /live HTTP/1.1", "405"),
        (b"GET /metrics HTTP/1.1", "404"),
        (b"\x16\x03\x01", "405"),
        (b"", "405"),
        (b"GET", "404"),
    ],
)
async def test_what_is_no_probe_is_refused(head: bytes, status: str) -> None:
    async with probed(Processes()) as port:
        assert (await ask(port, head)).split()[1] == status


async def test_strangers_that_stay_keep_no_probe_from_its_answer() -> None:
    """More than there may be, none of which ever says a word."""
    async with probed(Processes()) as port:
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(outside._MAX_PROBES + 20)]
        assert (await ask(port, b"GET /live HTTP/1.1")).startswith("HTTP/1.1 200")
        for _, writer in strangers:
            writer.close()


async def test_a_head_without_end_is_closed() -> None:
    async with probed(Processes()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /live HTTP/1.1\r\nX: " + b"x" * 70_000)
        async with asyncio.timeout(10.0):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


def test_a_port_that_is_taken_is_named_with_its_flag() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingsError, match="--probe-port"):
            open_probe_port("127.0.0.1", taken.getsockname()[1])
    assert open_probe_port("127.0.0.1", None) is None


@pytest.fixture
def manager(tmp_path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(tmp_path / "notify"))
    listening.setblocking(False)
    return listening


async def told(manager: socket.socket, word: str) -> str:
    """Everything until that word is said."""
    heard = ""
    async with asyncio.timeout(20.0):
        while word not in heard:
            heard += (await asyncio.get_running_loop().sock_recv(manager, 4096)).decode() + "\n"
    return heard


async def test_systemd_is_told_when_all_are_ready_and_fed_meanwhile(manager: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "300000", "WATCHDOG_PID": str(os.getpid())}
    processes = Processes()
    async with told_outside(processes, None, environ):
        first = await told(manager, "WATCHDOG=1")
        assert "STATUS=not ready: decode-0" in first and "READY=1" not in first
        processes.waiting = []
        assert "STATUS=ready" in await told(manager, "READY=1")
        processes.is_stopping = True
        await told(manager, "STOPPING=1")
    manager.close()
    assert environ == {}, "children would be told them too"


def test_a_watchdog_of_another_process_is_not_fed() -> None:
    found = ServiceManager.named_in({"NOTIFY_SOCKET": "@relevo", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"})
    assert found == ServiceManager("@relevo", None)
    ServiceManager("@relevo-nothing-listens-here", None).tell("READY=1")
    assert ServiceManager.named_in({}) is None


async def start(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "relevo", *arguments, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60.0):
        _, said = await process.communicate()
    assert process.returncode is not None and process.returncode != -signal.SIGKILL
    return process.returncode, said.decode()


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--topology", "3p",), 2),  # a person has to change it
        (("--database-url", "postgresql://user@127.0.0.1:9/name"), 75),  # it may be there in a minute
    ],
)  # fmt: skip
async def test_a_service_manager_sees_by_the_status_whether_a_restart_may_help(
    arguments: tuple[str, ...], status: int
) -> None:
    ended, said = await start("serve", "fake", "--port", "0", *arguments)
    assert (ended, said.count("relevo: ")) == (status, 1), said


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_probes_that_cannot_be_answered_end_the_wait_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if it waits for ever for a thread that is gone."""

    @asynccontextmanager
    async def refused(*_: object) -> AsyncIterator[None]:
        raise OSError("no more descriptors")
        yield

    monkeypatch.setattr(outside, "told_outside", refused)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(OSError, match="no more descriptors"),
        answered_meanwhile("a head at h:7000", listener),
    ):
        pass


def test_one_that_waits_for_others_is_alive_and_says_for_whom() -> None:
    """Red if a node whose head is late counts as dead: it would be started again and again, and so would its group."""
    listener = open_probe_port("127.0.0.1", free_port())
    assert listener is not None
    port = listener.getsockname()[1]
    with answered_meanwhile("a head at h:7000", listener):
        assert get(port, "/live")[0] == 200
        status, said = get(port, "/ready")
        assert (status, json.loads(said)["reason"]) == (503, "not ready: a head at h:7000")
    assert not any(thread.name == "probes" for thread in threading.enumerate())

    async def go_on() -> str:
        async with told_outside(Processes([]), listener, {}):
            return await ask(port, b"GET /ready HTTP/1.1")

    assert " 200 " in asyncio.run(go_on()), "the port is the supervisor's from then on"
    with answered_meanwhile("a head at h:7000", None):
        pass
