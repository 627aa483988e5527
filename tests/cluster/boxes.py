"""Boxes of a cluster on the machines of `machines`: heads that serve, nodes that join, and what clients get from them.

    with Boxes(net.machines, folder) as boxes:
        head = boxes.serve(net.machines[0], "--topology", "none")
        node = boxes.join(net.machines[1], head, "1p1d")
        boxes.until(lambda: len(head.ready_workers()) == 2, 60)

Everything is the real command in its own processes; requests go in from the head's machine, over its loopback.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from machines import OWNER, Machine

from relevo.cluster.enroller import Enroller, found_cluster
from relevo.cluster.peer import NodeRole

START_S = 180.0
KEY = "operator-of-the-tests"
PORT, HTTP_PORT = 7000, 8000

# Sends prompts that come as lines of JSON on its standard input, all at once, and writes every answer as a line.
CALLER = """
import json, sys, threading, urllib.request, time
url = sys.argv[1]
lock = threading.Lock()
def ask(line):
    asked = json.loads(line)
    body = json.dumps(asked["body"]).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url + asked["path"], data=body or None, headers=headers)
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=120) as answer: said = json.loads(answer.read())
    except Exception as error:
        detail = error.read().decode() if hasattr(error, "read") else ""
        said = {"failure": f"{error} {detail}"}
    with lock: print(json.dumps([asked["id"], time.monotonic() - began, said]), flush=True)
for line in sys.stdin:
    threading.Thread(target=ask, args=(line,)).start()
"""


class Box:
    """One command that runs on a machine."""

    def __init__(self, machine: Machine, name: str, process: subprocess.Popen[str]) -> None:
        self.machine, self.name, self.process = machine, name, process
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):
            self.lines.extend(self.process.stdout)

    @property
    def log(self) -> str:
        return f"--- {self.name}\n" + "".join(self.lines)

    def get(self, path: str) -> Any:
        """Of a head, whatever the status."""
        script = (
            "import sys, urllib.request, urllib.error\n"
            "r = urllib.request.Request(sys.argv[1], headers={'authorization': 'Bearer ' + sys.argv[2]})\n"
            "try: print(urllib.request.urlopen(r, timeout=10).read().decode())\n"
            "except urllib.error.HTTPError as e: print(e.read().decode())\n"
        )
        url = f"http://127.0.0.1:{HTTP_PORT}{path}"
        said = self.machine.run(sys.executable, "-I", "-S", "-c", script, url, KEY, check=False).stdout
        return json.loads(said) if said.startswith(("{", "[")) else said

    def ready_workers(self) -> dict[str, int]:
        """Epochs of the workers that get requests."""
        said = self.get("/ready")
        workers = said.get("workers", []) if isinstance(said, dict) else []
        return {worker["worker_id"]: worker["epoch"] for worker in workers if worker["ready"]}

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["name"]: node for node in self.get("/v1/nodes")["nodes"]}

    def metric(self, name: str, **labels: str) -> float:
        total = 0.0
        for line in str(self.get("/metrics")).splitlines():
            found = re.fullmatch(r"([a-zA-Z_:]+)(?:\{(.*)\})? ([0-9.e+-]+)", line)
            if found and found[1] == name:
                have = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
                total += float(found[3]) if labels.items() <= have.items() else 0.0
        return total

    def blocks_in_use(self) -> float:
        return self.metric("relevo:blocks", state="held") + self.metric("relevo:blocks", state="quarantined")

    def workers_pids(self) -> set[int]:
        """Of the worker processes on its machine."""
        found = set()
        for pid in self.machine.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"relevo.cli.child" in words and words[words.index(b"relevo.cli.child") + 1] == b"worker":
                    found.add(pid)
        return found


def place(machine: Machine) -> str:
    """Of the control port of a box."""
    return f"{machine.ipv4 or f'[{machine.ipv6}]'}:{PORT}"


class Boxes:
    """A context: leaving it ends everything, and shows the logs of all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"RELEVO_NUM_KV_BLOCKS": "512", "RELEVO_MAX_MODEL_LEN": "2048"}
        self.boxes: list[Box] = []
        self._enroller: Enroller | None = None

    def __enter__(self) -> Boxes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        print("\n".join(box.log[-6000:] for box in self.boxes))  # noqa: T201  # shown where a test fails
        for box in self.boxes:
            box.process.kill()
            box.process.wait()

    def serve(
        self,
        machine: Machine,
        *flags: str,
        name: str = "",
        join: Box | None = None,
        model: str = "fake",
        env: dict[str, str] | None = None,
    ) -> Box:
        """A head. The first one founds the cluster."""
        name = name or machine.name
        home = self.folder / name
        if self._enroller is None:
            self._enroller = found_cluster(home, name)
        more: list[str] = []
        if join is not None:
            more += ["--join", place(join.machine)]
            if not home.exists():
                more += ["--token-file", self.token(name, NodeRole.HEAD)]
        return self._start(
            machine,
            name,
            *("serve", model, "--cluster", place(machine), "--cluster-dir", str(home)),
            *("--host", "127.0.0.1", "--port", str(HTTP_PORT)),
            *more,
            *flags,
            env=env,
        )

    def alone(self, machine: Machine, *flags: str, model: str = "fake") -> Box:
        """A server of no cluster: what answers have to be."""
        flags = ("--host", "127.0.0.1", "--port", str(HTTP_PORT), "--topology", "unified", *flags)
        return self._start(machine, f"{machine.name}-alone", "serve", model, *flags)

    def join(
        self,
        machine: Machine,
        heads: Sequence[Machine],
        role: str,
        *flags: str,
        name: str = "",
        env: dict[str, str] | None = None,
    ) -> Box:
        name = name or machine.name
        home = self.folder / name
        token = [] if (home / "node.pem").exists() else ["--token-file", self.token(name, NodeRole.NODE)]
        places = ",".join(place(head) for head in heads)
        command = ("join", places, *token, "--name", name, "--role", role, "--cluster-dir", str(home), *flags)
        return self._start(machine, name, *command, env=env)

    def token(self, name: str, role: NodeRole) -> str:
        assert self._enroller is not None
        path = self.folder / f"token-{name}"
        path.write_text(self._enroller.new_token(name=name, role=role).text())
        path.chmod(0o600)
        return str(path)

    def _start(self, machine: Machine, name: str, *command: str, env: dict[str, str] | None = None) -> Box:
        env = {
            **os.environ,
            OWNER: str(os.getpid()),
            "RELEVO_DATABASE_URL": "memory",
            "RELEVO_ADMIN_KEY": KEY,
            **self.environment,
            **(env or {}),
        }
        process = subprocess.Popen(
            machine.command(sys.executable, "-m", "relevo", *command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )
        box = Box(machine, name, process)
        self.boxes.append(box)
        return box

    def until(self, is_so: Callable[[], bool], deadline_s: float = START_S, what: str = "") -> float:
        """Seconds that it took. A box that gave up by itself fails at once."""
        began_s = time.monotonic()
        while not is_so():
            for box in self.boxes:
                assert (box.process.poll() or 0) <= 0, f"{box.name} has ended: {box.log[-2000:]}"
            took_s = time.monotonic() - began_s
            assert took_s < deadline_s, f"not within {deadline_s:g} s: {what}"
            time.sleep(0.1)
        return time.monotonic() - began_s


class Clients:
    """Many requests at once, from a head's machine."""

    def __init__(self, head: Box, model: str = "fake") -> None:
        self._model = model
        command = head.machine.command(sys.executable, "-I", "-S", "-c", CALLER, f"http://127.0.0.1:{HTTP_PORT}")
        env = {**os.environ, OWNER: str(os.getpid())}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self._num_asked = 0
        self.answers: dict[int, tuple[float, dict[str, Any]]] = {}  # seconds, and what was said
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in self._process.stdout:
                number, took_s, said = json.loads(line)
                self.answers[number] = took_s, said

    def ask(self, prompt: str, max_tokens: int = 8) -> int:
        body = {"model": self._model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        self._num_asked += 1
        asked = {"id": self._num_asked, "path": "/v1/completions", "body": body}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._num_asked

    def all_answered(self, deadline_s: float = 90.0) -> list[str]:
        """Texts, in the order of asking; fails for one that is no answer."""
        deadline = time.monotonic() + deadline_s
        while len(self.answers) < self._num_asked:
            assert time.monotonic() < deadline, f"{self._num_asked - len(self.answers)} of {self._num_asked} unanswered"
            time.sleep(0.05)
        failures = [said["failure"] for _, said in self.answers.values() if "failure" in said]
        assert not failures, failures[:3]
        return [self.answers[number][1]["choices"][0]["text"] for number in range(1, self._num_asked + 1)]

    @contextlib.contextmanager
    def open(self) -> Iterator[Clients]:
        try:
            yield self
        finally:
            self._process.kill()
            self._process.wait()


def prompts(number: int, num_words: int = 40) -> list[str]:
    return [" ".join(f"w{number * 31 + each * 7 + word}" for word in range(num_words)) for each in range(number)]
