"""A prefix cache fills the pool on purpose: with idle workers that is no reason for another role or another worker."""

from __future__ import annotations

from dataclasses import replace

from worlds import LAYOUT, assert_nothing_is_left, config, split, worker

from relevo.planner.worker_costs import WorkerCosts, WorkerRules
from relevo.policy.scaling.enough_workers import CountLimits
from relevo.policy.scaling.planner_limits import PlannerLimits
from relevo.policy.scaling.worker_count import CountPlanner
from relevo.sim.config import ServingSpec
from relevo.sim.day.counts import PlannedCount, Reactive
from relevo.sim.day.outlooks import Outlooks
from relevo.sim.day.rules import planned_in
from relevo.sim.elastic_world import ElasticWorld
from relevo.sim.role_world import RoleWorld
from relevo.sim.world import World
from relevo.telemetry.latency import Slo
from relevo.workload.requests import Workload, WorkloadRequest

SLO = Slo(ttft_s=0.5, itl_s=0.05)
NUM_BLOCKS = 100
SERVING = ServingSpec(layout=LAYOUT, max_model_len=4096, enable_prefix_caching=True)


def rare(num: int = 75) -> Workload:
    """Nothing in common, so every prompt stays in the cache until its blocks are needed."""
    return Workload(
        requests=[
            WorkloadRequest(row=row, num_prompt_tokens=300, num_output_tokens=20, arrived_at_s=1.6 * row)
            for row in range(num)
        ]
    )


def is_full(world: World) -> bool:
    """As far as a figure of free blocks tells."""
    return all(each.scheduler.pool.num_free < 0.25 * NUM_BLOCKS for each in world.workers.values())


def elastic() -> ElasticWorld:
    workers = tuple(worker(f"w{place}", "unified", num_blocks=NUM_BLOCKS) for place in range(3))
    of = replace(config(workers), serving=SERVING)
    return ElasticWorld(of, rare(), SLO, num_at_first=1, start_s=4.0, tick_s=5.0)


def watched(world: RoleWorld) -> list[bool]:
    """Whether the pools were full, tick by tick."""
    seen, act = list[bool](), world.on_tick

    def tick() -> None:
        seen.append(is_full(world))
        act()

    world.on_tick = tick
    return seen


def test_roles_stay() -> None:
    world = RoleWorld(config(split(1, 1, num_blocks=NUM_BLOCKS), serving=SERVING), rare(), SLO)
    planned = planned_in(world, SLO, limits=PlannerLimits(error_weight=0.0), num_requests=40)
    seen = watched(world)
    world.run()
    assert_nothing_is_left(world)
    decode = world.workers["decode-0"].scheduler.pool
    assert decode.num_free < 0.25 * NUM_BLOCKS < decode.num_reusable and len(seen) > 20
    judged = [found for _, found in planned.decisions if found.outlooks]
    assert len(judged) > 5 and planned.changes == []


def test_no_worker_is_ordered() -> None:
    """By neither rule. Red when blocks that can be evicted count as taken."""
    for is_planned in (False, True):
        world, limits = elastic(), CountLimits(most=3)
        rules = WorkerRules(budget_tokens=512, block_size=16, max_running=32, itl_target_s=0.0)
        costs = WorkerCosts(rules)
        if is_planned:
            rule: Reactive | PlannedCount = PlannedCount(
                world=world,
                planner=CountPlanner(limits, 0.5, 4.0),
                limits=limits,
                costs=costs,
                outlooks=Outlooks(costs=costs, max_model_len=4096, slo=SLO, surge=0.0, num_requests=40),
                answer_s=1.0,
            )
        else:
            rule = Reactive(world, limits)
        world.on_tick = rule.tick
        seen = watched(world)
        world.run()
        assert_nothing_is_left(world)
        assert seen[-1] and sum(seen) > len(seen) / 2
        assert rule.changes == [] and set(world.ordered) == {"w0"}
