"""The console in Chromium before a real server: `make console-check`. Each scenario is a program in tests/console.

Red when a value is not that of /metrics, when a killed gateway goes unsaid or the page does not come back, when a view
needs a pointer, when axe-core finds something serious, and when a name becomes more than text.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stack import Stack, descendants, stack

ROOT = Path(__file__).parents[2]
TOOLS = Path(os.environ.get("CONSOLE_CHECK", ROOT / "build/console-check"))
FLAGS = ("--num-kv-blocks", "512", "--max-model-len", "2048", "--fake-base-s", "0.005", "--topology", "1p1d")
KEY, ADMIN_KEY = "sk-of-a-tenant", "operator-of-the-tests"


def missing() -> str:
    if shutil.which("node") is None:
        return "node is not there (apt-get install nodejs)"
    if not any(shutil.which(name) for name in ("chromium", "google-chrome")):
        return "Chromium is not there (apt-get install chromium)"
    if not (TOOLS / "node_modules/playwright-core").is_dir():
        return f"playwright-core and axe-core are not in {TOOLS} (make console-check installs them)"
    return ""


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.skipif(bool(missing()), reason=missing())]


@pytest.fixture(scope="module")
def running() -> Iterator[Stack]:
    with stack("fake", *FLAGS) as server:
        yield server


def play(scenario: str, *arguments: str) -> None:
    """Fails with what the scenario says."""
    program = ROOT / "tests/console" / f"{scenario}.mjs"
    done = subprocess.run(
        ["node", str(program), *arguments],
        env={**os.environ, "CONSOLE_CHECK": str(TOOLS)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, f"{scenario}: {done.stdout}{done.stderr}"


def gateway_pid(server: Stack) -> int:
    """Of the supervisor's children the one that is no worker."""
    workers = set(server.pids().values())
    (gateway,) = [pid for pid in descendants(server.process.pid) if is_gateway(pid) and pid not in workers]
    return gateway


def is_gateway(pid: int) -> bool:
    return b"gateway" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_values_are_those_of_the_metrics_and_follow_them(running: Stack) -> None:
    play("live-values", running.url)


def test_every_view_is_reached_and_used_by_keyboard_alone(running: Stack) -> None:
    play("keyboard", running.url)


def test_axe_finds_nothing_serious_in_either_colour_scheme(running: Stack) -> None:
    play("accessibility", running.url)


def test_names_stay_text_whatever_is_in_them(running: Stack) -> None:
    play("names", running.url)


def test_a_slow_worker_is_seen_and_a_hidden_tab_asks_for_nothing(running: Stack) -> None:
    play("attention", running.url)


def test_with_keys_there_is_a_login_and_only_an_admin_drains() -> None:
    with stack("fake", *FLAGS, env={"RELEVO_API_KEY": KEY}) as server:
        play("keys", server.url, KEY, ADMIN_KEY)


def test_a_killed_gateway_is_said_at_once_and_the_page_comes_back() -> None:
    with stack("fake", *FLAGS) as server:
        play("reconnect", server.url, str(gateway_pid(server)))
