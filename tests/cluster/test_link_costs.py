"""What handoffs over a link of 1 Gbit/s and 5 ms take, by the length of the prompt, beside what the router expected.

Red when a short prompt travels over that link, whose two round trips take longer than computing it, or when a long one
never does. The table is for the lab log: `pytest -m slow -s tests/cluster/test_link_costs.py`.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from boxes import HTTP_PORT, Box, Boxes
from clusters import blocks_are_back
from machines import Network

from relevo.core.events import StepCosts
from relevo.core.handoff import Link
from relevo.policy.perf.handoff_costs import BoxPair, HandoffCostModel

HALF_WAY_S = 0.0025  # between a box and the router: 5 ms from box to box, 10 ms there and back
BYTES_PER_TOKEN = 2 * 30 * 3 * 64 * 2  # of KV: keys and values, layers, heads, channels, bfloat16
LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
NUM_EACH = 5
FIRST_HANDOFF_TOKENS = 512
WORKERS = ("p/prefill-0", "d/decode-0")
ASK = """
import json, sys, urllib.request
url, name, tokens = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
body = {"model": "smollm2", "prompt": tokens, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
head = {"content-type": "application/json", "x-request-id": name}
urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head), timeout=120).read()
"""


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(1500)
def test_short_prompts_stay_where_they_are_decoded(make_network: Callable[..., Network], boxes: Boxes) -> None:
    net = make_network(3, names=("gate", "p", "d"), rate="1gbit", delay_s=HALF_WAY_S)
    head = boxes.serve(net.machines[0], "--topology", "none", model="smollm2")
    for machine, role, core in zip(net.machines[1:], ("1p", "1d"), cores(), strict=True):
        boxes.join(machine, [net.machines[0]], role, "--set", f"cores={core}")
    boxes.until(lambda: len(head.ready_workers()) == 2, 300, what="workers of both boxes")
    boxes.until(lambda: measured(head) is not None, 60, "the way between the boxes is measured")
    way = measured(head)
    assert way is not None
    expected, pair = HandoffCostModel(), BoxPair("p", "d")
    first_s = 2 * way["round_trip_s"] + FIRST_HANDOFF_TOKENS * BYTES_PER_TOKEN / way["bytes_per_s"]
    expected.expect(pair, first_s)
    say(
        f"\nlink: {way['bytes_per_s'] / 1e6:.0f} MB/s, {1e3 * way['round_trip_s']:.1f} ms; first {1e3 * first_s:.0f} ms"
    )
    say("tokens | handed over | prefill, expected | measured | TTFT | handoff, expected | measured | by its bytes, ms")
    shares = {}
    for turn, length in enumerate((64, *LENGTHS)):  # the first are for the workers to measure their steps
        rows = [ask(head, length, NUM_EACH * turn + number) for number in range(NUM_EACH)]
        shares[length] = statistics.fmean(row["is_handed_over"] for row in rows)
        costs = {worker["role"]: costs_of(worker) for worker in head.get("/v1/state")["workers"]}
        told_s = expected.handoff_s.get(WORKERS, expected.handoff_s[pair])
        for row in rows:
            if row["is_handed_over"]:
                step_s = costs["decode"].step_s(1, length)
                expected.observe(Link.NETWORK, row["handoff_s"], step_s, WORKERS)
        who = "prefill" if shares[length] > 0.5 else "decode"
        by_bytes_s = 2 * way["round_trip_s"] + length * BYTES_PER_TOKEN / way["bytes_per_s"]
        figures = [
            costs[who].step_s(length, length), median(rows, "prefill_s"), median(rows, "ttft_s"),
            told_s, median(rows, "handoff_s"), by_bytes_s,
        ]  # fmt: skip
        shown = " | ".join("-" if each is None else f"{1e3 * each:.1f}" for each in figures)
        say(f"{length} | {shares[length]:.0%} | {shown}")
    assert shares[1] == shares[2] == 0.0, "short prompts travelled"
    assert shares[1024] > 0.0, "long prompts did not"
    blocks_are_back(boxes, head)


def cores() -> tuple[int, int]:
    """One for each, so that the two do not wait for each other; the same where there is no other."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def measured(head: Box) -> Mapping[str, Any] | None:
    links = [link for link in head.nodes()["p"]["links"] if link["to_node"] == "d" and link["bytes_per_s"]]
    return links[0] if links else None


def ask(head: Box, length: int, number: int) -> dict[str, Any]:
    """A prompt of random tokens, alone; what the gateway tells of it afterwards."""
    rng, name = random.Random(f"{length} {number}"), f"length-{length}-{random.getrandbits(32)}"
    tokens = [rng.randrange(100, 40_000) for _ in range(length)]
    url = f"http://127.0.0.1:{HTTP_PORT}/v1/completions"
    head.machine.run(sys.executable, "-I", "-S", "-c", ASK, url, name, json.dumps(tokens), timeout_s=180)
    told = head.get(f"/v1/requests/{name}")
    took = {phase["name"]: phase["took_s"] for phase in told["phases"]}
    return {
        "ttft_s": told["ttft_s"],
        "prefill_s": took.get("prefill"),
        "handoff_s": took.get("handoff"),
        "is_handed_over": "handoff" in took,
    }


def median(rows: list[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]
    return statistics.median(values) if values else None


def costs_of(worker: Mapping[str, Any]) -> StepCosts:
    return StepCosts(**worker["costs"])


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
