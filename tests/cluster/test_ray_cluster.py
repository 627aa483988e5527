"""Two raylets on two machines: a server through them, an actor that is killed, a link that is cut.

`make ray-check` installs Ray beside .venv and runs it. Red when traffic is not back within 15 s, or when two
supervisors of one name live at the same time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machines import Machine, Network

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RAY = ROOT / "build" / "ray-check"
BACK_S = 15.0
SIZES = ("--set", "num_kv_blocks=512", "--gateway-setting", "max_model_len=2048", "--start-timeout-s", "120")
ASK = """
import json, sys, urllib.request as u
body = json.dumps({"model": "fake", "prompt": "word " * 200, "max_tokens": 8, "temperature": 0}).encode()
asked = u.Request("http://127.0.0.1:8000/v1/completions", body, {"content-type": "application/json"})
print(json.load(u.urlopen(asked, timeout=float(sys.argv[1])))["usage"]["completion_tokens"])
"""
needs_ray = pytest.mark.skipif(not (RAY / "ray").exists(), reason="Ray is not in build/ray-check; run make ray-check")


class Cluster:
    """Ray on both machines, and Relevo through it."""

    def __init__(self, net: Network, folder: Path) -> None:
        self.net, self.folder = net, folder
        self.head, self.other = net.machines
        self.address = f"{self.head.address}:6379"
        paths = os.pathsep.join([str(ROOT / "src"), str(RAY)])
        self.env = {**os.environ, "PYTHONPATH": paths, "XDG_STATE_HOME": str(folder)}

    def start_ray(self) -> None:
        common = ["--num-cpus=3", "--object-store-memory=80000000", "--disable-usage-stats"]
        head = ["--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={self.folder}"]
        self._ray(self.head, *head, '--resources={"m0": 1}', *common)
        self._ray(self.other, f"--address={self.address}", '--resources={"m1": 1}', *common)

    def _ray(self, machine: Machine, *options: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={machine.address}"]
        said = b""
        for _attempt in range(4):  # Ray gives a raylet 30 s to start, which a loaded machine may not
            started = machine.start(*command, *options, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            said, _ = started.communicate(timeout=180)
            if started.returncode == 0:
                return
            machine.kill()  # what the attempt has left running would be met by the next one
        raise AssertionError(said.decode())

    def relevo(self, *arguments: str, timeout_s: float = 180.0) -> str:
        command = [sys.executable, "-m", "relevo", "ray", *arguments, "--address", self.address]
        started = self.head.start(*command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = started.communicate(timeout=timeout_s)
        assert started.returncode == 0, said.decode()
        return said.decode()

    def answers(self, timeout_s: float = 3.0) -> bool:
        asked = self.head.run(sys.executable, "-c", ASK, str(timeout_s), check=False)
        return asked.stdout.strip() == "8"

    def ready_workers(self) -> dict[str, int]:
        """Epoch of each that takes requests."""
        got = self.head.run("curl", "-s", "-m", "2", "http://127.0.0.1:8000/ready", check=False)
        try:
            workers = json.loads(got.stdout)["workers"]
        except (ValueError, KeyError):
            return {}
        return {each["worker_id"]: each["epoch"] for each in workers if each["ready"]}

    def of(self, machine: Machine, words: str) -> list[int]:
        """Processes there whose command line has these words."""
        found = []
        for pid in machine.processes():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if words in line:
                found.append(pid)
        return found


@pytest.fixture
def cluster(make_network: Callable[..., Network], tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(make_network(2), Path("/tmp") / f"ray-{os.getpid()}")
    made.folder.mkdir(exist_ok=True)
    made.start_ray()
    yield made


def seconds_until(holds: Callable[[], object], limit_s: float) -> float:
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < limit_s, f"not within {limit_s:g} s"
        time.sleep(0.1)
    return time.monotonic() - began_s


def told(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@needs_ray
def test_an_actor_that_is_killed_and_a_link_that_is_cut(cluster: Cluster) -> None:
    nodes = ["--prefill", "1", "--decode", "1", "--resource", "prefill:m0=1", "--resource", "decode:m1=1"]
    said = cluster.relevo("up", "fake", *nodes, *SIZES)
    assert "ready: http://" in said
    seconds_until(lambda: len(cluster.ready_workers()) == 2 and cluster.answers(), 60.0)
    joined = "--name decode-0"

    (actor,) = cluster.of(cluster.other, "ray::_NodeActor")
    (before,) = cluster.of(cluster.other, joined)
    epochs = cluster.ready_workers()
    os.kill(actor, signal.SIGKILL)
    answered_s = seconds_until(cluster.answers, BACK_S)
    seconds_until(lambda: cluster.of(cluster.other, joined) not in ([], [before]), BACK_S)
    assert len(cluster.of(cluster.other, joined)) == 1, "two of one name"
    back_s = seconds_until(lambda: set(cluster.ready_workers()) == set(epochs), BACK_S)
    decode = next(name for name in epochs if "decode-0" in name)
    assert cluster.ready_workers()[decode] > epochs[decode]
    told(f"actor killed: answers after {answered_s:.1f} s, node back after {back_s:.1f} s more")

    cluster.net.cut(cluster.other)
    answered_s = seconds_until(cluster.answers, BACK_S)
    time.sleep(6.0)  # it has fenced itself by now
    cluster.net.heal()
    back_s = seconds_until(lambda: set(cluster.ready_workers()) == set(epochs), BACK_S)
    assert len(cluster.of(cluster.other, joined)) == 1 and cluster.answers()
    told(f"link cut: answers after {answered_s:.1f} s, node back {back_s:.1f} s after it healed")

    cluster.relevo("down")
    left = lambda: cluster.of(cluster.other, joined) + cluster.of(cluster.head, "relevo serve")  # noqa: E731
    seconds_until(lambda: not left(), BACK_S)


@needs_ray
def test_ray_without_its_store(cluster: Cluster) -> None:
    """The control store is killed: Ray places nothing any more, what it has placed goes on. Once the raylets give up,
    after a minute, all that they hold ends with them: nothing stays behind that the next start would meet."""
    nodes = ["--prefill", "1", "--decode", "1", "--resource", "prefill:m0=1", "--resource", "decode:m1=1"]
    cluster.relevo("up", "fake", *nodes, *SIZES)
    seconds_until(lambda: len(cluster.ready_workers()) == 2 and cluster.answers(), 60.0)
    epochs = cluster.ready_workers()
    pids = cluster.of(cluster.other, "--name decode-0")
    (store,) = cluster.of(cluster.head, "gcs_server")
    os.kill(store, signal.SIGKILL)
    began_s = time.monotonic()
    answered_s = seconds_until(cluster.answers, BACK_S)
    num_answers = 0
    while time.monotonic() - began_s < 20.0:
        assert cluster.answers(10.0)
        num_answers += 1
    assert cluster.ready_workers() == epochs
    assert cluster.of(cluster.other, "--name decode-0") == pids
    told(f"store killed: an answer after {answered_s:.1f} s, then {num_answers} of {num_answers} in 20 s")

    ours = ("--name decode-0", "--name prefill-0", "relevo serve")
    left = lambda: [pid for each in (cluster.head, cluster.other) for w in ours for pid in cluster.of(each, w)]  # noqa: E731
    seconds_until(lambda: not left(), 180.0)
    told(f"all of it ended {time.monotonic() - began_s:.0f} s after the store")
