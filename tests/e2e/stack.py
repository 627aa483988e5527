"""Starts the real command in its own processes and talks HTTP to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

START_S = 60.0
OPERATOR = {"RELEVO_ADMIN_KEY": "operator-of-the-tests"}  # what `relevo drain` needs


@dataclass
class Stack:
    process: subprocess.Popen[str]
    url: str
    log: list[str] = field(default_factory=list)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            body = answer.read()
        return json.loads(body) if body.startswith((b"{", b"[")) else body.decode()

    def post(self, path: str, body: dict[str, Any], timeout_s: float = 120.0) -> Any:
        request = urllib.request.Request(
            self.url + path, data=json.dumps(body).encode(), headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return json.loads(answer.read())

    def complete(self, prompt: Any, **fields: Any) -> Any:
        return self.post("/v1/completions", {"model": self.model, "prompt": prompt, "temperature": 0, **fields})

    @property
    def model(self) -> str:
        return str(self.get("/v1/models")["data"][0]["id"])

    def metrics(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        families = text_string_to_metric_families(self.get("/metrics"))
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}

    def metric(self, name: str, **labels: str) -> float:
        """Sum over all series of that name that carry these labels."""
        return sum(
            value
            for (sample, pairs), value in self.metrics().items()
            if sample == name and labels.items() <= dict(pairs).items()
        )

    def by_worker(self, name: str) -> dict[str, float]:
        return {dict(pairs)["worker"]: value for (sample, pairs), value in self.metrics().items() if sample == name}

    def blocks_in_use(self) -> dict[str, float]:
        """Held and quarantined blocks per worker."""
        found: dict[str, float] = {}
        for (name, pairs), value in self.metrics().items():
            labels = dict(pairs)
            if name == "relevo:blocks" and labels["state"] in ("held", "quarantined"):
                found[labels["worker"]] = found.get(labels["worker"], 0.0) + value
        return found

    def wait_idle(self, deadline_s: float = 30.0) -> None:
        """Blocks in use return to zero on every worker, and the gateway holds nothing."""
        deadline = time.monotonic() + deadline_s
        while True:
            held = self.blocks_in_use()
            in_flight = self.metric("relevo:requests_in_flight")
            if not any(held.values()) and not in_flight:
                return
            assert time.monotonic() < deadline, f"still in use after {deadline_s} s: {held}, in flight {in_flight}"
            time.sleep(0.05)

    def recorded_cached_tokens(self) -> int:
        """Sum over the rows of the usage ledger."""
        return int(self.get("/v1/usage?group_by=model")["total"]["cached_tokens"])

    def pids(self) -> dict[str, int]:
        """Process ids of the workers, by id, from what the workers say of themselves, whether any is ready or not."""
        try:
            said = self.get("/ready")
        except urllib.error.HTTPError as error:
            said = json.load(error)
        return {worker["worker_id"]: worker["pid"] for worker in said["workers"]}

    def wait_ready(self, deadline_s: float = START_S) -> None:
        deadline = time.monotonic() + deadline_s
        while True:
            with contextlib.suppress(OSError):
                self.get("/ready")
                return
            assert time.monotonic() < deadline, "not ready in time:\n" + "".join(self.log)
            time.sleep(0.05)


def descendants(pid: int) -> list[int]:
    """All living processes below `pid`."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


@contextlib.contextmanager
def stack(model: str, *flags: str, env: dict[str, str] | None = None) -> Iterator[Stack]:
    """`relevo serve MODEL FLAGS` on a free port; ended with Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-m", "relevo", "serve", model, "--port", "0", *flags],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "RELEVO_DATABASE_URL": "memory",
            "RELEVO_EXPOSE_PROCESSES": "true",
            **OPERATOR,
            **(env or {}),
        },
    )
    assert process.stderr is not None
    lines: list[str] = []
    url = ""
    try:
        for line in process.stderr:
            lines.append(line)
            if match := re.search(r"ready: (http://\S+)/v1", line):
                url = match.group(1)
                break
        assert url, f"did not start, exit status {process.poll()}:\n" + "".join(lines)
        _drain_in_background(process, lines)
        running = Stack(process, url, lines)
        running.wait_ready()
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _drain_in_background(process: subprocess.Popen[str], lines: list[str]) -> None:
    """So that the server never blocks on a full pipe."""
    import threading

    def drain() -> None:
        assert process.stderr is not None
        with contextlib.suppress(ValueError):
            lines.extend(process.stderr)

    threading.Thread(target=drain, daemon=True).start()
