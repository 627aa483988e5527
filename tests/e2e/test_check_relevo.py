"""`relevo check` on Relevo's own processes: everything holds but for what the fake model cannot show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from stack import stack

# the fake model has no distribution over tokens: its log probabilities are made up, and nothing biases or narrows them
NOT_FOR_THE_FAKE_MODEL = ("logprobs.sum_below_one", "sampling.narrow_top_p", "sampling.logit_bias")
# what it cannot show: it does not reason, and its random bytes have no word to stop at
NOT_SHOWN = {"reasoning.stream", "reasoning.tokens", "messages.stop_sequence", "messages.end"}
KEY, OTHER_KEY = "check-key", "other-check-key"
KEYS = ("--api-key", KEY, "--api-key", OTHER_KEY)  # of the server
CLIENT_KEYS = ("--api-key", KEY, "--other-api-key", OTHER_KEY)
PATIENCE = ("--timeout-s", "600", "--settle-s", "60")  # only what fails takes longer for it


def run_check(url: str, *flags: str, out: Path) -> dict[str, str]:
    """Statuses of the checks that were not as they should be; skipped ones with their reason."""
    command = [sys.executable, "-m", "relevo", "check", url, "--json", str(out), *CLIENT_KEYS, *PATIENCE, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.exists(), done.stdout + done.stderr
    results = json.loads(out.read_text())["results"]
    return {
        one["id"]: one["status"] + ": " + str(one.get("got") or one.get("reason"))
        for one in results
        if one["status"] != "passed"
    }


@pytest.mark.timeout(900)
def test_everything_holds_over_http(tmp_path: Path) -> None:
    """Red when the gateway's answers leave the OpenAI API, or a stream, a stop string or an abort goes wrong."""
    skips = [flag for one in NOT_FOR_THE_FAKE_MODEL for flag in ("--skip", one)]
    with stack("fake", "--topology", "1p1d", *KEYS) as running:
        told = run_check(running.url, "--skip", "chaos", "--skip", "oracle", *skips, out=tmp_path / "out.json")
    assert set(told) <= NOT_SHOWN, told
    assert all(reason.startswith("skipped") for reason in told.values()), told


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_everything_holds_when_processes_are_killed_and_stopped(tmp_path: Path) -> None:
    flags = ("--fake-base-s", "0.003", "--fake-per-token-s", "0.0001")
    with stack("fake", "--topology", "1p1d", *KEYS, *flags) as running:
        named = f"{running.process.pid}/relevo.cli.child worker"
        told = run_check(running.url, "--only", "chaos", "--processes", named, out=tmp_path / "out.json")
    assert set(told) == {"chaos.slow_link", "chaos.disk_full"}, told
    assert all("--chaos-command" in why for why in told.values()), told


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(3600)
def test_everything_holds_with_the_embedded_model_and_a_unified_server_as_oracle(tmp_path: Path) -> None:
    with (
        stack("smollm2", "--topology", "unified", "--dtype", "float32", *KEYS) as oracle,
        stack("smollm2", "--topology", "1p1d", "--dtype", "float32", *KEYS) as running,
    ):
        told = run_check(running.url, "--skip", "chaos", "--oracle", oracle.url, out=tmp_path / "out.json")
    assert set(told) <= NOT_SHOWN, told
    assert all(why.startswith("skipped") for why in told.values()), told
