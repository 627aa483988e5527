"""`relevo chat` as a person uses it: at a terminal (a pseudo terminal here) and through a pipe.

The server is scripted. Nothing is timed: each step waits for what the screen must show next.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_openai_server import FakeOpenAI, served_in_thread

PROMPT = ">>> "
DEADLINE_S = 60.0


def run_piped(text: bytes, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "relevo", "chat", *arguments],
        input=text,
        capture_output=True,
        env={**os.environ, **(env or {})},
        timeout=DEADLINE_S,
        check=False,
    )


class Terminal:
    """A child at a terminal of 80 columns."""

    def __init__(self, *arguments: str, env: dict[str, str]) -> None:
        pid, self._fd = pty.fork()
        if pid == 0:
            os.environ.update(env, COLUMNS="80", TERM="xterm")
            os.execv(sys.executable, [sys.executable, "-m", "relevo", "chat", *arguments])
        self._pid = pid
        self.screen = ""
        self._seen = 0

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def press_ctrl_c(self) -> None:
        """Once it waits: what comes between readline's prompt and its waiting is noticed with the next key."""
        while Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            os.sched_yield()
        self.type("\x03")

    def wait_for(self, text: str) -> str:
        """What was shown since the last wait, up to and with `text`."""
        while text not in self.screen[self._seen :]:
            with contextlib.suppress(OSError):
                if received := os.read(self._fd, 65536):
                    self.screen += received.decode(errors="replace")
                    continue
            pytest.fail(f"ended before {text!r} was shown:\n{self.screen}")
        end = self.screen.index(text, self._seen) + len(text)
        shown, self._seen = self.screen[self._seen : end], end
        return shown

    def exit_status(self) -> int:
        with contextlib.suppress(OSError):
            while received := os.read(self._fd, 65536):
                self.screen += received.decode(errors="replace")
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def close(self) -> None:
        with contextlib.suppress(OSError, ChildProcessError):
            if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
        os.close(self._fd)


@contextlib.contextmanager
def at_a_terminal(url: str, home: Path, *arguments: str) -> Iterator[Terminal]:
    env = {"HOME": str(home), "XDG_STATE_HOME": "", "NO_COLOR": "1"}
    terminal = Terminal(url, "--set", "max_tokens=3", *arguments, env=env)
    try:
        terminal.wait_for(PROMPT)
        yield terminal
    finally:
        terminal.close()


def test_a_pipe_gets_the_plain_answer() -> None:
    fake = FakeOpenAI(text="\x1b[2J ü")
    with served_in_thread(fake) as url:
        run = run_piped(b"hi\nthere\n", url, "--set", "max_tokens=2", "--system", "be brief")
    assert (run.returncode, run.stdout.decode(), run.stderr) == (0, "\x1b[2J ü\x1b[2J ü\n", b"")
    contents = [message["content"] for message in fake.bodies[0]["messages"]]
    assert contents == ["be brief", "hi\nthere"]


@pytest.mark.parametrize(
    ("text", "arguments", "status", "told"),
    [
        (b"", ["{url}"], 2, "standard input is empty"),
        (b"\xff\xfe", ["{url}"], 2, "not UTF-8"),
        (b"hi", ["127.0.0.1:9"], 2, "no server answers at 127.0.0.1:9|no server answers at http://127.0.0.1:9"),
        (b"hi", ["other", "--url", "{url}"], 2, "does not serve 'other'; it serves fake-model"),
        (b"hi", ["{url}", "--set", "temperature=hot"], 2, "temperature is a number, not 'hot'"),
        (b"hi", ["{url}", "--url", "{url}"], 2, "both say where the server is"),
        (b"hi", ["{url}", "--api-key", "a\nb"], 2, "characters that no header takes"),
    ],
)
def test_a_mistake_is_one_sentence(text: bytes, arguments: list[str], status: int, told: str) -> None:
    with served_in_thread(FakeOpenAI()) as url:
        run = run_piped(text, *(argument.replace("{url}", url) for argument in arguments))
    assert (run.returncode, run.stdout) == (status, b"")
    assert re.search(told, run.stderr.decode())
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("fake", "told", "answered"),
    [
        (FakeOpenAI(statuses=[429]), "refused (HTTP 429): scripted 429", ""),
        (FakeOpenAI(error_event_after=1), "engine died", " t0\n"),
        (FakeOpenAI(end_stream_after=1), "ended before the answer was complete", " t0\n"),
        (FakeOpenAI(reset_after=1), "before the answer was complete", " t0\n"),
    ],
)
def test_an_answer_that_fails_is_not_taken_for_whole(fake: FakeOpenAI, told: str, answered: str) -> None:
    with served_in_thread(fake) as url:
        run = run_piped(b"hi", url, "--set", "max_tokens=3")
    assert (run.returncode, run.stdout.decode()) == (1, answered)
    assert told in run.stderr.decode() and len(run.stderr.splitlines()) == 1


def test_of_several_keys_the_first_is_sent() -> None:
    with served_in_thread(FakeOpenAI(api_key="one")) as url:
        taken = run_piped(b"hi", url, "--set", "max_tokens=1", env={"RELEVO_API_KEY": "one,two"})
        refused = run_piped(b"hi", url, "--set", "max_tokens=1", env={"RELEVO_API_KEY": "two"})
    assert taken.returncode == 0
    assert refused.returncode == 2 and b"--api-key" in refused.stderr


def test_a_conversation_at_a_terminal(tmp_path: Path) -> None:
    fake = FakeOpenAI(
        text="\x1b]0;owned\x07 ok", num_cached_tokens=2, headers={"x-relevo-route": "decode d-0: a | prompt p-0: b"}
    )
    with served_in_thread(fake) as url, at_a_terminal(url, tmp_path) as terminal:
        terminal.type("first question\r")
        shown = terminal.wait_for(PROMPT)
        assert "␛]0;owned␇ ok" in shown and "\x1b]0" not in shown
        assert re.search(r"TTFT \d+ ms · 3 tokens.* · prompt 7, 2 cached · p-0 → d-0", shown)
        terminal.type("/system be brief\r")
        terminal.wait_for(PROMPT)
        terminal.type("second \\\r")
        terminal.wait_for("... ")
        terminal.type("question\r")
        terminal.wait_for(PROMPT)
        terminal.type("/why\r")
        assert "prompt p-0: b" in terminal.wait_for(PROMPT)
        terminal.type("/reset\r")
        terminal.wait_for(PROMPT)
        terminal.type("third\r")
        terminal.wait_for(PROMPT)
        terminal.type("\x04")
        assert terminal.exit_status() == 0
    said = [[message["content"] for message in body["messages"]] for body in fake.bodies]
    assert said[1] == ["be brief", "first question", fake.text * 3, "second \nquestion"]
    assert said[2] == ["be brief", "third"]
    kept = tmp_path / ".local/state/relevo/chat_history"
    assert "first question" in kept.read_text() and kept.stat().st_mode & 0o077 == 0


def test_ctrl_c_stops_an_answer_and_a_second_one_leaves(tmp_path: Path) -> None:
    fake = FakeOpenAI(hang_after=2)
    with served_in_thread(fake) as url, at_a_terminal(url, tmp_path, "--no-history") as terminal:
        terminal.type("go on for ever\r")
        terminal.wait_for("t1")
        terminal.press_ctrl_c()
        terminal.wait_for("Stopped")
        terminal.wait_for(PROMPT)
        assert fake.client_left.wait(DEADLINE_S)
        fake.hang_after = None
        terminal.type("again\r")
        terminal.wait_for(PROMPT)
        terminal.press_ctrl_c()
        terminal.wait_for("Ctrl-C again leaves")
        terminal.wait_for(PROMPT)
        terminal.press_ctrl_c()
        assert terminal.exit_status() == 0
    assert [message["content"] for message in fake.bodies[1]["messages"]] == ["go on for ever", " t0 t1", "again"]
    assert not (tmp_path / ".local").exists()
