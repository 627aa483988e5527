"""When which workers got requests: what a head says at /ready, looked at every 50 ms from its own machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

from boxes import HTTP_PORT, Box
from machines import OWNER

_LOOKER = """
import json, sys, time, urllib.error, urllib.request
before = None
while True:
    try:
        with urllib.request.urlopen(sys.argv[1], timeout=5) as answer: said = json.loads(answer.read())
    except urllib.error.HTTPError as error: said = json.loads(error.read())
    except OSError: said = {}
    ready = {each["worker_id"]: each["epoch"] for each in said.get("workers", []) if each["ready"]}
    if ready != before: print(json.dumps([time.monotonic(), ready]), flush=True)
    before = ready
    time.sleep(0.05)
"""


class Rotation:
    """A context. Monotonic time is the same on all machines of one box."""

    def __init__(self, head: Box) -> None:
        url = f"http://127.0.0.1:{HTTP_PORT}/ready"
        self._process = subprocess.Popen(
            head.machine.command(sys.executable, "-I", "-S", "-c", _LOOKER, url),
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, OWNER: str(os.getpid())},
        )
        self._seen: list[tuple[float, dict[str, int]]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Rotation:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in self._process.stdout:
                at_s, ready = json.loads(line)
                self._seen.append((at_s, ready))

    def seconds_until(
        self, is_so: Callable[[dict[str, int]], bool], since_s: float, limit_s: float, what: str
    ) -> float:
        """From `since_s` to when it was seen to be so; fails if that is more than `limit_s`."""
        while True:
            for at_s, ready in self._since(since_s):
                if at_s - since_s < limit_s and is_so(ready):
                    return max(0.0, at_s - since_s)
            assert time.monotonic() - since_s < limit_s + 5.0, f"not within {limit_s:g} s: {what}; {self._seen[-3:]}"
            time.sleep(0.02)

    def _since(self, since_s: float) -> Iterator[tuple[float, dict[str, int]]]:
        """What was so then, and what changed later."""
        seen = list(self._seen)
        first = max((at for at, (at_s, _) in enumerate(seen) if at_s <= since_s), default=0)
        yield from seen[first:]
