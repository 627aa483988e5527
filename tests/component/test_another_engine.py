"""An engine that is not ours, docs/developers/engine.md's, served by real gateways as it is.

Red when the page's text stops being a worker: a message it does not know, a field that Hello lacks, an answer that the
gateway waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from in_process_stack import InProcessStack, request_for, until

from relevo.core.errors import RelevoError
from relevo.wire.in_process_links import InProcessLinks

PAGE = Path(__file__).parents[2] / "docs" / "developers" / "engine.md"
_MODULE = "relevo_guide_engine"


def engine_of_the_guide() -> ModuleType:
    source, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    module = sys.modules[_MODULE] = ModuleType(_MODULE)
    exec(compile(source, str(PAGE), "exec"), vars(module))
    return module


GUIDE = engine_of_the_guide()


class Process:
    """One worker of the guide, in the stack's shape."""

    def __init__(self, worker_id: str) -> None:
        self.has_message = asyncio.Event()
        self.links = InProcessLinks(on_ready=self.has_message.set)
        self.engine: Any = GUIDE.CountingWorker(self.links, worker_id)
        self.links.on_connect = self.engine.hello
        self.loop = SimpleNamespace(identity=SimpleNamespace(role="unified"))

    async def run(self) -> None:
        while True:
            await self.has_message.wait()
            self.has_message.clear()
            while self.engine.turn(0.0):  # noqa: ASYNC110  # others have their turns between
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def stack_of(*names: str) -> AsyncIterator[tuple[InProcessStack, dict[str, Process]]]:
    workers = {name: Process(name) for name in names}
    tasks = [asyncio.create_task(worker.run()) for worker in workers.values()]
    stack: Any = InProcessStack(workers)  # type: ignore[arg-type]
    try:
        await stack.add_gateway()
        yield stack, workers
    finally:
        tasks += [gateway.task for gateway in stack.gateways]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def counted(last: int, number: int) -> list[int]:
    return [last + 1 + index for index in range(number)]


async def test_requests_are_served_by_an_engine_that_takes_part_in_no_handoff() -> None:
    async with stack_of("a", "b") as (stack, workers):
        gateway = stack.gateways[0]
        answers = await asyncio.gather(*(gateway.tokens(request_for(index, [index, 7 * index])) for index in range(20)))
        assert [tokens for tokens, _ in answers] == [counted(7 * index, 8) for index in range(20)]
        assert all(worker.engine.num_tokens for worker in workers.values())
        await until(lambda: gateway.placement.is_idle and not gateway.dispatcher.num_in_flight)


async def test_a_client_that_goes_away_ends_its_request_there() -> None:
    async with stack_of("a") as (stack, workers):
        answers: Callable[[], int] = lambda: len(workers["a"].engine.answers)  # noqa: E731
        task = asyncio.create_task(stack.gateways[0].tokens(request_for(1, [1], max_tokens=4000)))
        await until(lambda: answers() == 1)
        task.cancel()
        await until(lambda: answers() == 0 and not stack.gateways[0].dispatcher.num_in_flight)


async def test_a_request_goes_on_at_another_such_engine_when_its_own_is_gone() -> None:
    """Red when tokens that were emitted already are emitted again, or left out."""
    async with stack_of("a", "b") as (stack, workers):
        task = asyncio.create_task(stack.gateways[0].tokens(request_for(1, [5], max_tokens=300)))
        await until(lambda: any(worker.engine.num_tokens > 20 for worker in workers.values()))
        loser = next(worker for worker in workers.values() if worker.engine.answers)
        loser.links.close()
        for link in stack.gateways[0].links:
            if link.hello.worker_id == loser.engine.worker_id:
                link.incoming.put_nowait(None)
        assert (await task)[0] == counted(5, 300)


async def test_what_it_refuses_is_an_error_of_the_client() -> None:
    async with stack_of("a") as (stack, _):
        with pytest.raises(RelevoError, match="too long"):
            await stack.gateways[0].tokens(request_for(1, [1] * GUIDE.MAX_MODEL_LEN))


async def test_a_drained_one_says_so_and_takes_nothing_new() -> None:
    async with stack_of("a", "b") as (stack, workers):
        gateway = stack.gateways[0]
        assert gateway.membership.drain(workers["a"].engine.worker_id)
        await until(lambda: not all(status.ready for status in gateway.membership.statuses()))
        before = workers["a"].engine.num_tokens
        assert (await gateway.tokens(request_for(1, [3])))[0] == counted(3, 8)
        assert workers["a"].engine.is_leaving and workers["a"].engine.num_tokens == before
