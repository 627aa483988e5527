"""The log format, as somebody who greps it sees it."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

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
    assert lines[-1] == "ValueError: cause"


def test_unknown_level_is_refused() -> None:
    with pytest.raises(KeyError):
        configure("loud", "p", io.StringIO())


def test_workers_do_not_pay_for_rich() -> None:
    """Red when the log of a worker starts to import a terminal library."""
    code = "import sys, relevo.telemetry.log as log; log.configure('info', 'w'); print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
