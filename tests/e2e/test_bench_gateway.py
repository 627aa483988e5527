"""`relevo bench gateway` against real processes, and its arithmetic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from relevo.bench.gateway.run import DIRECT, EDGE, GATEWAY, SPELLED, PathCost, added_ms
from relevo.build.fake_tokenizer import fake_tokenizer_files
from relevo.gateway.text.tokenizer import Tokenizer


def test_every_way_delivers_every_token(tmp_path: Path) -> None:
    """Red when a way loses or repeats tokens, or its processes are not found."""
    target = tmp_path / "cost.json"
    flags = ["--num-streams", "5", "--output-len", "7", "--step-s", "0.005", "--rounds", "2", "--json", str(target)]
    done = subprocess.run(
        [sys.executable, "-m", "relevo", "bench", "gateway", *flags], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    ways = {way["name"]: way for way in json.loads(target.read_text())["ways"]}
    assert list(ways) == [DIRECT, GATEWAY, EDGE]
    assert {(way["num_tokens"], way["num_failed"]) for way in ways.values()} == {(2 * 5 * 7, 0)}
    assert ways[DIRECT]["cpu_us_per_token"] is None
    assert ways[GATEWAY]["cpu_us_per_token"] > 0


@pytest.mark.parametrize("proxy", ["x", "x=serve --port {port}", "x=serve {upstream}"])
def test_a_proxy_needs_a_port_and_an_upstream(proxy: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "relevo", "bench", "gateway", "--proxy", proxy], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--proxy" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_added_is_the_difference_of_quantiles() -> None:
    worker, gateway = PathCost(DIRECT), PathCost(GATEWAY)
    worker.ttft_s, gateway.ttft_s = [0.010] * 3, [0.012, 0.012, 0.012]
    worker.itl_s, gateway.itl_s = [0.020] * 4, [0.021] * 4
    added = added_ms(gateway, worker)
    assert added == pytest.approx({"ttft_p50": 2.0, "ttft_p99": 2.0, "itl_p50": 1.0, "itl_p99": 1.0})
    assert added_ms(gateway, PathCost(DIRECT)) == {}


def test_bytes_of_the_fake_engine_s_tokens_are_known_here() -> None:
    """Red when its vocabulary changes: then chunks of the direct way are not those of the others."""
    tokenizer = Tokenizer(fake_tokenizer_files())
    assert bytes(SPELLED) == b"".join(tokenizer.token_to_bytes(token_id) for token_id in range(len(SPELLED)))
