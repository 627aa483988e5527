"""`relevo check` of vLLM behind Relevo, beside the same vLLM alone and behind vLLM's own router: `make cluster-vllm`.

Both engines serve their own API here as well. Red when vLLM behind Relevo fails a check of a kind that it passes alone.
The router is that of PyPI.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from machines import Network, why_not
from vllm_machines import VLLM, Pair, until, vllm_pair

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.skipif(not (VLLM / ".installed").exists(), reason="make cluster-vllm installs vLLM first"),
]
GROUPS = os.environ.get(
    "CHECKS", "shape stream sse stop logprobs choices usage limits errors unicode concurrency cancel"
)
ROUTER = Path(os.environ.get("VLLM_ROUTER") or VLLM / "router" / "bin" / "vllm-router")
ROUTER_PORT = 8300


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("checked")
    with Network(2) as network, vllm_pair(network, folder, has_own_api=True) as running:
        yield running


@dataclass
class Checked:
    results: dict[str, dict[str, Any]]  # by id of the check
    deaths: list[str]  # groups of checks in which an engine ended

    def ids(self, status: str) -> set[str]:
        return {name for name, each in self.results.items() if each["status"] == status}


def checked(pair: Pair, name: str, url: str) -> Checked:
    """Group by group, so that an engine that ends in one is there again in the next."""
    done = Checked({}, [])
    for group in GROUPS.split():
        told = pair.folder / f"{name}-{group}.json"
        command = ["-m", "relevo", "check", url, "--json", str(told), "--quiet", "--settle-s", "20", "--only", group]
        with (pair.folder / f"{name}.txt").open("a") as shown:
            pair.gateway.start(sys.executable, *command, stdout=shown, stderr=shown).wait(3000)
        done.results |= {each["id"]: each for each in json.loads(told.read_text())["results"]}
        done.deaths += [f"{role} in {group}" for role in pair.revived()]
    statuses = dict(Counter(each["status"] for each in done.results.values()))
    sys.stdout.write(f"\n{name}: {statuses}; engines that ended: {done.deaths}\n")
    for each in done.results.values():
        if each["status"] == "failed":
            sys.stdout.write(f"  {each['id']}: {each['got'][:160]!r}\n")
    return done


def test_behind_relevo_nothing_fails_that_passes_alone(pair: Pair) -> None:
    behind = checked(pair, "behind-relevo", pair.url)
    alone = checked(pair, "alone", pair.decode.url)
    assert not behind.ids("failed") & alone.ids("passed")
    assert not behind.deaths


@pytest.mark.skipif(not ROUTER.exists(), reason="vllm-router is not installed beside vLLM")
def test_behind_the_router_of_vllm(pair: Pair) -> None:
    """For the record."""
    pair.wait_paired()  # its engines may have been started anew
    words = ["--host", "0.0.0.0", "--port", str(ROUTER_PORT), "--vllm-pd-disaggregation", "--kv-connector", "nixl"]
    words += ["--prefill", pair.prefill.url, "--decode", pair.decode.url]
    with (pair.folder / "router.log").open("wb") as log:
        router = pair.gateway.start(str(ROUTER), *words, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://{pair.gateway.address}:{ROUTER_PORT}"
    try:
        until(lambda: '"data"' in pair.gateway.run("curl", "-s", f"{url}/v1/models", check=False).stdout, 120)
        checked(pair, "behind-vllm-router", url)
    finally:
        router.kill()
        router.wait()
