"""Roles change under load: real dispatchers and step loops, no request is lost, moved or answered differently."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
import pytest
from by_hand import Link, World
from in_process_stack import InProcessStack, in_process_stack, request_for, until

from relevo.core.errors import InvalidRequest, NoWorker
from relevo.core.events import WorkerLimits
from relevo.core.ids import WorkerId
from relevo.core.role import DECODE, HYBRID, NAMED, PREFILL, STANDBY, UNIFIED, Role, RoleChange
from relevo.wire import messages as wire

SPLIT = {"prefill-0": "prefill", "decode-0": "decode"}
NUM_SWITCHES = 200


def prompt_of(number: int) -> list[int]:
    return [(31 * number + i) % 250 for i in range(5 + number % 40)]


async def alone(number: int) -> list[int]:
    async with in_process_stack({"unified-0": "unified"}, num_gateways=1) as stack:
        return (await stack.gateways[0].tokens(request_for(number, prompt_of(number), 12)))[0]


def roles_of(stack: InProcessStack) -> list[str]:
    return [worker.role for worker in stack.gateways[0].dispatcher.status().workers]


async def test_switches_under_streams_and_arriving_prompts_change_no_answer() -> None:
    """200 switches, any role to any other, by two gateways in turn. Red when a request hangs, ends early or has another
    token, and when a block stays held."""
    random = Random(7)
    async with in_process_stack(SPLIT | {"decode-1": "decode"}, num_gateways=2) as stack:
        names = list(stack.workers)

        async def switch() -> None:
            for place in range(NUM_SWITCHES):
                gateway = stack.gateways[place % 2]
                wanted: dict[str, Role] = {random.choice(names): random.choice([*NAMED.values(), Role(3, 1)])}
                try:
                    gateway.dispatcher.set_roles(wanted, "a test")
                except InvalidRequest as refused:
                    assert "has to serve" in refused.message
                for _ in range(random.randrange(8)):
                    await asyncio.sleep(0)

        async def ask(number: int) -> list[int]:
            for _ in range(4 * number):
                await asyncio.sleep(0)
            return (await stack.gateways[number % 2].tokens(request_for(number, prompt_of(number), 12)))[0]

        switching = asyncio.create_task(switch())
        answers = await asyncio.gather(*(ask(number) for number in range(96)))
        await switching
        await until(lambda: all(worker.is_clean for worker in stack.workers.values()))
        await until(lambda: all(gateway.placement.is_idle for gateway in stack.gateways))
    assert [len(answer) for answer in answers] == [12] * 96
    for number in (0, 17, 50, 95):
        assert answers[number] == await alone(number)


async def test_what_comes_next_follows_the_roles() -> None:
    """Red when a switch waits for anything, or when prompts go on to a worker that is on standby."""
    async with in_process_stack(SPLIT, num_gateways=1) as stack:
        gateway, (prefill, decode) = stack.gateways[0], stack.workers.values()
        gateway.dispatcher.set_roles({"prefill-0": STANDBY, "decode-0": UNIFIED}, "a quiet night")
        await until(lambda: roles_of(stack) == ["standby", "unified"])
        await gateway.tokens(request_for(1, prompt_of(1)))
        assert prefill.loop.reports.num_prefill_tokens == 0
        gateway.dispatcher.set_roles({"prefill-0": DECODE, "decode-0": PREFILL}, "the other way round")
        await until(lambda: roles_of(stack) == ["decode", "prefill"])
        before = decode.loop.reports.num_prefill_tokens, prefill.loop.reports.num_generation_tokens
        await gateway.tokens(request_for(2, prompt_of(37), 6))
        assert decode.loop.reports.num_prefill_tokens > before[0]
        assert prefill.loop.reports.num_generation_tokens > before[1]


async def test_a_hybrid_worker_gives_its_prompt_to_one_that_is_free() -> None:
    """Both do both. Red when a prompt waits behind another although the other worker has nothing to do."""
    async with in_process_stack({"hybrid-0": "hybrid", "hybrid-1": "hybrid"}, num_gateways=1) as stack:
        gateway = stack.gateways[0]
        await asyncio.gather(*(gateway.tokens(request_for(n, prompt_of(39 + 40 * n), 12)) for n in range(12)))
        assert all(worker.loop.reports.num_prefill_tokens > 0 for worker in stack.workers.values())


async def test_gateways_agree_on_a_role_whoever_gave_it() -> None:
    async with in_process_stack(SPLIT, num_gateways=2) as stack:
        first, second = (gateway.dispatcher for gateway in stack.gateways)
        first.set_roles({"decode-0": HYBRID}, "one")
        await until(lambda: second.status().workers[1].role == "hybrid")
        second.set_roles({"decode-0": UNIFIED}, "the other")
        await until(lambda: first.status().workers[1].role == "unified")


def test_a_worker_that_is_restarted_has_its_role_again() -> None:
    """Red when a restart takes back what an operator or a planner has decided."""
    world = World("a", "b", roles={"a": "prefill", "b": "decode"})
    world.join("a")
    link = world.join("b")
    world.dispatcher.set_roles({"b": HYBRID}, "by hand")
    (told,) = link.asked(wire.SetRole)
    link.end()
    (again,) = world.join("b", epoch=2).asked(wire.SetRole)
    assert again == told
    assert world.dispatcher.status().workers[1].role == "hybrid", "also before it has answered"


def machine() -> tuple[World, dict[str, Link]]:
    """Two workers of one machine, each on a core of its own. They do not say by themselves what they took up."""
    world, links = World("a", "b", roles={"a": "prefill", "b": "decode"}), {}
    for core, name in enumerate("ab"):
        link = Link(world, name, 1)
        link.hello = msgspec.structs.replace(link.hello, cores=(core,))
        assert world.membership.connected(WorkerId(name), link)
        links[name] = link
    return world, links


def test_two_changes_within_a_step_both_hold() -> None:
    """Red when the second one is made of what workers have said so far: it gave "b" its old role back for its cores'
    sake, and let the last worker at work go on standby."""
    world, links = machine()
    world.dispatcher.set_roles({"b": UNIFIED}, "one")
    world.dispatcher.set_roles({"a": STANDBY}, "two")
    assert links["b"].asked(wire.SetRole)[-1].change == RoleChange(UNIFIED, 2, (0, 1))
    with pytest.raises(InvalidRequest, match="has to serve"):
        world.dispatcher.set_roles({"b": STANDBY}, "three")
    world.dispatcher.set_roles({"a": PREFILL}, "four")
    assert links["b"].asked(wire.SetRole)[-1].change.cores == (1,)


def test_a_worker_that_is_away_gets_the_cores_that_are_its_by_then() -> None:
    """Red when a core lies idle after a change that came while the worker was being restarted."""
    world, links = machine()
    world.dispatcher.set_roles({"b": UNIFIED}, "before")
    links["b"].end()
    world.dispatcher.set_roles({"a": STANDBY}, "meanwhile")
    (told,) = world.join("b", epoch=2).asked(wire.SetRole)
    assert told.change == RoleChange(UNIFIED, 2, (0, 1))


def test_limits_are_told_of_the_cores_that_are_computed_on() -> None:
    """Red when a worker that was given another one's core seems to do more than it can."""
    world = World("a", "b", roles={"a": "prefill", "b": "decode"})
    limits = WorkerLimits(product_ops_per_s=1e9, read_bytes_per_s=None)
    for number, name in enumerate(("a", "b")):
        link = Link(world, name, 1)
        link.hello = msgspec.structs.replace(link.hello, cores=(number,), limits=limits)
        assert world.membership.connected(WorkerId(name), link)
    world.run()
    world.dispatcher.set_roles({"a": STANDBY, "b": UNIFIED}, "")
    told = {worker.worker_id: worker.limits for worker in world.dispatcher.status().workers}
    assert told["a"] == limits and told["b"] == WorkerLimits(product_ops_per_s=2e9, read_bytes_per_s=None)


def test_what_cannot_be_is_refused() -> None:
    world = World("a", "b")
    world.join("a")
    with pytest.raises(NoWorker, match="b is not there"):
        world.dispatcher.set_roles({"b": DECODE}, "")
    alone = World("a")
    alone.join("a")
    with pytest.raises(InvalidRequest, match="has to serve"):
        alone.dispatcher.set_roles({"a": STANDBY}, "")
