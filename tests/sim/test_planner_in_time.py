"""From a change of the traffic to a change of mode, on virtual time; what an answer of the simulator takes is an input.

Two workers of one core, as a small model was measured on them: in `1p1d` decoding has one core, which is too few for
long answers. What an answer takes is the cost of the process that gives way to a busy server.
"""

from __future__ import annotations

from functools import cache

import pytest
from worlds import assert_nothing_is_left

from relevo.sim.config import NetworkSpec, RegionSpec, ServingSpec, WorldConfig
from relevo.sim.day.machine import TWO_CORES
from relevo.sim.day.rules import Planned, give_roles, modes_of_specs, planned_in
from relevo.sim.role_world import RoleWorld
from relevo.workload.open_loop import Scale, open_loop
from relevo.workload.phases import CHAT, INPUT_HEAVY, OUTPUT_HEAVY, Phase
from relevo.workload.requests import Workload, WorkloadRequest

PHASE_S = 60.0
SCALE = Scale(0.2, 0.4)


def traffic(*phases: tuple[Phase, float]) -> Workload:
    found = list[WorkloadRequest]()
    for place, (kind, rate) in enumerate(phases):
        for one in open_loop(kind, rate, PHASE_S, 3 + place, scale=SCALE, block_size=TWO_CORES.block_size):
            at_s = (one.arrived_at_s or 0.0) + place * PHASE_S
            found.append(
                WorkloadRequest(
                    row=len(found),
                    num_prompt_tokens=one.num_prompt_tokens,
                    num_output_tokens=one.num_output_tokens,
                    arrived_at_s=at_s,
                )
            )
    return Workload(requests=found)


LONGER_ANSWERS = ((CHAT, 0.9), (OUTPUT_HEAVY, 2.6))


@cache
def run(start: str, answer_s: float, *phases: tuple[Phase, float]) -> tuple[RoleWorld, Planned]:
    specs = TWO_CORES.workers()
    config = WorldConfig(
        regions=(RegionSpec(workers=specs),),
        serving=ServingSpec(layout=TWO_CORES.layout, max_model_len=8192, enable_prefix_caching=False),
        network=NetworkSpec(shares_memory=True),
        seed=1,
    )
    world = RoleWorld(config, traffic(*phases), TWO_CORES.slo)
    mode = next(mode for mode in modes_of_specs(specs) if mode.name == start)
    if start != TWO_CORES.start_mode:
        world.kernel.call_at(world.traffic_at_ns - 1, give_roles, world, mode, "from the start")
    planned = planned_in(world, TWO_CORES.slo, num_requests=120, answer_s=answer_s)
    world.run()
    assert_nothing_is_left(world)
    return world, planned


def test_traffic_that_the_mode_cannot_serve_has_another_within_fifteen_seconds() -> None:
    """An answer takes 4 s beside a busy server. Red when a minute's window has to fill first, streams count when they
    end, a second look is waited for, or the first answers of a race do not suffice."""
    planned = run("1p1d", 4.0, *LONGER_ANSWERS)[1]
    after = [change for change in planned.changes if change.at_s >= PHASE_S]
    assert after and after[0].mode != "1p1d", planned.changes
    assert after[0].at_s - PHASE_S <= 15.0, after[0]
    assert len(planned.changes) <= 2


def test_what_comes_of_it_is_better_than_staying() -> None:
    """Of the requests of long answers, those of the last half of their minute."""
    world, planned = run("1p1d", 4.0, *LONGER_ANSWERS)
    begin_ns = world.traffic_at_ns + round(1.5 * PHASE_S * 1e9)
    late = [one for one in world.result.requests if 0 <= one.arrived_at_ns - begin_ns < 0.5 * PHASE_S * 1e9]
    met = [TWO_CORES.slo.is_met(one.times, one.times.tpot_s) for one in late]
    assert sum(met) >= 0.75 * len(met), [change.at_s for change in planned.changes]


@pytest.mark.slow
def test_a_mode_that_serves_all_of_it_stays() -> None:
    """Three kinds of traffic, one minute of each, and answers of 8 s. Red when it swings, or takes each minute for a
    reason."""
    planned = run("hybrid", 8.0, *LONGER_ANSWERS, (INPUT_HEAVY, 0.5))[1]
    assert len(planned.changes) <= 1, planned.changes
    assert planned.planning.num_decisions["undo"] == 0
