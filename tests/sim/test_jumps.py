"""Quiet stretches taken at once change nothing that is decided, and no time at which a token arrives."""

from __future__ import annotations

from dataclasses import replace

import pytest
from worlds import assert_nothing_is_left, chat, config, outline, split, worker

from relevo.core.decisions import DecisionLines
from relevo.core.request import ServiceTerms
from relevo.sim.clients import Habits
from relevo.sim.config import Fault, FaultKind, NetworkSpec, WorldConfig
from relevo.sim.results import WorldResult
from relevo.sim.world import World
from relevo.workload.requests import Workload, WorkloadRequest


def long_answers(num_requests: int, rate_per_s: float) -> Workload:
    rows = [
        replace(row, num_output_tokens=4 * row.num_output_tokens) for row in chat(num_requests, rate_per_s).requests
    ]
    return Workload(requests=rows)


def habits(row: WorkloadRequest) -> Habits:
    if row.row % 7 == 3:
        return Habits(leaves_after_s=0.05 * (row.row % 30))
    if row.row % 7 == 5:
        return Habits(leaves_after_tokens=20)
    if row.row % 7 == 6:
        return Habits(reads_every_s=0.05)
    return Habits(session=bytes([row.row % 9]))


def tenants(row: WorkloadRequest) -> Habits:
    return Habits(terms=ServiceTerms(tenant="abc"[row.row % 3], is_batch=row.row % 5 == 0), priority=-(row.row % 2))


KILLS = (
    Fault(at_s=2.0, kind=FaultKind.KILL, target="decode-0"),
    Fault(at_s=3.0, kind=FaultKind.SLOW, target="decode-1", for_s=2.0, times=2.0),
    Fault(at_s=4.0, kind=FaultKind.DRAIN, target="prefill-0"),
)
ONE_BOX = NetworkSpec(shares_memory=True)
WORLDS = {
    "calm": (config(split(2, 2)), long_answers(150, 4.0), lambda row: Habits()),
    "leaving clients, faults": (config(split(2, 2), faults=KILLS), long_answers(150, 6.0), habits),
    "full pools": (config(split(2, 2, num_blocks=100)), long_answers(150, 8.0), habits),
    "a line": (config(split(1, 2)), long_answers(200, 30.0), habits),
    "tenants in line": (config(split(1, 2)), long_answers(150, 30.0), tenants),
    "unified": (config((worker("one", "unified"), worker("two", "unified"))), long_answers(150, 8.0), habits),
    "many ends": (config((worker("one", "hybrid"), worker("two", "hybrid"))), chat(200, 12.0), habits),
    "several answers": (config(split(1, 2)), chat(100, 4.0), lambda row: Habits(num_samples=1 + row.row % 3)),
    "one box": (
        config(split(1, 2, box="box"), network=NetworkSpec(shares_memory=True)),
        long_answers(150, 8.0),
        habits,
    ),
}


def run(world: WorldConfig, workload: Workload, habits: object) -> tuple[list[str], WorldResult, World]:
    lines: list[str] = []
    made = World(world, workload, habits=habits, decisions=DecisionLines(lines.append))  # type: ignore[arg-type]
    return lines, made.run(), made


@pytest.mark.parametrize("name", WORLDS)
def test_decisions_and_token_times_are_the_same_with_jumps_off(name: str) -> None:
    """Red when a load is read before the steps that made it are told, a token arrives at another time, or a message
    waits for the wrong step."""
    world, workload, habits = WORLDS[name]
    jumping, jumped, one = run(world, workload, habits)
    stepping, stepped, other = run(replace(world, jumps=False), workload, habits)
    for number, (with_jumps, without) in enumerate(zip(jumping, stepping, strict=False)):
        assert with_jumps == without, f"line {number}"
    assert len(jumping) == len(stepping)
    assert outline(jumped) == outline(stepped)
    for each in (one, other):
        assert_nothing_is_left(each)
    mine, theirs = jumped.workers, stepped.workers
    assert [(each.num_steps, each.busy_ns) for each in mine] == [(each.num_steps, each.busy_ns) for each in theirs]
    assert jumped.num_events < stepped.num_events * 0.9 or name in ("full pools", "tenants in line", "a line")
