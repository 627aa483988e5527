"""The command `relevo top`: text for a pipe, a screen for a terminal, what it asks, what it says of mistakes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
import told_states as told
from test_why_cli import IN_LINE, REQUESTS
from typer.testing import CliRunner

from relevo.cli.main import make_app
from relevo.cli.timeline_screen import Look, timeline_lines
from relevo.cli.top import NotDone, ServerActions
from relevo.client.server import OpenAIServer
from relevo.core.errors import RelevoError
from relevo.gateway.console.state import State

ADMIN = "sk-admin"


@contextlib.contextmanager
def server(state: State | None = None) -> Iterator[tuple[str, list[str]]]:
    """Its URL, and what it was asked. Its stream has one event, and goes on until the client leaves."""
    asked: list[str] = []
    over = threading.Event()
    body = msgspec.json.encode(state or told.state())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"GET {self.path}")
            if self.path == "/v1/state/stream":
                self.answer(200, b"data: " + body + b"\n\n", is_whole=False)
                over.wait()
            elif self.path == "/v1/requests/slow-1":
                self.answer(200, json.dumps(REQUESTS["slow-1"]).encode())
            elif self.path == "/v1/state":
                self.answer(200, body)
            else:
                self.answer(404, b"{}")

        def do_POST(self) -> None:
            asked.append(f"POST {self.path}")
            if self.headers.get("authorization") == f"Bearer {ADMIN}":
                self.answer(202, b"{}")
            else:
                self.answer(403, b'{"error": {"message": "This needs an admin\\u001b key."}}')

        def answer(self, status: int, body: bytes, *, is_whole: bool = True) -> None:
            self.send_response(status)
            if is_whole:
                self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}", asked
    finally:
        over.set()
        listening.shutdown()
        listening.server_close()


def top(*arguments: str) -> list[str]:
    result = CliRunner().invoke(make_app("top"), ["top", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_a_pipe_gets_every_row_once_as_text() -> None:
    state = told.state(workers=tuple(told.worker(f"decode-{number}") for number in range(30)))
    with server(state) as (url, asked):
        lines = top(url)
    assert asked == ["GET /v1/state"]
    assert lines[0].startswith("relevo 0.1.0  qwen2.5-coder-0.5b 2p2d")
    assert [line.split()[1] for line in lines if line.startswith("● ")] == [f"decode-{n}" for n in range(30)]
    for head in ("Workers: 30", "Requests: 23", "Sessions: 40", "Decisions: 4"):
        assert head in lines
    longest = "A prompt of 9,210 tokens of others shared its steps: the worst gap took 0.84 s."
    assert any(line.endswith(longest) for line in lines), "nothing is cut"
    assert not any("\x1b" in line for line in lines)


def test_what_is_wrong_is_said_above_the_tables() -> None:
    down = told.worker("decode-0", is_ready=False, why_not_ready="draining", num_running=3)
    with server(told.state(workers=(down, told.worker("decode-1")))) as (url, _):
        lines = top(url)
    assert lines[3] == "! decode-0: draining"
    assert "○ decode-0 dec  draining (3 decode there)" in lines


def test_a_reader_that_has_enough_ends_it_quietly() -> None:
    state = told.state(sessions=tuple(told.session(number) for number in range(5000)))
    with server(state) as (url, _):
        command = [sys.executable, "-m", "relevo", "top", url]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert running.stdout is not None
        assert running.stdout.readline().startswith("relevo 0.1.0")
        running.stdout.close()
        assert running.stderr is not None
        assert (running.stderr.read(), running.wait(60)) == ("", 0)
        running.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["http://127.0.0.1:9"], "no server answers; is the server running there?"),
        (["{url}/elsewhere"], "has no /v1/state: it is not a Relevo server"),
        (["nonsense://x"], "nonsense"),
        (["{url}", "--api-key", "a\nb"], "characters that no header takes"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], words: str) -> None:
    with server() as (url, _), pytest.raises(RelevoError) as raised:
        top(*(argument.replace("{url}", url) for argument in arguments))
    assert words in raised.value.message
    assert "\n" not in raised.value.message


async def test_why_is_what_relevo_why_tells() -> None:
    with server() as (url, _):
        async with OpenAIServer(url) as client:
            text = await ServerActions(client).why("slow-1", 80)
            with pytest.raises(NotDone, match="knows no request gone␛ any more"):
                await ServerActions(client).why("gone\x1b", 80)
    lines = [line.rstrip() for line in timeline_lines(REQUESTS["slow-1"], IN_LINE, Look(width=80))]
    assert [line.rstrip() for line in text.plain.split("\n")] == lines


async def test_a_drain_is_asked_for_with_the_key_and_a_refusal_is_the_servers_own() -> None:
    with server() as (url, asked):
        async with OpenAIServer(url, api_key=ADMIN) as client:
            await ServerActions(client).drain("a/b")
        async with OpenAIServer(url) as client:
            with pytest.raises(NotDone, match="This needs an admin␛ key; start relevo top with an admin key"):
                await ServerActions(client).drain("decode-0")
    assert asked == ["POST /admin/drain/a%2Fb", "POST /admin/drain/decode-0"]


def test_at_a_terminal_the_command_draws_and_leaves_on_q() -> None:
    """Red when the terminal is not given back as it was, or where colours are drawn that nobody wants."""
    with server() as (url, asked):
        pid, terminal = pty.fork()
        if pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            os.environ.update(TERM="xterm-16color", NO_COLOR="1")
            os.environ.pop("COLORTERM", None)
            os.execv(sys.executable, [sys.executable, "-m", "relevo", "top", url])
        try:
            shown = _read_until(terminal, "decode-1 is 2.4 times as slow as decode-0")
            _read_until(terminal, "Quit")
            os.write(terminal, b"q")
            shown += _read_until(terminal, "\x1b[?1049l")
            _read_until(terminal, "")
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        finally:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if Path(f"/proc/{pid}").exists() and os.waitpid(pid, os.WNOHANG) == (0, 0):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            os.close(terminal)
    assert "\x1b[?1049h" in shown
    assert not {"\x1b[31m", "\x1b[33m", "\x1b[38;"} & {shown[at : at + 5] for at in range(len(shown))}, "NO_COLOR"
    assert asked[0] == "GET /v1/state"


def _read_until(terminal: int, text: str) -> str:
    """What is shown up to there; without a text: to its end."""
    shown = ""
    while not text or text not in shown:
        try:
            received = os.read(terminal, 65536)
        except OSError:
            received = b""
        if not received:
            if text:
                pytest.fail(f"ended before {text!r} was shown:\n{shown!r}")
            break
        shown += received.decode(errors="replace")
    return shown
