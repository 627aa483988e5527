"""Memory that grows with the number of requests served is an entry that nobody takes away: entries are counted, not
bytes. Gateways, gossip and step loops in one process, an HTTP gateway with a meter, and what is bounded on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import pytest
from awaited_outputs import generate
from entry_counts import entry_counts
from in_process_stack import Gateway, InProcessStack, in_process_stack, request_for
from metered_gateway import metered
from metered_gateway import until as until_written
from scripted_gateway import says

from relevo.core.errors import RelevoError

BOUNDED = (
    *("PrefixCache.", "BlockPool.", "PrefixIndex._holders", "_Told.hashes"),  # by requests, by blocks
    *("Router.", "StepCostModel.", "_Moments."),  # by workers, by sizes of steps
    *("LostBlocks.", "DecisionRing.", "Insight.sessions", "LatencyHistogram."),  # by constants of their own
    *("Replica", "BlockTables._closed"),  # by the sequences of the last step, until the next one
)
ROUND = 60  # requests, then everybody is counted


@pytest.fixture
def folder() -> Iterator[str]:
    """A short path: sockets go into it."""
    with tempfile.TemporaryDirectory(prefix="g") as path:
        yield path


async def serve(stack: InProcessStack, numbers: range, rng: Random) -> None:
    """Six at a time; some clients leave after a few tokens, some in the middle of anything."""
    turn = asyncio.Semaphore(6)

    async def one(gateway: Gateway, number: int) -> None:
        prompt = [rng.randrange(200) for _ in range(rng.randint(2, 24))]
        request = request_for(number, prompt, rng.randint(1, 6), b"session %d" % number)
        most = rng.choice((1, 2, 3, 100))
        with contextlib.suppress(RelevoError):
            async with contextlib.aclosing(generate(gateway.dispatcher, request)) as stream:
                async for output in stream:
                    most -= len(output.tokens)
                    if most <= 0:
                        return

    async def client(number: int) -> None:
        async with turn:
            task = asyncio.create_task(one(stack.gateways[number % len(stack.gateways)], number))
            if rng.random() < 0.3:
                for _ in range(rng.randrange(40)):
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(client(number) for number in numbers))


def counted(stack: InProcessStack) -> Counter[str]:
    gateways = [(g.dispatcher, g.placement, g.membership, g.gossip) for g in stack.gateways]
    return entry_counts(*gateways, *(worker.loop for worker in stack.workers.values()))


def grown(before: Counter[str], now: Counter[str]) -> dict[str, tuple[int, int]]:
    return {
        path: (before[path], number)
        for path, number in now.items()
        if number > before[path] and not path.startswith(BOUNDED)
    }


async def soon(condition: Callable[[], bool], told: Callable[[], object]) -> None:
    """What is under way comes to its end; a minute is for slow machines."""
    try:
        async with asyncio.timeout(60.0):
            while not condition():  # noqa: ASYNC110  # any task may bring it about
                await asyncio.sleep(0)
    except TimeoutError:
        raise AssertionError(f"still there: {told()}") from None


async def test_gateways_and_workers_hold_nothing_of_requests_that_are_over(folder: str) -> None:
    """Red when a table of requests, sessions, aborts or news keeps one entry of each."""
    rng = Random(5)
    roles = {"prefill-0": "prefill", "prefill-1": "prefill", "decode-0": "decode"}
    async with in_process_stack(roles, gossip_folder=folder) as stack:
        await serve(stack, range(ROUND), rng)
        flights = [gateway.dispatcher for gateway in stack.gateways]
        await soon(lambda: not any(each.num_in_flight for each in flights), lambda: flights)
        first = counted(stack)
        await serve(stack, range(ROUND, 2 * ROUND), rng)
        await soon(lambda: not grown(first, counted(stack)), lambda: grown(first, counted(stack)))
        assert first["PrefixCache._block_of"] and first["_Told.hashes"], "the walk has not come this far"


async def test_the_meter_holds_nothing_of_requests_that_are_over() -> None:
    """Red when a row that was written, or an account's charge, stays with the meter."""
    async with metered(says("abc")) as server:

        async def ask(num: int) -> Counter[str]:
            for _ in range(num):
                answer = await server.rig.complete(prompt="hello", stream=False)
                assert answer.status_code == 200
            await until_written(lambda: not server.meter.writer.num_pending)
            return entry_counts(server.meter, server.refresh)

        await ask(2)
        first = await ask(1)
        assert not grown(first, await ask(10))
        assert len(server.rows()) == 13


@dataclass(slots=True)
class Kept:
    lists: OrderedDict[str, list[str]]


Kept.__module__ = "relevo.kept"  # as if it were ours


def test_the_count_sees_what_is_kept_anywhere() -> None:
    """Red when the walk stops at slots, dataclasses, tuples or nested containers: it would find nothing to grow."""
    kept = Kept(OrderedDict(a=["x", "y"]))
    assert entry_counts({"k": (kept,)}) == {"": 1, "Kept.lists": 1, "Kept.lists[]": 2}
