"""Workers that are ordered and given back: they come when they are due, lose no request, and are paid for until they
are gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from worlds import assert_nothing_is_left, chat, config, worker

from relevo.policy.scaling.enough_workers import CountLimits
from relevo.sim.config import Fault, FaultKind, ServingSpec
from relevo.sim.day.around_the_clock import AroundTheClock, hours_of
from relevo.sim.day.counts import Reactive
from relevo.sim.day.traffic import drawn_kinds
from relevo.sim.elastic_world import ElasticWorld
from relevo.sim.results import RequestOutcome
from relevo.telemetry.latency import Slo

SLO = Slo(ttft_s=0.5, itl_s=0.05)


def world_of(num_at_first: int, num: int = 60, rate: float = 3.0, **parts: Any) -> ElasticWorld:
    workers = tuple(worker(f"w{place}", "unified") for place in range(3))
    of = config(workers, **parts)
    of = replace(of, serving=ServingSpec(layout=of.serving.layout, max_model_len=4096, restart_s=4.0))
    return ElasticWorld(of, chat(num, rate), SLO, num_at_first=num_at_first, start_s=4.0, tick_s=1.0)


def at(world: ElasticWorld, second: float, number: int) -> None:
    world.kernel.call_at(world.traffic_at_ns + round(second * 1e9), world.set_count, number)


def finished(world: ElasticWorld) -> bool:
    assert_nothing_is_left(world)
    return all(each.outcome is RequestOutcome.FINISHED for each in world.result.requests)


def test_an_order_takes_its_time_and_is_paid_from_the_start() -> None:
    """Red when a worker serves before it could have started, or is free until then."""
    world, seen = world_of(1), list[tuple[float, int]]()
    at(world, 5.0, 2)
    world.on_tick = lambda: seen.append((world.now_s, len(world.there)))
    world.run()
    assert finished(world)
    came_s = next(now_s for now_s, number in seen if number == 2)
    assert 9.0 <= came_s <= 10.0
    assert abs(world.worker_s(world.traffic_at_ns + 15_000_000_000) - 25.0) < 0.01


def test_who_is_given_back_ends_what_it_has_and_costs_until_then() -> None:
    """Red when streams are lost with a worker, or it is paid for after its process has ended."""
    world = world_of(3)
    at(world, 6.0, 1)
    world.run()
    assert finished(world) and set(world.workers) == {"w0"}
    paid_s = world.worker_s(world.traffic_at_ns + 20_000_000_000)
    assert 20.0 + 2 * 6.0 <= paid_s < 20.0 + 2 * 9.0


def test_an_order_that_is_taken_back_does_not_come_early_when_it_is_given_again() -> None:
    world, seen = world_of(1), list[tuple[float, int]]()
    for second, number in ((2.0, 2), (4.0, 1), (5.0, 2)):
        at(world, second, number)
    world.on_tick = lambda: seen.append((world.now_s, len(world.there)))
    world.run()
    assert next(now_s for now_s, number in seen if number == 2) >= 9.0


def test_a_worker_that_dies_comes_back_if_it_is_still_wanted() -> None:
    world = world_of(2, faults=(Fault(at_s=3.0, kind=FaultKind.KILL, target="w1"),))
    world.run()
    assert finished(world) and set(world.workers) == {"w0", "w1"}


def test_a_usual_autoscaler_follows_the_load_up_and_down() -> None:
    """Red when the rival of a comparison never moves."""
    world = world_of(1, num=220, rate=25.0)
    reactive = Reactive(world, CountLimits(most=3), down_after_s=10.0)
    world.on_tick = reactive.tick
    world.run()
    assert finished(world) and reactive.changes and reactive.changes[0].num_workers > 1


def test_a_day_has_its_rhythm_its_burst_and_every_rule_a_name() -> None:
    hours = hours_of(60.0)
    total = [hour.code_per_s + hour.conversation_per_s for hour in hours]
    assert len(hours) == 24 and total[3] > 5 * total[4] and max(hour.code_per_s for hour in hours[8:]) > 2.9
    rules = AroundTheClock(kinds=drawn_kinds(0)).rules
    assert len(set(rules)) == len(rules) and {"4u", "4 hybrid", "1p3h", "reactive", "planner"} <= set(rules)
