"""Live and simulated, one workload: the same decisions, line by line."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import replace

from lockstep import VOCAB, LiveWorld
from worlds import assert_nothing_is_left, chat, config, outline, split

from relevo.core.decisions import DecisionLines
from relevo.core.request import SamplingParams
from relevo.engine.fake_model import FakeModel
from relevo.engine.fake_runner import fake_layout
from relevo.sim.clients import Habits
from relevo.sim.config import Fault, FaultKind, NetworkSpec, ServingSpec, WorldConfig
from relevo.sim.results import RequestOutcome, WorldResult
from relevo.sim.world import World
from relevo.workload.requests import Workload, WorkloadRequest

NUM_REQUESTS = 2000
DECIDED = ("queue", "route", "prefill", "grant", "hand_over", "take_over", "chunk", "preempt", "evict", "drop", "end")


def habits(row: WorkloadRequest) -> Habits:
    """One client in five leaves: before its first token, or after some."""
    if row.row % 10 == 3:
        return Habits(leaves_after_s=0.003 * (row.row % 40))
    if row.row % 10 == 7:
        return Habits(leaves_after_tokens=1 + row.row % 4)
    return Habits(session=bytes([row.row % 23]))


def workload_of(num_requests: int, rate_per_s: float) -> Workload:
    """Short ones of `worlds.chat`, so that there are many."""
    rows = [
        replace(
            row,
            num_prompt_tokens=1 + row.num_prompt_tokens // 4,
            num_output_tokens=1 + row.num_output_tokens // 2,
            hash_ids=row.hash_ids[: row.num_prompt_tokens // 256],
        )
        for row in chat(num_requests, rate_per_s).requests
    ]
    return Workload(requests=rows)


def world_of(num_requests: int, rate_per_s: float) -> WorldConfig:
    """Two prefill and two decode workers in one box, with too few blocks; one dies, one is drained."""
    traits = {"box": "box", "num_blocks": 20, "max_batched_tokens": 96, "max_prefill_tokens": 48, "max_running": 12}
    return config(
        split(2, 2, **traits),
        2,
        serving=ServingSpec(
            layout=fake_layout(16), max_model_len=1024, learns_costs=True, heartbeat_timeout_s=8.0, restart_s=0.2
        ),
        network=NetworkSpec(shares_memory=True),
        faults=(
            Fault(at_s=5.0, kind=FaultKind.KILL, target="decode-0"),
            Fault(at_s=9.0, kind=FaultKind.DRAIN, target="prefill-1"),
        ),
        until_s=num_requests / rate_per_s + 30.0,
    )


def test_live_and_simulated_runs_decide_the_same() -> None:
    """Red when a simulated part decides otherwise than the live one, or a decision depends on what only one of both
    has: bytes, tokens, tasks, sockets."""
    world, workload = world_of(NUM_REQUESTS, 50.0), workload_of(NUM_REQUESTS, 50.0)
    simulated: list[str] = []
    sim = World(world, workload, habits=habits, decisions=DecisionLines(simulated.append))
    sim_result = sim.run()
    live: list[str] = []
    with tempfile.TemporaryDirectory(prefix="p") as folder:
        lockstep = LiveWorld(folder, world, workload, habits=habits, decisions=DecisionLines(live.append))
        live_result = lockstep.run()
        num_lines = len(live)
        lockstep.close()
    for number, (one, other) in enumerate(zip(simulated, live[:num_lines], strict=False)):
        assert one == other, f"line {number}"
    assert len(simulated) == num_lines
    assert outline(sim_result) == outline(live_result)
    decided = Counter(json.loads(line)["decision"] for line in simulated)
    assert decided["arrive"] == NUM_REQUESTS and decided["lost"] == 4
    for decision in DECIDED:
        assert decided[decision] > 10, decided
    assert_nothing_is_left(sim)
    assert_exact_tokens(lockstep, live_result)


def assert_exact_tokens(world: LiveWorld, result: WorldResult) -> None:
    """Every fiftieth whole answer is what one worker alone would have said."""
    whole = [each for each in result.requests if each.outcome is RequestOutcome.FINISHED][::50]
    assert len(whole) > 20
    for each in whole:
        row = world.rows[each.row]
        sampling = SamplingParams(max_tokens=row.num_output_tokens, seed=0, temperature=0.0)
        expected = FakeModel(vocab_size=VOCAB).reference_tokens(world.tokens(row), sampling)
        assert world.requests[f"r{each.row}"].tokens == expected
