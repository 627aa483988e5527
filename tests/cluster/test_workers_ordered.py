"""A head that orders boxes by a command as traffic asks for them, and gives them back: on the loopback of this machine.

Four minutes, mostly waiting. Red when a burst orders nothing, quiet keeps what it ordered, or a request is lost on the
way: boxes join and leave under running streams.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

# Brings as many boxes as its last argument says, beside those that were given back. What an operator would write.
BRINGS = """
import json, os, pathlib, subprocess, sys
folder, head, number = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[4])
assert number <= 2, "as many as --max-workers of the test"
kept = folder / "nodes.json"
known = json.loads(kept.read_text()) if kept.exists() else {"named": 0, "here": {}}
for name in os.environ["SCALE_GIVEN_BACK"].split():
    known["here"].pop(name, None)
while len(known["here"]) < number:
    assert known["named"] < 4, "more boxes than the test needs"
    known["named"] += 1
    name = f"n{known['named']}"
    words = ["join", head, "--token-file", "token", "--cluster-dir", name, "--data-dir", f"data-{name}", "--name", name,
             "--listen", f"127.0.0.1:{int(sys.argv[3]) + known['named']}", "--role", "unified",
             "--set", "fake_base_s=0.05", "--set", "max_num_seqs=4", "--set", "max_num_batched_tokens=512"]
    with open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "relevo", *words], cwd=folder, stdout=log, stderr=log,
                                   start_new_session=True)
    known["here"][name] = process.pid
kept.write_text(json.dumps(known))
with open(folder / "told", "a") as told:
    print(number, os.environ["SCALE_PRESENT"], os.environ["SCALE_REASON"], sep=": ", file=told)
"""
HANGS = """
import os, pathlib, sys, time
(pathlib.Path(sys.argv[1]) / "hangs").write_text(f"{os.getpid()}\\n")
time.sleep(600)
"""
CONTROL, HTTP = 17400, 17390


class Clients:
    """Requests on threads of their own. Each is to be answered whole, or refused with the time to come again."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.answers: list[Any] = []
        self.num_refused = 0

    def ask(self, num_tokens: int) -> None:
        self.threads.append(threading.Thread(target=self._ask, args=(len(self.threads), num_tokens)))
        self.threads[-1].start()

    def _ask(self, number: int, num_tokens: int) -> None:
        asked = {"model": "fake", "prompt": f"request {number} " * 4, "max_tokens": num_tokens, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{HTTP}/v1/completions",
            data=json.dumps({**asked, "temperature": 0}).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                self.answers.append(json.load(answer)["usage"]["completion_tokens"] == num_tokens)
        except urllib.error.HTTPError as error:
            is_refused = error.code == 429 and "retry-after" in error.headers
            self.num_refused += is_refused
            self.answers.append(is_refused or (error.code, error.read()))
        except (OSError, ValueError, KeyError) as error:
            self.answers.append(error)

    def end(self) -> list[Any]:
        for thread in self.threads:
            thread.join()
        assert len(self.answers) == len(self.threads)
        return [answer for answer in self.answers if answer is not True]


def get(path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{HTTP}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def metric(name: str, labels: str = "") -> float | None:
    found = re.search(rf"^{re.escape(name)}\{{[^}}]*{labels}[^}}]*\}} (\S+)$", get("/metrics"), re.MULTILINE)
    return float(found[1]) if found else None


def ready_workers() -> set[str]:
    told = get("/ready")
    return {each["worker_id"] for each in json.loads(told).get("workers", []) if each["ready"]} if told else set()


@contextmanager
def head(folder: Path, brings: str = BRINGS) -> Iterator[subprocess.Popen[bytes]]:
    relevo = [sys.executable, "-m", "relevo"]
    init = [*relevo, "cluster", "init", "--dir", "A", "--name", "a"]
    subprocess.run(init, cwd=folder, check=True, capture_output=True)
    token = [*relevo, "cluster", "token", "--dir", "A", "--reusable", "--out", "token"]
    subprocess.run(token, cwd=folder, check=True, capture_output=True)
    (folder / "brings.py").write_text(brings)
    place = f"127.0.0.1:{CONTROL}"
    command = [*relevo, "serve", "fake", "--topology", "none", "--cluster", place, "--cluster-dir", "A"]
    command += ["--port", str(HTTP), "--data-dir", "data-a", "--max-workers", "2", "--max-num-seqs", "4"]
    command += ["--scale-command", f"{sys.executable} {folder / 'brings.py'} {folder} {place} {CONTROL}"]
    with (folder / "a.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
        for pid in pids(folder).values():
            if lives(pid):
                os.kill(pid, signal.SIGTERM)


def pids(folder: Path) -> dict[str, int]:
    kept = folder / "nodes.json"
    return dict(json.loads(kept.read_text())["here"]) if kept.exists() else {}


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(
    server: subprocess.Popen[bytes],
    is_so: Callable[[], bool],
    deadline_s: float,
    folder: Path,
    what: str,
    each_s: float = 0.5,
) -> None:
    deadline = time.monotonic() + deadline_s
    while not is_so():
        logs = {log.name: log.read_text()[-3000:] for log in folder.glob("*.log")}
        assert time.monotonic() < deadline, f"{what}: {logs}"
        assert server.poll() is None, f"the head has ended: {logs}"
        time.sleep(each_s)


def test_a_burst_orders_a_box_and_quiet_gives_it_back_without_a_lost_request(tmp_path: Path) -> None:
    clients = Clients()
    with head(tmp_path) as server:
        until(server, lambda: len(ready_workers()) == 1, 180, tmp_path, "the least is ordered where there is none")
        first = ready_workers()

        def rush() -> bool:
            clients.ask(40)
            return len(ready_workers()) == 2

        until(server, rush, 180, tmp_path, "a burst orders a second one", each_s=0.3)
        assert metric("relevo:planner_wanted_workers") == 2.0
        (second,) = ready_workers() - first
        leaving = pids(tmp_path)[second.partition("/")[0]]

        def calm() -> bool:
            clients.ask(100)
            return ready_workers() == first and not lives(leaving)

        until(server, calm, 400, tmp_path, "quiet gives it back, and it ends", each_s=4.0)
        assert clients.end() == [], "a request was lost"
        until(server, lambda: metric("relevo:planner_wanted_workers") == 1.0, 30, tmp_path, "one is wanted")
        told = [line.split(": ", 2) for line in (tmp_path / "told").read_text().splitlines()]
        assert [(wanted, present) for wanted, present, _ in told] == [("1", "0"), ("2", "1"), ("1", "1")]
        assert told[0][2] == "0 workers were found, and 1 is the least" and "to meet the targets" in told[1][2]
        assert clients.num_refused < len(clients.threads) / 10, "the rush is mild"
        assert metric("relevo:planner_scale_commands_total", 'outcome="failed"') == 0.0
        plan = json.loads(get("/v1/plan"))["plans"][0]["workers"]
        assert (plan["wanted"], plan["there"], plan["commands"]["told"]) == (1, 1, 1)


def test_a_server_that_is_interrupted_leaves_no_command_behind(tmp_path: Path) -> None:
    """Red when Ctrl-C, which the command does not get, ends the server and the command goes on ordering."""
    told = tmp_path / "hangs"
    with head(tmp_path, HANGS) as server:
        until(server, lambda: told.exists() and told.read_text().endswith("\n"), 120, tmp_path, "it is run")
        assert lives(int(told.read_text()))
        server.send_signal(signal.SIGINT)
        assert server.wait(60) is not None
        assert not lives(int(told.read_text()))
