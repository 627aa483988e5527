"""Streams that never stop and prompts that keep coming, until they are told to end; each answer is compared."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

from relevo.bench.client import OpenAIClient
from relevo.bench.roles.questions import Asked, Questions, ask


@asynccontextmanager
async def loaded(client: OpenAIClient, questions: Questions, asked: list[Asked], seed: int) -> AsyncIterator[None]:
    """For the length of the block; then nothing new is sent, and what is under way is waited for."""
    model, ending = await client.pick_model(None), asyncio.Event()
    options, rng = questions.options, random.Random(f"load:{seed}")

    async def stream(first: int) -> None:
        await asyncio.sleep(first * 0.05)  # they do not begin in one step
        while not ending.is_set():
            await ask(client, model, "stream", rng.choice(questions.streams), asked)

    async def prompts(tasks: asyncio.TaskGroup) -> None:
        while not ending.is_set():
            await asyncio.sleep(rng.expovariate(options.prompts_per_s))
            tasks.create_task(ask(client, model, "prompt", rng.choice(questions.prompts), asked))

    async with asyncio.TaskGroup() as tasks:
        for number in range(options.num_streams):
            tasks.create_task(stream(number))
        arriving = tasks.create_task(prompts(tasks))
        yield
        ending.set()
        arriving.cancel()


def gaps_within(asked: list[Asked], from_ns: int, to_ns: int) -> list[tuple[int, float]]:
    """When each gap of a stream ended, and its seconds, of those that end in [from, to)."""
    return [
        (later, (later - earlier) / 1e9)
        for one in list(asked)
        if one.kind == "stream"
        for earlier, later in pairwise(one.record.chunk_at_ns)
        if from_ns <= later < to_ns
    ]
