"""A log that is not read holds up no process: lines are dropped and counted, and the end of a process does not wait."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from relevo.telemetry.log_sink import LineSink

PATIENCE_S = 120  # of the test; nothing here takes a second on an idle machine
LINE = "x" * 99


def tell(number: int) -> str:
    return f"{number} lines were dropped"


def read_all(fd: int) -> list[str]:
    with os.fdopen(fd, "rb") as stream:
        return stream.read().decode().splitlines()


@pytest.mark.parametrize("is_blocking", [True, False])
def test_lines_that_are_not_read_are_dropped_and_told_when_reading_goes_on(is_blocking: bool) -> None:
    """Red if `put` ever waits for the reader, or if what was dropped is not told."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, is_blocking)
    sink = LineSink(write_fd, tell, max_waiting_bytes=100_000)
    taken = [sink.put(LINE) for _ in range(20_000)]
    assert taken[0] and not all(taken)
    assert not sink.flush(0.0)
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(read_all(read_fd)))
    reader.start()
    assert sink.flush(PATIENCE_S)
    assert sink.put("later") and sink.flush(PATIENCE_S)
    os.close(write_fd)
    reader.join(PATIENCE_S)
    told = [int(line.split()[0]) for line in lines if line.endswith("lines were dropped")]
    assert lines.count(LINE) == sum(taken) and sum(told) == taken.count(False)
    assert lines[-1] == "later"


def test_a_reader_that_is_gone_is_no_reason_to_fail() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    sink = LineSink(write_fd, tell)
    assert sink.put(LINE) and sink.flush(PATIENCE_S)
    assert sink.put(LINE) and sink.flush(PATIENCE_S)
    os.close(write_fd)


STRANGERS_LINES = """
import logging
from relevo.telemetry.log import configure, num_not_written, say
configure("info", "gateway")
for number in range(3000):
    logging.getLogger("relevo").warning("%s %d", "x" * 500, number)
    say("y" * 500)
print(num_not_written()["repeated"] > 0, flush=True)
"""
UNCAUGHT = """
from relevo.telemetry.log import configure, say
configure("info", "worker")
for _ in range(10_000):
    say("y" * 500)
raise ValueError("the end")
"""


@pytest.mark.parametrize(("code", "status"), [(STRANGERS_LINES, 0), (UNCAUGHT, 1)], ids=["many lines", "uncaught"])
def test_a_process_whose_log_is_not_read_goes_on_and_ends(code: str, status: int) -> None:
    """Red if logging, a line for people, or the interpreter's own traceback waits for the reader."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.wait(PATIENCE_S) == status
    finally:
        process.kill()
    assert process.stdout is not None and process.stderr is not None
    if status == 0:
        assert process.stdout.read() == "True\n"
    process.stdout.close()
    process.stderr.close()


def test_an_uncaught_exception_is_in_the_log() -> None:
    code = "from relevo.telemetry.log import configure; configure('info', 'worker'); raise ValueError('the end')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    first, *_, last = done.stderr.splitlines()
    assert first.endswith("critical worker an exception ends this process") and last == "  ValueError: the end"
