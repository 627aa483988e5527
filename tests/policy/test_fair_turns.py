"""Shares of a worker: slots, blocks and prompt tokens among tenants, and what a tenant alone may hold."""

from __future__ import annotations

import pytest
from scheduler_driver import Driver
from scheduler_model import make_request, reference

from relevo.core.request import EngineRequest


def asked(name: str, tenant: str, num_prompt: int = 3, num_outputs: int = 6, **rest: int) -> EngineRequest:
    start = 100 * (1 + sum(map(ord, name)))
    prompt = list(range(start, start + num_prompt))
    return make_request(name, prompt, max_tokens=num_outputs, ignore_eos=True, tenant=tenant, **rest)


def steps_until_first_token(driver: Driver, name: str, most: int) -> int:
    for number in range(1, most + 1):
        driver.scheduler.take_grants(driver.now_ns)
        assert driver.step() is not None
        if (name, 0) in driver.tokens:
            return number
    raise AssertionError(f"{name} had no token within {most} steps")


def exact(driver: Driver, requests: list[EngineRequest]) -> bool:
    return all(
        driver.tokens[request.request_id, i] == reference(request, i, driver.model.max_len)[0]
        for request in requests
        for i in range(request.sampling.n)
    )


@pytest.mark.parametrize("n", [8, 20], ids=["as many as there are slots", "more than there are slots"])
def test_continuations_of_one_tenant_keep_no_other_out(n: int) -> None:
    """Red when a request starts only once all of its continuations find slots, and none passes it."""
    driver = Driver(num_blocks=400)
    requests = [asked("a", "a", 3, 60), asked("wide", "a", 3, 60, n=n), asked("b", "b")]
    for request in requests[:2]:
        assert driver.submit(request) is None
    driver.step()
    assert driver.scheduler.load().num_running == 8, "slots that no other tenant wants are used"
    assert driver.submit(requests[2]) is None
    assert steps_until_first_token(driver, "b", 3) <= 3
    driver.drain()
    assert exact(driver, requests) and driver.is_clean()


def test_a_tenant_with_every_slot_gives_back_what_others_lack_and_draws_the_same_tokens() -> None:
    """Red when slots are first come, first served: a tenant with long streams keeps all others out."""
    driver = Driver(num_blocks=400)
    held = [asked(f"h{i}", "hostile", 3 + i, 60) for i in range(12)]
    mine = [asked(f"m{i}", "mine", 3 + i, 20) for i in range(6)]
    for request in held:
        assert driver.submit(request) is None
    for _ in range(3):
        driver.step()
    for request in mine:
        assert driver.submit(request) is None
    for _ in range(8):
        driver.step()
    started = [request.request_id for request in mine if (request.request_id, 0) in driver.tokens]
    assert started == ["m0", "m1", "m2", "m3"], "half of the slots, no more"
    assert driver.scheduler.load().num_running == 8, "none is idle"
    num_preemptions = driver.scheduler.num_preemptions
    driver.step()
    assert driver.scheduler.num_preemptions == num_preemptions == 4, "shares that are equal stay as they are"
    driver.drain()
    assert exact(driver, held + mine) and driver.is_clean()


def test_a_share_is_a_weight() -> None:
    driver = Driver(num_blocks=400, tenant_weights={"mine": 3.0})
    for i in range(12):
        driver.submit(asked(f"h{i}", "hostile", 3 + i, 60))
    driver.step()
    for i in range(12):
        driver.submit(asked(f"m{i}", "mine", 3 + i, 60))
    for _ in range(16):
        driver.step()
    assert sum((f"m{i}", 0) in driver.tokens for i in range(12)) == 6


def test_room_for_a_handoff_is_a_share_too() -> None:
    driver = Driver(num_blocks=400)
    for i in range(9):
        driver.submit(asked(f"h{i}", "hostile", 3 + i, 60))
    driver.step()
    assert driver.reserve(asked("mine", "mine")) is None
    granted: list[str] = []
    for _ in range(4):
        granted += driver.granted()
        driver.step()
    assert granted == ["mine"]


def test_a_prompt_of_another_tenant_does_not_wait_for_a_giant_one() -> None:
    """Red when the tokens of a step go to the tenant that came first until its prompt is computed."""
    driver = Driver(num_blocks=400, max_batched_tokens=16, max_model_len=700)
    giant, small = asked("giant", "hostile", 600, 2), asked("small", "mine", 10, 2)
    driver.submit(giant)
    driver.step()
    driver.submit(small)
    assert steps_until_first_token(driver, "small", 2) <= 2
    driver.drain()
    assert exact(driver, [giant, small])


def test_blocks_that_one_tenant_holds_are_given_back_to_others() -> None:
    """Red when the pool is first come, first served: the newcomer waits for as long as the streams last."""
    driver = Driver(num_blocks=24)
    held = [asked(f"h{i}", "hostile", 4, 20) for i in range(6)]
    for request in held:
        driver.submit(request)
    for _ in range(6):
        driver.step()
    mine = asked("mine", "mine", 6, 6)
    driver.submit(mine)
    assert steps_until_first_token(driver, "mine", 6) <= 6
    driver.drain()
    assert exact(driver, [*held, mine]) and driver.is_clean()


def test_who_holds_most_gives_way_when_the_pool_runs_out() -> None:
    """Red when the newest gives way: a tenant with streams that came first would push every other one out."""
    driver = Driver(num_blocks=16)
    held, mine = [asked(f"h{i}", "hostile", 2, 18) for i in range(4)], asked("mine", "mine", 2, 12)
    for request in [*held, mine]:
        driver.submit(request)
    for _ in range(12):
        driver.step()
    assert driver.reasons.get(("mine", 0)) is not None and driver.scheduler.num_preemptions
    driver.drain()
    assert exact(driver, [*held, mine]) and driver.is_clean()


def test_a_prompt_that_needs_nearly_every_block_neither_blocks_others_nor_waits_for_ever() -> None:
    """Red when none passes it, and when all do for ever."""
    driver = Driver(num_blocks=16)
    giant = asked("giant", "hostile", 28, 2)
    driver.submit(asked("m0", "mine", 4, 12))
    driver.step()
    driver.submit(giant)
    number, steps_to_start = 0, []
    while ("giant", 0) not in driver.tokens:
        number += 1
        assert number < 300, "the giant waits for ever"
        name = f"m{number}"
        driver.submit(asked(name, "mine", 4, 4))
        if number < 20:
            steps_to_start.append(steps_until_first_token(driver, name, 20))
        else:
            driver.step()
    assert number >= 20 and max(steps_to_start) <= 3, "small prompts pass it meanwhile"
    driver.drain()
    assert exact(driver, [giant]) and driver.is_clean()


def test_a_granted_priority_goes_before_shares_and_one_of_ones_own_does_not() -> None:
    driver = Driver(num_blocks=400, max_running=2)
    for name, tenant, priority in (("a0", "a", 0), ("a1", "a", 0), ("a2", "a", 0), ("b", "b", 5), ("c", "c", -1)):
        driver.submit(asked(name, tenant, 3, 4, priority=priority))
    driver.step()
    assert set(driver.tokens) == {("c", 0), ("a0", 0)}
    while ("b", 0) not in driver.tokens:
        driver.step()
    assert ("a2", 0) not in driver.tokens, "a tenant's own low priority is not below other tenants"
