"""Whether a prompt is handed over is decided per request: against always and never, at every load."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from worlds import assert_nothing_is_left, config, split

from relevo.core.events import UNKNOWN_COSTS
from relevo.policy.routing.worker_choice import PrefillChoice, WorkerChooser, WorkerView
from relevo.sim.config import RegionSpec
from relevo.sim.gateway import SimGateway
from relevo.sim.results import RequestOutcome
from relevo.sim.world import World
from relevo.telemetry.latency import Slo
from relevo.workload.requests import Workload, WorkloadRequest

SLO = Slo(ttft_s=0.3, itl_s=0.05)


class Always(WorkerChooser):
    def choose_prefill(self, decode_view: WorkerView, *args: Any) -> PrefillChoice:
        """Without costs there is no reason to keep a prompt."""
        unknown = replace(decode_view, load=replace(decode_view.load, costs=UNKNOWN_COSTS))
        return super().choose_prefill(unknown, *args)


class Never(WorkerChooser):
    def choose_prefill(self, decode_view: WorkerView, views: Any, *args: Any) -> PrefillChoice:
        return super().choose_prefill(decode_view, [], *args)


class With(World):
    """A world whose gateway asks another chooser."""

    chooser: type[WorkerChooser] = WorkerChooser

    def make_gateway(self, gateway_id: str, region: RegionSpec) -> SimGateway:
        gateway = super().make_gateway(gateway_id, region)
        gateway.placement._chooser = self.chooser()
        return gateway


def agents(rate_per_s: float, num: int = 120) -> Workload:
    """Most turns add a few tokens to what is cached, some bring a whole file."""
    rng, at_s, rows = Random(1), 0.0, []
    for row in range(num):
        at_s += rng.expovariate(rate_per_s)
        prompt = rng.randint(16, 60) if rng.random() < 0.7 else rng.randint(400, 900)
        rows.append(WorkloadRequest(row=row, num_prompt_tokens=prompt, num_output_tokens=25, arrived_at_s=at_s))
    return Workload(requests=rows)


def attained(chooser: type[WorkerChooser], rate_per_s: float) -> float:
    world = With(config(split(1, 1)), agents(rate_per_s))
    for gateway in world.gateways.values():
        gateway.placement._chooser = chooser()
    world.run()
    assert_nothing_is_left(world)
    finished = [each for each in world.result.requests if each.outcome is RequestOutcome.FINISHED]
    return sum(SLO.is_met(each.times, each.times.tpot_s) for each in finished) / len(world.result.requests)


@pytest.mark.parametrize("rate_per_s", [4.0, 16.0, 28.0])
def test_each_request_goes_the_way_that_is_better_at_every_load(rate_per_s: float) -> None:
    """Red when a fixed length sends every turn away, so that the prefill worker saturates, or none."""
    found = {chooser.__name__: attained(chooser, rate_per_s) for chooser in (WorkerChooser, Always, Never)}
    assert found["WorkerChooser"] >= 0.95 * max(found.values()), found
