"""What a planner learns of workers' step costs, and from whom it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from relevo.core.events import UNKNOWN_COSTS, StepCosts, StepCounters, WorkerLoad
from relevo.orchestrator.ports import WorkerStatus
from relevo.planner.worker_costs import YOUNG_S, WorkerCosts, WorkerRules

GOOD = StepCosts(base_s=0.01, per_token_s=1e-4, per_kv_token_s=1e-7)
COLD = StepCosts(base_s=1.0, per_token_s=1e-2, per_kv_token_s=1e-7)
RULES = WorkerRules(budget_tokens=512, block_size=16, max_running=8, itl_target_s=0.05)


def worker(worker_id: str, costs: StepCosts, num_cores: int = 4, role: str = "decode", **parts: Any) -> WorkerStatus:
    load = WorkerLoad(costs=costs, num_total_blocks=100, **parts.pop("load", {}))
    told: dict[str, Any] = {"epoch": 1, "ready": True, "box_id": "box", "started_on": (0, 1, 2, 3)} | parts
    cores = tuple(range(num_cores))
    return WorkerStatus(worker_id=worker_id, role=role, pid=1, load=load, counters=StepCounters(), cores=cores, **told)


def known(costs: WorkerCosts) -> dict[int, StepCosts]:
    (facts,) = costs.facts([worker("any", GOOD)])
    return dict(facts.costs)


def test_a_worker_that_has_just_started_teaches_nothing_that_is_known_better() -> None:
    """Its kernels are cold. Red when capacity seems to fall because a worker was restarted."""
    costs = WorkerCosts(RULES)
    costs.learn([worker("a", COLD)], 0.0)
    assert known(costs) == {4: COLD}, "better than nothing"
    costs.learn([worker("a", GOOD)], YOUNG_S)
    costs.learn([worker("a", COLD, epoch=2)], YOUNG_S + 1)
    assert known(costs) == {4: GOOD}
    costs.learn([worker("a", COLD, epoch=2)], 2 * YOUNG_S + 1)
    assert known(costs) == {4: COLD}, "it stays as slow as that"


def test_costs_of_other_cores_are_not_taken_for_those_of_the_new_ones() -> None:
    """A worker tells the costs of its former cores until it has computed on the new ones. Red when eight cores seem to
    be as fast as four for ever, and one core of a worker on standby, too."""
    costs = WorkerCosts(RULES)
    for now_s in (0.0, YOUNG_S):
        costs.learn([worker("a", GOOD), worker("b", GOOD)], now_s)
    standby = {"role": "standby", "num_cores": 1}
    costs.learn([worker("a", GOOD, num_cores=8), worker("b", GOOD, **standby)], YOUNG_S + 5)
    assert known(costs) == {4: GOOD}
    (facts,) = costs.facts([worker("a", GOOD)])
    scaled = facts.costs_on(8)
    gain = GOOD.per_token_s / scaled.per_token_s
    assert 1.5 < gain < 2.0, "scaled until they are measured, by less than the number"
    assert facts.costs_on(2).per_token_s >= gain * GOOD.per_token_s, "no less is taken away with fewer"
    assert (scaled.base_s, scaled.per_kv_token_s) == (GOOD.base_s, GOOD.per_kv_token_s), "no step is shorter than reads"
    assert facts.costs_on(2).base_s == 2 * GOOD.base_s
    costs.learn([worker("a", COLD, num_cores=8), worker("b", GOOD, **standby)], 3 * YOUNG_S)
    assert known(costs) == {4: GOOD, 8: COLD}


def test_a_worker_that_leaves_or_has_said_nothing_teaches_nothing() -> None:
    costs = WorkerCosts(RULES)
    costs.learn([worker("a", COLD, ready=False), worker("b", UNKNOWN_COSTS)], 100.0)
    assert known(costs) == {}


def test_budgets_are_those_that_the_worker_has() -> None:
    """Red when a server is simulated with longer chunks beside streams than it takes."""
    counters = StepCounters(step_budget_tokens=256, prefill_budget_tokens=64)
    (facts,) = WorkerCosts(RULES).facts([replace(worker("a", GOOD), counters=counters)])
    assert (facts.max_batched_tokens, facts.max_prefill_tokens) == (256, 64)


def test_blocks_that_can_be_evicted_are_room() -> None:
    """A prefix cache fills the pool on purpose. Red when a full cache is planned for as a full worker."""
    full, empty = {"num_reusable_blocks": 100}, {"num_free_blocks": 100}
    costs = WorkerCosts(RULES)
    assert costs.facts([worker("a", GOOD, load=full)]) == costs.facts([worker("a", GOOD, load=empty)])


def test_steps_that_take_longer_than_was_learned_count_as_long_as_they_take() -> None:
    """Costs are one line through steps of all sizes; steps of some twenty rows, which a target between tokens makes of
    long prompts, took 1.3 times as long live. Red when a mode that takes such steps is promised what it cannot keep."""
    costs, num_steps, taken = WorkerCosts(RULES), 0, []
    for look in range(8):
        counters = StepCounters(
            num_steps=num_steps,
            num_prefill_tokens=16 * num_steps,
            num_generation_tokens=4 * num_steps,
            busy_s=1.3 * num_steps * GOOD.step_s(20, 400),
        )
        told = replace(worker("a", GOOD, load={"num_decode_kv_tokens": 400}), counters=counters)
        costs.learn([told], look * YOUNG_S)
        taken.append(known(costs)[4].step_s(20, 400) / GOOD.step_s(20, 400))
        num_steps += 100
    assert taken[0] == 1.0, "nothing is known yet"
    assert taken[-1] == pytest.approx(1.3, rel=0.05)


def test_steps_that_take_about_what_was_learned_change_nothing() -> None:
    """Red when noise makes other costs with each look, so that no answer of the simulator holds."""
    costs, busy_s = WorkerCosts(RULES), 0.0
    for look, noise in enumerate((1.0, 1.08, 0.93, 1.1)):
        counters = StepCounters(num_steps=100 * look, num_generation_tokens=400 * look, busy_s=busy_s)
        busy_s += noise * 100 * GOOD.step_s(4, 0)
        costs.learn([replace(worker("a", GOOD), counters=counters)], look * YOUNG_S)
    assert known(costs) == {4: GOOD}
