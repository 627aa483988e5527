"""An hour of production traffic on sixteen simulated workers: fast, small, and the same with jumps off."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from real_traces import trace
from worlds import split

from relevo.core.decisions import DecisionLines
from relevo.core.events import StepCosts
from relevo.core.kv import KVGroup, KVLayout
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.sim.config import RegionSpec, ServingSpec, WorldConfig
from relevo.sim.world import World
from relevo.workload.requests import Workload
from relevo.workload.traces.files import read_trace_file

NAME = "mooncake_conversation_trace.jsonl"
# About what a 70B model takes on eight A800 (policy.perf): 16 ms and 1.3 us per token of context, 0.11 ms per token.
TIMES = FittedStepTimes(StepCosts(base_s=0.0165, per_token_s=1.1e-4, per_kv_token_s=2.6e-8))
LAYOUT = KVLayout("llama-70b", "float16", 512, (KVGroup.full(range(80), 8, 128),))


def world() -> WorldConfig:
    workers = split(
        8, 8, times=TIMES, num_blocks=2600, max_batched_tokens=8192, max_prefill_tokens=2048, max_running=256
    )
    return WorldConfig(regions=(RegionSpec(workers=workers),), serving=ServingSpec(layout=LAYOUT))


def test_its_decisions_are_the_same_with_jumps_off() -> None:
    """Red when a request in line is let in by what a quiet stretch brought, or before its turn."""
    rows = read_trace_file(trace(NAME)).requests[:250]
    logs: list[list[str]] = [[], []]
    for lines, jumps in zip(logs, (True, False), strict=True):
        World(replace(world(), jumps=jumps), Workload(requests=rows), decisions=DecisionLines(lines.append)).run()
    assert logs[0] == logs[1]


def measured() -> dict[str, object]:
    """The whole trace in another process, so that its memory is its own."""
    command = [sys.executable, __file__, str(trace(NAME))]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_the_whole_hour_takes_less_than_a_gigabyte_and_twice_gives_the_same() -> None:
    """Seconds are not tested: `relevo simulate` says how long it took."""
    first, second = measured(), measured()
    assert first["num_requests"] == 12_031 and first["num_steps"] > 500_000
    assert int(str(first["peak_bytes"])) < 10**9
    assert first["digest"] == second["digest"]


if __name__ == "__main__":
    digest = hashlib.sha256()
    made = World(
        world(), read_trace_file(Path(sys.argv[1])), decisions=DecisionLines(lambda line: digest.update(line.encode()))
    )
    result = made.run()
    for each in result.requests:
        digest.update(repr((each.row, each.outcome, [list(run) for run in each.token_at_ns])).encode())
    sys.stdout.write(
        json.dumps(
            {
                "num_requests": len(result.requests),
                "num_steps": sum(each.num_steps for each in result.workers),
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "digest": digest.hexdigest(),
            }
        )
    )
