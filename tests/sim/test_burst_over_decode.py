"""A burst of prompts before one prefill worker and one that decodes, with and without counting who waits in line."""

from __future__ import annotations

import pytest
from worlds import assert_nothing_is_left, config, split

from relevo.core.events import StepCosts
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.sim.results import RequestOutcome, RequestResult
from relevo.sim.world import World
from relevo.workload.requests import Workload, WorkloadRequest

TIMES = FittedStepTimes(StepCosts(base_s=0.008, per_token_s=2e-4, per_kv_token_s=0.0))
ITL_TARGET_S = 0.03
NUM_STREAMS = 6


def burst() -> Workload:
    """Streams that run for long, and 30 prompts of 800 tokens within 1.5 s: five seconds of work for one worker."""
    streams = [(0.05 * place, 20, 600) for place in range(NUM_STREAMS)]
    prompts = [(1.5 + 0.05 * place, 800, 4) for place in range(30)]
    rows = enumerate([*streams, *prompts])
    return Workload(
        requests=[
            WorkloadRequest(row=row, num_prompt_tokens=prompt, num_output_tokens=answer, arrived_at_s=at_s)
            for row, (at_s, prompt, answer) in rows
        ]
    )


def run(itl_target_s: float) -> list[RequestResult]:
    traits = {"times": TIMES, "itl_target_s": itl_target_s, "num_blocks": 4000}
    world = World(config(split(1, 1, **traits)), burst())
    world.run()
    assert_nothing_is_left(world)
    found = sorted(world.result.requests, key=lambda each: each.row)
    assert all(each.outcome is RequestOutcome.FINISHED for each in found)
    return found


def ttft_s(results: list[RequestResult]) -> list[float]:
    times = [each.times.ttft_s for each in results[NUM_STREAMS:]]
    return sorted(each for each in times if each is not None)


def test_with_a_target_between_tokens_both_workers_compute_a_burst_and_streams_keep_the_target() -> None:
    """Red when a line waits for the prefill worker alone, or when streams pay more for it than the target."""
    bounded, free = run(ITL_TARGET_S), run(0.0)
    assert ttft_s(bounded)[-1] < 0.85 * ttft_s(free)[-1]
    gaps = [gap for each in bounded[:NUM_STREAMS] for gap in each.times.itl_s]
    assert max(gaps[1:]) == pytest.approx(ITL_TARGET_S, rel=0.4)
