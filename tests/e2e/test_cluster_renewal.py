"""Certificates of 20 s under load: processes, mutual TLS, five renewals and as many moves of every connection.

Red when a renewal costs a request, a byte or a stay in the cluster: then, in production, every third day would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import aiohttp
import pytest
from loopback_boxes import command, free_port

LIFE_S = 20
NUM_RENEWALS = 5
NUM_STREAMS = 6
START_S = 120.0


def wait_until_ready(url: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(f"{url}/ready", timeout=5) as answer:
            if json.load(answer)["ready"]:
                return
        time.sleep(0.2)
    raise AssertionError(f"no worker after {START_S} s:\n{log.read_text()[-2000:]}")


async def load(url: str, until_s: float) -> tuple[int, list[str]]:
    """Greedy streams, one after the other: how many, and what was wrong with any."""
    wrong: list[str] = []
    num_done = 0
    first: dict[str, str] = {}

    async def one(session: aiohttp.ClientSession, prompt: str) -> str:
        body = {"model": "fake", "prompt": prompt, "max_tokens": 200, "stream": True, "temperature": 0}
        text, ended = "", False
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            if answer.status != 200:
                raise ValueError(f"status {answer.status}")
            async for line in answer.content:
                if line.strip() == b"data: [DONE]":
                    ended = True
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise ValueError(str(event["error"]))
                    text += "".join(choice["text"] for choice in event["choices"])
        if not ended:
            raise ValueError("cut off")
        return text

    async def reader(number: int) -> None:
        nonlocal num_done
        prompt = f"reader {number} " * 20
        while time.monotonic() < until_s:
            try:
                text = await one(session, prompt)
            except (aiohttp.ClientError, ValueError, TimeoutError) as error:
                wrong.append(repr(error))
                continue
            num_done += 1
            if text != first.setdefault(prompt, text):
                wrong.append("another answer to the same prompt")

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        await asyncio.gather(*(reader(number) for number in range(NUM_STREAMS)))
    return num_done, wrong


@pytest.mark.slow
def test_five_renewals_under_load_cost_nothing(tmp_path: Path) -> None:
    relevo = [sys.executable, "-m", "relevo", "cluster"]
    life = ["--name", "a", "--certificate-life", f"{LIFE_S}s", "--out", "token"]
    subprocess.run([*relevo, "init", "--dir", "A", *life], cwd=tmp_path, check=True, capture_output=True)
    http, control, other = free_port(), free_port(), free_port()
    url = f"http://127.0.0.1:{http}"
    head = ("serve", "fake", "--topology", "none", "--cluster", f"127.0.0.1:{control}", "--cluster-dir", "A",
            "--port", str(http), "--data-dir", "data-a")  # fmt: skip
    node = ("join", f"127.0.0.1:{control}", "--token-file", "token", "--cluster-dir", "B", "--name", "b",
            "--listen", f"127.0.0.1:{other}", "--role", "unified", "--data-dir", "data-b")  # fmt: skip
    with command(tmp_path, "a.log", *head), command(tmp_path, "b.log", *node):
        wait_until_ready(url, tmp_path / "b.log")
        # a renewal at most every 0.6 of a life
        num_done, wrong = asyncio.run(load(url, time.monotonic() + NUM_RENEWALS * LIFE_S * 0.62 + 3))
    a_log, b_log = (tmp_path / "a.log").read_text(), (tmp_path / "b.log").read_text()
    assert not wrong, f"{wrong[:5]}\n{a_log[-1500:]}\n{b_log[-1500:]}"
    assert num_done > NUM_STREAMS * 10
    assert len(re.findall("certificate of node a was renewed", a_log)) >= NUM_RENEWALS
    assert len(re.findall("certificate of node b was renewed", b_log)) >= NUM_RENEWALS
    assert len(re.findall(r"node b joined \(epoch", a_log)) == 1, "it never left"
    assert "could not be renewed" not in a_log + b_log and "Traceback" not in a_log + b_log
    shown = json.loads(
        subprocess.run([*relevo, "show", "--dir", "A", "--format", "json"], cwd=tmp_path, check=True,
                       capture_output=True).stdout
    )  # fmt: skip
    assert {node["name"]: node["certificates"] > NUM_RENEWALS for node in shown["nodes"]} == {"a": True, "b": True}
