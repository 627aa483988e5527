"""The life of a server that a measurement starts: ready, ended, and never left behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from relevo.bench.server_process import ServerProcess, free_port, serve_command
from relevo.core.errors import StartError

READY_SERVER = """
import http.server, signal, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

# set either way: a shell that runs the tests in the background passes on an ignored SIGINT
signal.signal(signal.SIGINT, signal.SIG_IGN if "stubborn" in sys.argv else signal.default_int_handler)
print("listening", flush=True)
try:
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
except KeyboardInterrupt:
    print("ended cleanly", flush=True)
"""


def is_alive(pid: int | None) -> bool:
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def server(tmp_path: Path, *arguments: str, script: str = READY_SERVER) -> ServerProcess:
    port = free_port()
    command = [sys.executable, "-c", script, str(port), *arguments]
    return ServerProcess(command, port, tmp_path / "server.log", stop_timeout_s=5.0)


async def test_a_server_is_ready_inside_the_block_and_gone_after_it(tmp_path: Path) -> None:
    async with server(tmp_path) as running:
        assert is_alive(running.pid)
        assert running.url.startswith("http://127.0.0.1:")
    assert not is_alive(running.pid)
    assert "ended cleanly" in (tmp_path / "server.log").read_text().split("\n")
    await running.stop()  # idempotent


async def test_a_server_that_ignores_sigint_is_killed(tmp_path: Path) -> None:
    stubborn = server(tmp_path, "stubborn")
    stubborn.stop_timeout_s = 0.2
    async with stubborn:
        pass
    assert not is_alive(stubborn.pid)
    assert "ended cleanly" not in (tmp_path / "server.log").read_text()


async def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    broken = server(tmp_path, script="import sys; print('no such model'); sys.exit(3)")
    with pytest.raises(StartError, match=r"(?s)status 3.*no such model"):
        await broken.start()


async def test_a_server_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    silent = server(tmp_path, script="import signal; signal.pause()")
    silent.start_timeout_s = 0.0
    with pytest.raises(StartError, match="not ready after 0 s"):
        await silent.start()
    assert not is_alive(silent.pid)


def test_serve_command_names_interpreter_model_and_port() -> None:
    command = serve_command("some/model", 8123, ("--topology", "1p1d"))
    assert command[:6] == [sys.executable, "-P", "-m", "relevo", "serve", "some/model"]
    assert command[command.index("--port") + 1] == "8123"
    assert command[-2:] == ["--topology", "1p1d"]
    assert "some/model" not in serve_command(None, 1)
