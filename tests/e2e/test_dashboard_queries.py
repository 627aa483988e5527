"""Every query of every panel, and of vLLM's public dashboards, against a real Prometheus that scrapes a real server.

Red when a panel asks for a metric, label or value that the server does not export, and when promtool finds fault with
/metrics. Needs `prometheus` and `promtool` (Debian: apt-get install prometheus). Grafana itself is not run.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mixed_load import MixedLoad
from stack import stack
from vllm_dashboards import NOT_EXPORTED, queries

NUM_SCRAPES = 50  # one a second: about a minute of load
DEADLINE_S = 180.0
INTERVAL = "15s"
FLAGS = (
    "--topology",
    "2p1d",
    "--share-cores",
    "--num-kv-blocks",
    "1024",
    "--max-model-len",
    "2048",
    "--metrics-by-tenant",
)
PACE = ("--fake-base-s", "0.004", "--fake-per-token-s", "0.00002", "--log-level", "error")
MAY_BE_EMPTY = {"Gateways up"}  # the series exist with several gateways only
VARIABLES = {"$__rate_interval": INTERVAL, "$job": "relevo", "$model": ".*", "$worker": ".*", "$role": ".*"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("promtool")),
        reason="prometheus and promtool are not here; on Debian: apt-get install prometheus",
    ),
]


def relevo(*arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
    command = [sys.executable, "-m", "relevo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment).stdout


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
            return json.loads(answer.read())["data"]

    def values(self, query: str) -> list[float]:
        return [float(found["value"][1]) for found in self.get("/api/v1/query", query=query)["result"]]

    def has_answer(self, query: str) -> bool:
        """A series with a number, not with 0 / 0 alone."""
        return any(not math.isnan(value) for value in self.values(query))

    def wait(self, is_there: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                if is_there():
                    return
            except OSError:
                pass  # still starting
            assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
            time.sleep(0.2)


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """The packaged example, with a shorter interval and this target."""
    example = (folder / "prometheus.yml").read_text(encoding="utf-8")
    config = example.replace("15s", "1s").replace("127.0.0.1:8000", target)
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        [
            *("prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"),
            *(f"--web.listen-address={address}", "--log.level=error"),
        ]
    )
    try:
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait(timeout=30)


def panel_queries(folder: Path) -> Iterator[tuple[str, str]]:
    """Title of the panel, and what it asks with every variable at All."""
    for path in sorted((folder / "grafana").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                query = target["expr"]
                for name, value in VARIABLES.items():
                    query = query.replace(name, value)
                yield panel["title"], query


def choices(folder: Path, asked: Prometheus) -> dict[str, list[str]]:
    """What every dashboard offers for its variables."""
    found = {}
    for path in sorted((folder / "grafana").glob("*.json")):
        for variable in json.loads(path.read_text(encoding="utf-8"))["templating"]["list"]:
            if match := re.fullmatch(r"label_values\((.*), (\w+)\)", str(variable["query"])):
                series = match[1]
                for name, value in VARIABLES.items():
                    series = series.replace(name, value)
                values = asked.get(f"/api/v1/label/{match[2]}/values", **{"match[]": series})
                found[f"{path.stem}: {variable['name']}"] = values
    return found


def test_every_query_has_an_answer_under_load(tmp_path: Path) -> None:
    """Red for a panel, a variable or a vLLM query without data, and for a recording rule that gives none."""
    boards = tmp_path / "boards"
    relevo("dashboards", str(boards))
    data = str(tmp_path / "data")
    made = [("--tenant", "a"), ("--tenant", "b"), ("--tenant", "c", "--tokens-per-minute", "300")]
    keys = [relevo("keys", "create", "k", *options, "--data-dir", data).strip() for options in made]
    env = {"RELEVO_DATABASE_URL": "", "RELEVO_METRICS_REQUIRE_KEY": "false"}
    with (
        stack("fake", *FLAGS, *PACE, "--data-dir", data, env=env) as server,
        prometheus(boards, server.url.removeprefix("http://")) as asked,
    ):
        load = MixedLoad(server.url, (keys[0], keys[1], keys[2]))
        with load.running():
            asked.wait(lambda: asked.values("count_over_time(up[5m])") >= [NUM_SCRAPES / 2], "half the scrapes")
            os.kill(server.pids()["prefill-0"], signal.SIGKILL)
            asked.wait(lambda: asked.values("count_over_time(up[5m])") >= [float(NUM_SCRAPES)], "all scrapes")
            ours = list(panel_queries(boards))
            empty = [(title, query) for title, query in ours if not asked.has_answer(query)]
            theirs = list(queries(INTERVAL))
            vllm_empty = [query for query in theirs if not asked.has_answer(query)]
            recorded = asked.get("/api/v1/rules", type="record")["groups"][0]["rules"]
            not_recorded = [rule["name"] for rule in recorded if not asked.has_answer(rule["name"])]
            alerts = asked.get("/api/v1/rules", type="alert")["groups"][0]["rules"]
            exported = [name for name in NOT_EXPORTED if asked.values(name) or asked.values(f"{name}_count")]
            offered = choices(boards, asked)
        text = server.get("/metrics")
    told = f"{len(ours)} queries of panels, {len(theirs)} of vLLM's; answers by status: {dict(load.statuses)}"
    sys.stdout.write(told + "\n")
    assert {title for title, _ in empty} <= MAY_BE_EMPTY, empty
    assert not vllm_empty
    assert not not_recorded
    assert not exported, "the list of what is missing is out of date"
    assert all(offered.values()), offered
    assert [rule["lastError"] for rule in alerts if rule.get("lastError")] == []
    assert {200, 400, 401, 404, 429, 504} <= load.statuses.keys(), load.statuses
    held_against(text)


def held_against(text: str) -> None:
    """promtool minds nothing of /metrics but the colon in names, which vLLM's have, and so ours beside them."""
    told = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    told_lines = [line for line in (told.stdout + told.stderr).splitlines() if line]
    assert [line for line in told_lines if "should not contain ':'" not in line] == []
