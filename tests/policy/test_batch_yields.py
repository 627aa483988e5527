"""Batch continuations give slots and blocks back to others that find none, and lose nothing but time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_driver import Driver
from scheduler_model import make_request

from relevo.core.request import BATCH_PRIORITY, EngineRequest, ServiceTerms


def asked(name: str, num_prompt: int, num_outputs: int, priority: int = 0) -> EngineRequest:
    prompt = [len(name) + i for i in range(num_prompt)]
    return make_request(name, prompt, max_tokens=num_outputs, min_tokens=num_outputs, priority=priority)


def batch(name: str, num_prompt: int, num_outputs: int) -> EngineRequest:
    request = asked(name, num_prompt, num_outputs, BATCH_PRIORITY)
    return replace(request, terms=ServiceTerms(is_batch=True))


def steps_until_first_token(driver: Driver, name: str, most: int = 10) -> int:
    for number in range(1, most + 1):
        plan = driver.plan()
        assert plan is not None
        driver.commit(plan)
        if driver.tokens.get((name, 0)):
            return number
    raise AssertionError(f"{name} had no token within {most} steps")


@pytest.mark.parametrize(
    ("shape", "prompt"),
    [({"max_running": 2, "num_blocks": 40}, 4), ({"max_running": 8, "num_blocks": 10}, 8)],
    ids=["slots", "blocks"],
)
def test_a_batch_gives_way_within_a_few_steps_and_finishes_later(shape: dict[str, int], prompt: int) -> None:
    """Red when preemption waits until a running continuation needs a block: the newcomer waits for a batch to end."""
    driver = Driver(**shape)
    for i in range(2):
        assert driver.submit(batch(f"b{i}", 4 + i, 12)) is None
    for _ in range(2):
        plan = driver.plan()
        assert plan is not None
        driver.commit(plan)
    assert driver.submit(asked("now", prompt, 3)) is None
    assert steps_until_first_token(driver, "now") <= 4
    driver.drain()
    assert {name: len(driver.tokens[name, 0]) for name in ("b0", "b1", "now")} == {"b0": 12, "b1": 12, "now": 3}
    assert driver.is_clean()


def test_others_do_not_give_way_to_each_other() -> None:
    driver = Driver(max_running=1, num_blocks=40)
    driver.submit(asked("first", 3, 8))
    plan = driver.plan()
    assert plan is not None
    driver.commit(plan)
    driver.submit(asked("second", 3, 2, -1))
    assert steps_until_first_token(driver, "second", most=20) >= 8


def test_a_batch_does_not_give_way_to_a_batch() -> None:
    driver = Driver(max_running=1, num_blocks=40)
    driver.submit(batch("first", 4, 8))
    driver.submit(batch("second", 5, 2))
    assert steps_until_first_token(driver, "second", most=20) >= 8


def test_room_for_a_handoff_is_made_too() -> None:
    driver = Driver(max_running=1, num_blocks=40)
    driver.submit(batch("b", 4, 30))
    for _ in range(2):
        plan = driver.plan()
        assert plan is not None
        driver.commit(plan)
    assert driver.reserve(asked("r", 3, 2)) is None
    granted: list[str] = []
    for _ in range(4):
        granted += driver.granted()
        plan = driver.plan()
        if plan is not None:
            driver.commit(plan)
    assert granted == ["r"]
