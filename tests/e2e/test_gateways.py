"""Two gateways on one port: one is killed, the other's clients do not notice, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from urllib.error import URLError

from stack import Stack, descendants, stack

SLOW_STEPS = ("--fake-base-s", "0.02", "--num-kv-blocks", "512", "--max-model-len", "2048")


def gateway_pids(running: Stack) -> list[int]:
    pids = descendants(running.process.pid)
    return [pid for pid in pids if b"gateway" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_killed_gateway_disturbs_only_its_own_clients_and_comes_back() -> None:
    """Red when a dead gateway's blocks stay held, when the other gateway's requests fail or change, or when the port
    is closed meanwhile."""
    with stack("fake", "--topology", "1p1d", "--gateways", "2", *SLOW_STEPS) as running:
        with ThreadPoolExecutor(64) as pool:
            futures: list[Future[object]] = []
            while len(busy_gateways(running)) < 2:  # whoever accepts first serves
                futures.append(pool.submit(answer_or_none, running, prompt_of(len(futures))))
            victim = gateway_pids(running)[0]
            os.kill(victim, signal.SIGKILL)
            answers = [future.result() for future in futures]
        running.wait_idle(30)
        kept = {number: answer for number, answer in enumerate(answers) if answer is not None}
        assert kept, "the other gateway had clients too"
        for number, answer in list(kept.items())[:3]:
            assert answer_or_none(running, prompt_of(number)) == answer
        while not all(gateway["ready"] for gateway in running.get("/ready")["gateways"]):
            pass  # and /ready is 200 all the time
        assert len(gateway_pids(running)) == 2
        assert victim not in gateway_pids(running)


def prompt_of(number: int) -> list[int]:
    return [(number * 31 + i) % 256 for i in range(50)]


def busy_gateways(running: Stack) -> list[str]:
    return [
        dict(labels)["gateway"]
        for (name, labels), value in running.metrics().items()
        if name == "relevo:requests_in_flight" and value
    ]


def answer_or_none(running: Stack, prompt: list[int]) -> object:
    """None: the connection was cut."""
    try:
        return running.post(
            "/v1/completions",
            {"model": "fake", "prompt": prompt, "temperature": 0, "max_tokens": 80, "ignore_eos": True},
        )["choices"]
    except (URLError, ConnectionError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return None
