"""What the gateway does with more load than the workers can take: goodput, fairness, deadlines; on virtual time."""

from __future__ import annotations

import pytest
from traffic import Traffic
from worlds import LAYOUT, config, worker

from relevo.core.events import StepCosts
from relevo.policy.admission.admission import AdmissionLimits
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.sim.config import ServingSpec

SLO_TTFT_S = 8.0
LIMITS = AdmissionLimits(
    max_queued_requests=256,
    max_queued_tokens=10**6,
    max_queued_batch_requests=1000,
    max_ttft_s=SLO_TTFT_S,
    max_line_s=300.0,
    max_batch_line_s=3600.0,
)
UNBOUNDED = AdmissionLimits()
TIMES = FittedStepTimes(StepCosts(base_s=0.08, per_token_s=0.004, per_kv_token_s=4e-6))
BUDGET = 256  # tokens of a step
CAPACITY_PER_S = 3.39  # of the world's two workers for its default request; checked by the first test


def overload(
    limits: AdmissionLimits,
    *,
    num_workers: int = 2,
    num_blocks: int = 400,
    max_running: int = 16,
    weights: dict[str, float] | None = None,
    seed: int = 0,
) -> Traffic:
    """Before workers that are slow enough for the line to matter."""
    traits = {"num_blocks": num_blocks, "max_running": max_running, "times": TIMES}
    traits |= {"max_batched_tokens": BUDGET, "max_prefill_tokens": BUDGET}
    workers = tuple(worker(f"w{index}", "unified", **traits) for index in range(num_workers))
    serving = ServingSpec(
        layout=LAYOUT,
        max_model_len=num_blocks * LAYOUT.block_size,
        admission=limits,
        tenant_weights=weights or {},
        enable_prefix_caching=False,
    )
    return Traffic(config(workers, serving=serving), seed)


def test_the_capacity_that_the_loads_below_are_multiples_of() -> None:
    world = overload(UNBOUNDED)
    for _ in range(200):
        world.ask(0.0)
    world.run()
    ends = sorted(asked.ended_at_s for asked in world.asked if asked.ended_at_s is not None)
    assert 120 / (ends[160] - ends[40]) == pytest.approx(CAPACITY_PER_S, rel=0.05)


def overloaded(times: float, load_s: float) -> Traffic:
    """`times` the capacity for `load_s`, then 0.8 times for ten seconds more."""
    world = overload(LIMITS)
    world.poisson(times * CAPACITY_PER_S, 0.0, load_s)
    world.poisson(0.8 * CAPACITY_PER_S, load_s, load_s + 15.0)
    world.run()
    return world


@pytest.mark.parametrize("load_s", [30.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_four_times_the_load_leaves_the_goodput_and_is_over_five_seconds_later(load_s: float) -> None:
    """Red when the line is bounded in requests only: everybody then waits for its whole length, and nobody in time."""
    at_capacity, overload = overloaded(1.0, load_s), overloaded(4.0, load_s)
    window = (5.0, load_s)
    assert overload.good(SLO_TTFT_S, *window) >= 0.9 * at_capacity.good(SLO_TTFT_S, *window)
    refused = [asked for asked in overload.asked if asked.refused]
    assert set(overload.refusals()) <= {"max_ttft", "standing_line"}
    at_once = [asked for asked in refused if (asked.ended_at_s or 0.0) - asked.at_s < 1e-6]
    assert len(at_once) >= 0.98 * len(refused)
    assert all(1.0 <= asked.retry_after_s <= 2 * SLO_TTFT_S for asked in refused)
    afterwards = [asked for asked in overload.asked if asked.at_s >= load_s + 5.0]
    assert afterwards and all(asked.is_complete for asked in afterwards)
    assert all(asked.ttft_s is not None and asked.ttft_s <= SLO_TTFT_S for asked in afterwards)
    assert overload.most_waiting <= 60, "the line grew although nobody at its end can be served in time"


def test_a_flood_of_one_tenant_delays_another_by_its_share_only() -> None:
    world = overload(UNBOUNDED, num_workers=1)
    for _ in range(400):
        world.ask(0.0, tenant="flood", num_outputs=2)
    few = [world.ask(1.0 + 10.0 * i, tenant="few", num_outputs=2) for i in range(10)]
    world.run()
    assert all(asked.is_complete for asked in world.asked), "somebody starved"
    own_s = 0.08 + 100 * 0.004
    assert max(asked.ttft_s or 0.0 for asked in few) <= 12 * own_s, "a quantum, what was sent ahead, and two steps"
    last_s = max(asked.ended_at_s or 0.0 for asked in world.asked)
    assert last_s <= 410 * own_s * 1.1, "the worker stood idle while somebody waited"


def test_who_asks_for_less_than_its_share_is_not_refused_for_an_overload_of_others() -> None:
    """Red when the short line of an overload is everybody's, instead of each tenant's in its fair turn."""
    world = overload(LIMITS)
    world.poisson(4.0 * CAPACITY_PER_S, 0.0, 40.0, tenant="flood")
    few = [world.ask(15.0 + 1.3 * i, tenant="few") for i in range(18)]
    urgent = [world.ask(15.5 + 2.6 * i, tenant="flood", priority=-1) for i in range(9)]
    world.run()
    assert world.refusals()["standing_line"] > 0, "it was no overload"
    assert all(asked.is_complete for asked in few + urgent)
    assert all((asked.ttft_s or 0.0) <= SLO_TTFT_S / 2 for asked in few + urgent)


def test_batch_requests_use_idle_room_and_do_not_delay_others() -> None:
    def world_with(num_batch: int) -> Traffic:
        world = overload(LIMITS, num_workers=1, max_running=8)
        for _ in range(num_batch):
            world.ask(0.0, is_batch=True, num_outputs=10)
        world.poisson(0.4 * CAPACITY_PER_S / 2, 0.0, 60.0)
        world.run()
        assert all(asked.is_complete for asked in world.asked), world.refusals()
        return world

    def ttfts(world: Traffic) -> list[float]:
        return sorted(a.ttft_s or 0.0 for a in world.asked if not a.habits.terms.is_batch)

    alone, shared = world_with(0), world_with(60)
    longest_step_s = 0.08 + 256 * 0.004
    assert ttfts(shared)[-3] <= ttfts(alone)[-3] + 2 * longest_step_s
    batch = [asked for asked in shared.asked if asked.habits.terms.is_batch]
    in_use = sum(1 for asked in batch if (asked.ended_at_s or 0.0) < 60.0)
    assert in_use >= 20, "idle room was left unused"


@pytest.mark.parametrize("seed", range(3))
def test_whoever_leaves_or_is_late_leaves_nothing_behind(seed: int) -> None:
    world = overload(LIMITS, num_blocks=60, max_running=4, seed=seed, weights={"a": 3.0})
    for i in range(120):
        world.ask(
            0.2 * i,
            num_prompt=10 + 37 * i % 300,
            num_outputs=1 + i % 40,
            priority=i % 3 - 1,
            gone_after_s=0.3 * (i % 11) if i % 4 == 0 else None,
            tenant="abc"[i % 3],
            is_batch=i % 7 == 0,
            timeout_s=4.0 if i % 5 == 0 else None,
            ttft_s=1.5 if i % 6 == 0 else None,
        )
    world.run()
    ended = [asked for asked in world.asked if asked.ended_at_s is not None]
    assert len(ended) == len(world.asked)
    late = [asked for asked in ended if asked.habits.terms.timeout_s == 4.0]
    assert all((asked.ended_at_s or 0.0) <= asked.at_s + 4.0 + 1e-6 for asked in late)
