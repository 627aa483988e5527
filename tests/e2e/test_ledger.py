"""The usage ledger against what clients saw, over real processes and kill -9 of the gateway.

Red when an answer is completed before its row is kept, when a row is written twice or for nothing, when a path out of
a request (error, abort, stop string, several choices or prompts) forgets or miscounts a token, and when a cost is
rounded.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from ledger_traffic import PRICES, Comparison, compare, make_traffic, read_rows, run_traffic
from stack import Stack, descendants, stack

FLAGS = ("fake", "--topology", "1p1d", "--num-kv-blocks", "1024", "--max-model-len", "2048", "--log-level", "error")

NUM_AT_ONCE = 24

pytestmark = pytest.mark.timeout(400)  # several starts and hundreds of requests: on a busy machine, minutes


def metered(folder: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Flags and environment of a server whose ledger lies in `folder`."""
    prices = folder / "prices.json"
    prices.write_text(json.dumps(PRICES))
    return (*FLAGS, "--data-dir", str(folder), "--prices", str(prices)), {"RELEVO_DATABASE_URL": ""}


def relevo(*arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
    done = subprocess.run(
        [sys.executable, "-m", "relevo", *arguments], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def gateway_pid(running: Stack) -> int:
    return next(pid for pid in descendants(running.process.pid) if b"gateway" in _cmdline(pid))


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def run_and_compare(folder: Path, num_requests: int, kill_after: tuple[int, ...], seed: int) -> Comparison:
    """`kill_after`: numbers of complete answers after which the gateway is killed."""
    traffic = make_traffic(Random(seed), num_requests)
    flags, env = metered(folder)

    with stack(*flags, env=env) as running:

        def maybe_kill(num_complete: int) -> None:
            if num_complete in kill_after:
                os.kill(gateway_pid(running), signal.SIGKILL)

        asyncio.run(run_traffic(running.url, traffic, num_at_once=NUM_AT_ONCE, after_each=maybe_kill))
        running.wait_ready()
        total = running.get("/v1/usage?group_by=")["total"]
        running.wait_idle(60)
    rows = read_rows(folder / "relevo.db")
    seen = compare(traffic, rows, max_num_lost=NUM_AT_ONCE * len(kill_after))
    assert total["requests"] <= len(rows)  # rows of clients that left just now may have come later
    assert sum(sent.was_cut for sent in traffic) <= NUM_AT_ONCE * len(kill_after)
    told = json.loads(relevo("usage", "--by", "", "--format", "json", "--data-dir", str(folder)))["total"]
    assert told["completion_tokens"] == sum(row["completion_tokens"] for row in rows)
    assert told["requests"] == len(rows)
    return seen


def test_the_ledger_is_the_sum_over_all_answers(tmp_path: Path) -> None:
    seen = run_and_compare(tmp_path, 250, (), seed=1)
    assert seen.num_finished > 150 and seen.num_left > 5 and seen.num_refused > 10 and seen.num_cached_tokens > 1000


def test_kill_9_of_the_gateway_loses_and_doubles_nothing(tmp_path: Path) -> None:
    seen = run_and_compare(tmp_path, 250, (60, 140), seed=2)
    assert seen.num_finished > 120


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kill_after", [(), (900, 1900, 2900)], ids=["undisturbed", "three kills"])
def test_five_thousand_requests(tmp_path: Path, kill_after: tuple[int, ...]) -> None:
    seen = run_and_compare(tmp_path, 5000, kill_after, seed=3)
    sys.stdout.write(f"\n5000 requests, {len(kill_after)} kills of the gateway: {seen}\n")
    assert seen.num_finished > 3500


def ask(running: Stack, key: str | None, path: str = "/v1/completions", **fields: Any) -> tuple[int, Any, Any]:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    body = {"model": "fake", "prompt": [1, 2, 3, 4], "max_tokens": 4, **fields}
    data = json.dumps(body).encode() if path == "/v1/completions" else None
    request = urllib.request.Request(running.url + path, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read()), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), error.headers


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60  # far beyond the second it should take; only a broken refresh reaches it
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_keys_are_made_limited_and_revoked_while_the_server_runs(tmp_path: Path) -> None:
    def make_key(*arguments: str) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(relevo("keys", "create", *arguments, "--json", "--data-dir", str(tmp_path)))
        return made

    flags, env = metered(tmp_path)
    with stack(*flags, env=env) as running:
        assert ask(running, None)[0] == 200  # nobody needs a key yet
        admin, poor = make_key("boss", "--admin"), make_key("poor", "--budget", "0.000005")
        slow = make_key("slow", "--tokens-per-minute", "10", "--tenant", "acme")
        limit = "x-ratelimit-limit-tokens"
        wait_until(lambda: limit in ask(running, slow["key"], max_tokens=200)[2], "the new key is not known")
        assert ask(running, None)[0] == 401
        assert ask(running, "rv-guessed")[0] == 401

        status, error, headers = ask(running, slow["key"])  # 194 tokens in debt: minutes
        assert (status, error["error"]["code"]) == (429, "key_limit_reached")
        assert int(headers["Retry-After"]) >= 1 and headers[limit] == "10"

        spent = [ask(running, poor["key"])[0] for _ in range(4)]
        assert spent == [200, 429, 429, 429], "4 + 4 tokens cost 0.00000304: the second is ended"
        status, error, headers = ask(running, poor["key"])
        assert error["error"]["code"] == "insufficient_quota" and headers["x-should-retry"] == "false"

        mine = ask(running, poor["key"], "/v1/usage?group_by=key")[1]
        assert [row["key"] for row in mine["data"]] == [poor["key_id"]]
        everyone = ask(running, admin["key"], "/v1/usage?group_by=tenant")[1]
        assert {row["tenant"] for row in everyone["data"]} == {"", "acme", poor["tenant"]}

        relevo("keys", "revoke", slow["key_id"], "--data-dir", str(tmp_path))
        wait_until(lambda: ask(running, slow["key"])[0] == 401, "the revoked key still works")
        os.kill(gateway_pid(running), signal.SIGKILL)  # what was spent and revoked is not forgotten with the gateway
        running.wait_ready()
        assert ask(running, poor["key"])[0] == 429
        assert ask(running, slow["key"])[0] == 401
    listed = json.loads(relevo("keys", "list", "--format", "json", "--data-dir", str(tmp_path)))
    assert [key["state"] for key in listed] == ["active", "active", "revoked"]
    database = b"".join(path.read_bytes() for path in tmp_path.glob("relevo.db*"))
    assert not any(key["key"].encode() in database for key in (admin, poor, slow)), "a key lies in the database"
