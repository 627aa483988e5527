"""`relevo bench roles` and `relevo bench workloads` as a person runs them, on the fake engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FAKE = ["--serve-args", "--fake-base-s 0.004 --fake-per-token-s 0.00001"]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "relevo", "bench", *arguments], capture_output=True, text=True, timeout=150
    )


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_roles_change_and_no_answer_does(tmp_path: Path) -> None:
    """Red when a request is lost or changed, a role does not come, or a block stays held."""
    target = tmp_path / "roles.json"
    flags = ["--switches", "6", "--interval-s", "0.3", "--quiet-s", "2", "--streams", "8", "--prompts-per-s", "3"]
    done = bench("roles", "fake", *flags, "--kills", "1", *FAKE, "--json", str(target), "--log-dir", str(tmp_path))
    result = read(target)["result"]
    holds = {bar["what"]: bar["holds"] for bar in result["bars"]}
    del holds[next(what for what in holds if what.startswith("no gap"))]  # so short a time tells no p99
    assert set(holds.values()) == {True}, (result["bars"], done.stderr)
    assert result["quiet_itl_s"]["count"] > 0 and result["switching_itl_s"]["count"] > 0
    assert len(result["switches"]) == 6 and all(one["effect_s"] is not None for one in result["switches"])
    assert [check for check in result["stress"] if check["wrong"] or not check["num_done"]] == []
    assert done.returncode in (0, 1)


@pytest.mark.slow
def test_workloads_go_on_where_they_were_cut_short(tmp_path: Path) -> None:
    """Red when a repeated command measures anew what is there, or a part is left out without a word."""
    folder, target, page = tmp_path / "results", tmp_path / "out.json", tmp_path / "out.html"
    lengths = ["--prompt-scale", "0.02", "--answer-scale", "0.05", "--capacity-s", "1", "--capacity-clients", "4"]
    phases = ["--workloads", "chat,burst", "--phase-s", "1", "--warm-up-s", "0.5", "--arms", "unified,hybrid"]
    command = ["workloads", str(folder), "fake", *phases, *lengths, *FAKE, "--json", str(target)]
    first = bench(*command, "--max-minutes", "0.1")
    assert first.returncode == 3, first.stderr
    assert "3 parts are missing" in first.stderr and list(folder.iterdir()) == [folder / "options.json"]
    second = bench(*command, "--report", str(page))
    assert second.returncode == 0, second.stderr
    report = read(target)["report"]
    assert [arm["name"] for arm in report["arms"]] == ["unified", "hybrid"]
    sent = [[phase["num_sent"] for phase in arm["phases"]] for arm in report["arms"]]
    assert sent[0] == sent[1] and sum(sent[0]) > 0
    assert all(phase["num_failed"] == 0 for arm in report["arms"] for phase in arm["phases"])
    assert "Five workloads in sequence" in page.read_text()
    times = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    third = bench(*command)
    assert third.returncode == 0 and {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == times
    other = bench(*command, "--load", "0.5")
    assert other.returncode == 2 and "load 0.7 instead of 0.5" in other.stderr and "Traceback" not in other.stderr
