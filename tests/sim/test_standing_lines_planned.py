"""What already waits counts: a world that begins empty promises what a loaded server does not keep."""

from __future__ import annotations

from dataclasses import replace

from test_role_world import SLO, even, facts, world_of

from relevo.policy.scaling.demand import Demand, Sample
from relevo.policy.scaling.modes import modes_of
from relevo.sim.mode_worlds import ModeWorlds
from relevo.workload.requests import Workload

DEMAND = Demand(requests_per_s=2.0, samples=(Sample(300, 4),), longest_tokens=304)


def test_a_line_that_stands_is_worked_off_before_what_comes() -> None:
    """0.3 s a prompt, three workers, two requests a second. Red when the simulator is asked as if none waited."""
    worlds = ModeWorlds(workers=facts(3), max_model_len=4096, slo=SLO, num_requests=40)
    mode = modes_of({each.box: [each.worker_id] for each in facts(3)})[0]
    calm, few, many = (worlds.outlook(mode, replace(DEMAND, num_waiting=number)) for number in (0, 3, 40))
    assert calm.attained > 0.95 and few.attained > 0.9
    assert many.attained < calm.attained - 0.1
    assert 20 < many.num_judged <= 40, "what waits is not judged"
    most = worlds.outlook(mode, replace(DEMAND, num_waiting=10**6))
    assert most.num_judged <= 40 and most.attained == many.attained, "as large as the rest"


def test_the_window_knows_who_waits_in_line() -> None:
    """More than two workers can do. Red when the line in the gateway is not seen."""
    world, seen = world_of(Workload(requests=even(60, 0.1, 700, 4))), list[int]()

    def look() -> None:
        demand = world.window.look().demand
        if demand is not None:
            seen.append(demand.num_waiting)

    world.on_tick = look
    world.run()
    assert max(seen) > 20 > seen[-1]
