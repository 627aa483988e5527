"""Boxes of a cluster as commands on the loopback of this machine, each with a log in the folder of the test."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEADLINE_S = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def command(folder: Path, log: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / log).open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "relevo", *arguments], stdout=output, stderr=subprocess.STDOUT, cwd=folder
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def get(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """(0, {}): none listens there yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}


def until(is_so: Callable[[], bool], folder: Path, what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"{what}: {[log.read_text()[-2000:] for log in folder.glob('*.log')]}"
        time.sleep(0.02)
