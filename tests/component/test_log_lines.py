"""The log format, as somebody who greps it sees it."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from relevo.telemetry.limited_log import LINE_INTERVAL_S, LimitedLog
from relevo.telemetry.log import configure


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("relevo")
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers, root.level, ours.level = before[0], before[1], before[2]
    root.setLevel(before[1])  # drops cached decisions


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines_of(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_one_line_per_event_with_fields() -> None:
    stream = io.StringIO()
    configure("info", "worker-1", stream)
    log = logging.getLogger("relevo.engine")
    log.debug("not shown")
    log.info("joined\nas %s", "decode", extra={"epoch": 2, "why": "a restart"})
    (line,) = lines_of(stream)
    assert re.fullmatch(r"\d\d:\d\d:\d\d info worker-1 joined\\nas decode epoch=2 why='a restart'", line)


def test_libraries_speak_from_warning_up() -> None:
    stream = io.StringIO()
    configure("debug", "gateway", stream)
    logging.getLogger("asyncio").info("chatter")
    logging.getLogger("asyncio").warning("slow callback")
    logging.getLogger("relevo.gateway").debug("detail")
    assert [line.split(maxsplit=3)[1:] for line in lines_of(stream)] == [
        ["warning", "gateway", "slow callback"],
        ["debug", "gateway", "detail"],
    ]


def test_a_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("info", "a", first)
    configure("error", "b", second)
    logging.getLogger("relevo").warning("dropped")
    logging.getLogger("relevo").error("kept")
    assert lines_of(first) == []
    assert [line.split()[1:] for line in lines_of(second)] == [["error", "b", "kept"]]


def test_colour_on_a_terminal_only() -> None:
    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        configure("info", "p", stream)
        logging.getLogger("relevo").error("broken")
    assert "\x1b" not in plain.getvalue()
    assert terminal.getvalue().startswith("\x1b[31m")


def test_a_traceback_follows_its_line() -> None:
    stream = io.StringIO()
    configure("info", "p", stream)
    try:
        raise ValueError("cause")
    except ValueError:
        logging.getLogger("relevo").exception("step failed")
    lines = lines_of(stream)
    assert lines[0].endswith("error p step failed")
    assert lines[-1] == "  ValueError: cause"


def test_unknown_level_is_refused() -> None:
    with pytest.raises(KeyError):
        configure("loud", "p", io.StringIO())


def test_workers_do_not_pay_for_rich() -> None:
    """Red when the log of a worker starts to import a terminal library."""
    code = "import sys, relevo.telemetry.log as log; log.configure('info', 'w'); print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("hostile", ["\n00:00:00 info p forged", "\x1b[2J", "\r", "\x00", "\x9b2J", "\u2028", "\x7f"])
def test_what_strangers_send_neither_ends_a_line_nor_steers_a_terminal(hostile: str) -> None:
    """Red if a value, a message or an exception's text gets out of its line."""
    stream = io.StringIO()
    configure("info", "p", stream)
    log = logging.getLogger("relevo")
    log.warning("path %s", f"/a{hostile}b", extra={"value": f"c{hostile}d"})
    try:
        raise ValueError(f"e{hostile}f")
    except ValueError:
        log.exception("failed")
    text = stream.getvalue()
    first, second, *traceback = text.split("\n")[:-1]
    assert " p path /a" in first and second.endswith("error p failed")
    assert all(line.startswith("  ") for line in traceback)
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or c == "\u2028" for c in text.replace("\n", ""))


def test_a_line_is_bounded() -> None:
    stream = io.StringIO()
    configure("info", "p", stream)
    logging.getLogger("relevo").warning("path %s", "a" * 1_000_000)
    assert len(stream.getvalue()) < 10_000


def test_a_place_that_logs_without_end_is_held_back_and_says_so() -> None:
    stream = io.StringIO()
    configure("debug", "p", stream)
    log = logging.getLogger("relevo")
    for number in range(1000):
        log.warning("bad request %d", number)
        log.debug("detail")
    lines = lines_of(stream)
    assert sum("bad request" in line for line in lines) < 200
    assert sum("detail" in line for line in lines) == 1000


def test_lines_that_strangers_cause_are_one_per_kind_and_interval_and_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Red if a stranger can write the log full, or if what was left out is not said."""
    now_s = [100.0]
    limited = LimitedLog(logging.getLogger("relevo.test"), lambda: round(now_s[0] * 1e9))
    with caplog.at_level(logging.WARNING, "relevo"):
        for _ in range(1000):
            limited.warning("garbage", "it spoke garbage")
        limited.warning("late", "it came late")
        now_s[0] += LINE_INTERVAL_S
        limited.warning("garbage", "it spoke garbage")
        now_s[0] += LINE_INTERVAL_S
        limited.warning("garbage", "it spoke garbage")
    assert [record.getMessage() for record in caplog.records] == [
        "it spoke garbage",
        "it came late",
        "it spoke garbage (999 more since the last such line)",
        "it spoke garbage",
    ]
