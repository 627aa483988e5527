"""Two gateways over the same workers: neither disturbs the other, and what one leaves behind the other cleans up."""

from __future__ import annotations

import asyncio

from in_process_stack import in_process_stack, request_for, until

SPLIT = {"prefill-0": "prefill", "decode-0": "decode"}
PROMPT = list(range(20))


def prompt_of(number: int) -> list[int]:
    return [(31 * number + i) % 250 for i in range(40)]


async def test_a_gateway_that_joins_leaves_the_others_handoffs_alone() -> None:
    """Red when the fences of a gateway that joins reach the present incarnation: then the prompt is computed twice."""
    async with in_process_stack(SPLIT, num_gateways=1) as stack:
        prefill, decode = stack.workers["prefill-0"], stack.workers["decode-0"]
        running = asyncio.create_task(stack.gateways[0].tokens(request_for(0, PROMPT)))
        prefill.hold()
        await until(lambda: bool(prefill.loop.core.remote_prefills))
        await stack.add_gateway()
        assert prefill.loop.core.remote_prefills
        prefill.go_on()
        tokens, _ = await running
        assert len(tokens) == 8
        assert prefill.loop.reports.num_prefill_tokens + decode.loop.reports.num_prefill_tokens == len(PROMPT)


async def test_rooms_of_a_gateway_that_died_are_released_by_one_that_lives() -> None:
    """Its prompt was being computed into them. Red when quarantine waits for the dead gateway's return."""
    async with in_process_stack(SPLIT) as stack:
        prefill, decode = stack.workers["prefill-0"], stack.workers["decode-0"]
        first, second = stack.gateways
        prefill.hold()
        doomed = asyncio.create_task(first.tokens(request_for(0, PROMPT)))
        await until(lambda: bool(prefill.loop.core.remote_prefills))
        survivor = asyncio.create_task(second.tokens(request_for(1, prompt_of(1))))
        await until(lambda: len(prefill.loop.core.remote_prefills) == 2)
        await first.die()
        doomed.cancel()
        await until(
            lambda: (
                len(prefill.loop.core.remote_prefills) == 1 and not decode.loop.scheduler.load().num_quarantined_blocks
            )
        )
        prefill.go_on()
        assert len((await survivor)[0]) == 8
        await until(lambda: prefill.is_clean and decode.is_clean)


async def test_rooms_that_the_dead_gateway_had_aborted_are_released_too() -> None:
    """It asked the writer to let go and died before it was answered. Red when only requests that it still had count."""
    async with in_process_stack(SPLIT) as stack:
        prefill, decode = stack.workers["prefill-0"], stack.workers["decode-0"]
        first = stack.gateways[0]
        prefill.hold()
        doomed = asyncio.create_task(first.tokens(request_for(0, PROMPT)))
        await until(lambda: bool(prefill.loop.core.remote_prefills))
        prefill.hears.clear()
        doomed.cancel()
        await until(lambda: bool(decode.loop.scheduler.load().num_quarantined_blocks))
        await first.die()
        prefill.hears.set()
        await until(lambda: prefill.is_clean and decode.is_clean)


async def test_the_only_gateway_finds_what_it_left_behind_when_it_is_back() -> None:
    """Red when a worker does not say to one that joins what its gateway left."""
    async with in_process_stack(SPLIT, num_gateways=1) as stack:
        prefill, decode = stack.workers["prefill-0"], stack.workers["decode-0"]
        prefill.hold()
        doomed = asyncio.create_task(stack.gateways[0].tokens(request_for(0, PROMPT)))
        await until(lambda: bool(prefill.loop.core.remote_prefills))
        await stack.gateways[0].die()
        doomed.cancel()
        await until(lambda: bool(decode.loop.scheduler.load().num_quarantined_blocks))
        assert decode.loop.hello().orphans == ("r0",)
        prefill.go_on()
        await stack.add_gateway()
        await until(lambda: prefill.is_clean and decode.is_clean)
        assert not decode.loop.hello().orphans


async def test_every_gateway_hears_of_the_load_that_another_one_makes() -> None:
    """Red when a worker reports only to the gateway whose requests it runs."""
    async with in_process_stack({"unified-0": "unified"}) as stack:
        first, second = stack.gateways
        worker = stack.workers["unified-0"]
        seen = second.membership.members[0]
        worker.hold()
        running = asyncio.create_task(first.tokens(request_for(0, PROMPT)))
        await until(lambda: seen.load.num_waiting > 0 or seen.load.num_running > 0)
        worker.go_on()
        await running
        await until(lambda: seen.counters.num_generation_tokens == 8)


async def test_cache_hits_do_not_depend_on_which_gateway_took_the_turn() -> None:
    """A conversation whose turns alternate between gateways finds what the last turn computed, on one worker."""
    for num_gateways in (1, 2):
        workers = {"unified-0": "unified", "unified-1": "unified"}
        async with in_process_stack(workers, num_gateways) as stack:
            hits = []
            for session in range(3):
                history = prompt_of(session)
                for turn in range(4):
                    gateway = stack.gateways[turn % num_gateways]
                    number = 10 * session + turn
                    tokens, num_cached = await gateway.tokens(
                        request_for(number, history, session=session.to_bytes(1, "little"))
                    )
                    hits.append((turn, num_cached))
                    history = history + tokens + [session, turn]
                    await until(lambda: all(gateway.placement.is_idle for gateway in stack.gateways))
                    await asyncio.sleep(0)
            assert all((num_cached > 0) == (turn > 0) for turn, num_cached in hits), hits
