"""Progress at a terminal: one line, drawn when told, gone at the end, and nowhere else than at a terminal."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_openai_server import FakeOpenAI, served_in_thread
from told_progress import Told
from typer.testing import CliRunner

from relevo.cli.bench import app
from relevo.core.errors import HubUnavailable
from relevo.engine.loaders.hub import hub_folder
from relevo.telemetry.log import LineFormatter
from relevo.telemetry.progress import SILENT, TerminalLine, be_quiet, is_shown, progress_here, ticking

ERASE = "\r\x1b[2K"


class Screen(io.StringIO):
    @property
    def last(self) -> str:
        """What the line says, without how it looks."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue().rpartition(ERASE)[2])


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "90")
    return Screen()


def drawn(screen: Screen, clock: Clock) -> TerminalLine:
    return TerminalLine(screen, clock, is_open=lambda: True)


@pytest.fixture(autouse=True)
def as_loud_as_before() -> Iterator[None]:
    yield
    be_quiet(False)


def test_a_stretch_shows_how_much_is_done_and_what_is_left(screen: Screen) -> None:
    clock = Clock()
    line = drawn(screen, clock)
    line.begin("sending", 100, "requests")
    assert "0/100 requests" in screen.last and "left" not in screen.last
    clock.now_s += 5
    line.advance(25)
    assert screen.last.startswith("sending") and screen.last.endswith("25/100 requests  15 s left")
    clock.now_s += 5
    line.reach(50e6, 200e6)
    line.begin("weights", 2e8, "bytes")
    assert screen.last.endswith("0/200 MB")


def test_a_stretch_that_ends_by_time_counts_the_seconds_itself(screen: Screen) -> None:
    clock = Clock()
    line = drawn(screen, clock)
    line.begin_for("load", 90)
    clock.now_s += 20
    line.advance()  # of requests, which are not what it is measured by
    assert screen.last.endswith("20/90 s  1:10 left")
    clock.now_s += 100
    line.look()
    assert screen.last.endswith("90/90 s  0 s left")


def test_it_is_drawn_a_few_times_a_second_at_most(screen: Screen) -> None:
    """Red when every advance draws: a terminal flickers, and a benchmark measures its own picture."""
    clock = Clock()
    line = drawn(screen, clock)
    line.begin("sending", 1000)
    for _ in range(1000):
        clock.now_s += 0.001
        line.advance()
    assert screen.getvalue().count(ERASE) <= 5


def test_a_line_never_wraps_and_keeps_its_figures(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    line = drawn(screen, Clock())
    line.begin("a very long name " * 20, 10, "requests")
    assert len(screen.last) < 60 and screen.last.endswith("0/10 requests") and "…" in screen.last


def test_names_from_outside_do_not_steer_the_terminal(screen: Screen) -> None:
    line = drawn(screen, Clock())
    line.begin("a\x1b[2Jb\nc\x9b", 1)
    line.say("x\x1b]0;title\x07\r\n")
    assert set(re.findall(r"\x1b.", screen.getvalue())) == {"\x1b["}
    assert set(re.findall(r"\x1b\[([^a-zA-Z]*[a-zA-Z])", screen.getvalue())) <= {"2K", "0m", "2m"}
    assert "\x9b" not in screen.getvalue() and "\x07" not in screen.getvalue()
    assert screen.getvalue().count("\n") == 1


def test_the_end_leaves_nothing_and_the_cursor_was_never_hidden(screen: Screen) -> None:
    line = drawn(screen, Clock())
    line.begin("sending", 3)
    line.say("one thing to know")
    line.done()
    assert screen.getvalue().endswith(ERASE)
    assert "one thing to know\n" in screen.getvalue()
    assert "\x1b[?" not in screen.getvalue()
    line.look()
    assert screen.getvalue().endswith(ERASE)


def test_a_terminal_that_takes_nothing_is_not_waited_for(screen: Screen) -> None:
    """Ctrl-S stops a terminal. Red when the supervisor would stop with it."""
    line = TerminalLine(screen, Clock(), is_open=lambda: False)
    line.begin("sending", 3)
    assert screen.getvalue() == ""


async def test_an_event_loop_looks_at_the_clock_and_stops_when_all_is_over(screen: Screen) -> None:
    line = drawn(screen, Clock())
    line.done()
    async with ticking(line):
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1


def test_there_is_none_off_a_terminal_and_none_when_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_shown() and progress_here() is SILENT
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert is_shown()
    be_quiet()
    assert not is_shown() and progress_here() is SILENT
    be_quiet(False)
    monkeypatch.setenv("TERM", "dumb")
    assert not is_shown()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("plan", [["--request-rate", "500"], ["--concurrency", "2"]])
def test_a_load_test_tells_every_request_that_ended(plan: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when the line stops short of its total, or runs beyond it: warm-up requests are another stretch."""
    told = Told()
    monkeypatch.setattr("relevo.telemetry.progress.progress_here", lambda: told)
    small = ["--num-requests", "5", "--input-len", "10", "--output-len", "2", "--num-warmup", "2"]
    with served_in_thread(FakeOpenAI()) as url:
        assert CliRunner().invoke(app, ["serve", url, *small, *plan]).exit_code == 0
    assert told.stretches[0] == ("warming up", 2, 2)
    assert told.stretches[-1][0].startswith("sending") and told.stretches[-1][1:] == (5, 5)


def test_a_benchmark_in_a_pipe_writes_no_byte_to_standard_error() -> None:
    """Red when a line of progress reaches a log file."""
    small = ["--num-requests", "5", "--input-len", "10", "--output-len", "2", "--num-warmup", "1"]
    with served_in_thread(FakeOpenAI()) as url:
        result = CliRunner().invoke(app, ["serve", url, *small])
    assert (result.exit_code, result.stderr) == (0, "")


def test_ctrl_c_at_a_terminal_leaves_it_as_it_was() -> None:
    """A command with its line on a terminal of its own, until the line is seen; then Ctrl-C.

    Red when the cursor stays hidden, the line stays, a thread holds the process, or the table is not printed.
    """
    ours, theirs = pty.openpty()
    endless = ["bench", "transport", "--transport", "shm", "--bytes", "1MB", "--num-repeats", "100000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "relevo", *endless],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        start_new_session=True,
    )
    os.close(theirs)
    killer = threading.Timer(60.0, process.kill)  # of a command that does not end
    killer.start()
    try:
        output, is_told = b"", False
        for piece in pieces(ours):
            output += piece
            if not is_told and b"times" in output:
                process.send_signal(signal.SIGINT)
                is_told = True
        assert process.wait() == 130
    finally:
        killer.cancel()
        process.kill()
        os.close(ours)
    text = output.decode()
    assert "\x1b[?" not in text, "no mode of the terminal is changed"
    before, _, after = text.rpartition(ERASE)
    assert "handing over by shm" in before and "handing over" not in after
    assert "KV transport" in after


def pieces(fd: int) -> Iterator[bytes]:
    """Until the other end is closed."""
    while True:
        select.select([fd], [], [])
        try:
            piece = os.read(fd, 65536)
        except OSError:  # Linux says so of a terminal without the other end
            return
        if not piece:
            return
        yield piece


def test_downloads_draw_their_bars_at_a_terminal_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Red when the bars of a library reach a log file, or --quiet does not silence them."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    try:
        with pytest.raises(HubUnavailable):
            hub_folder("nobody/nothing", None, str(tmp_path))
        assert are_progress_bars_disabled()
        monkeypatch.setattr(sys, "stderr", Terminal())
        monkeypatch.setenv("TERM", "xterm")
        with pytest.raises(HubUnavailable):
            hub_folder("nobody/nothing", None, str(tmp_path))
        assert not are_progress_bars_disabled()
    finally:
        enable_progress_bars()


def test_a_log_line_takes_the_place_of_the_line() -> None:
    """As a worker writes to the terminal of its supervisor. Red when it is written behind what stands there."""
    formatter = LineFormatter("decode-0", is_coloured=True, line_start="\r\x1b[K")
    line = formatter.format(logging.makeLogRecord({"msg": "started\x1b[2J", "levelno": 20, "levelname": "INFO"}))
    assert re.fullmatch(r"\r\x1b\[K\d\d:\d\d:\d\d info decode-0 started\\x1b\[2J", line)
