"""Several text generations as one stream of deltas, for requests that carry a list of prompts.

Owns the tasks that run them side by side. A slow reader holds all of them back: the queue between is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from relevo.gateway.text.generation import TextDelta, TextGeneration


async def merged_deltas(generations: Sequence[TextGeneration]) -> AsyncGenerator[TextDelta, None]:
    """Yield the deltas of all; the first failure ends all. Closing it early closes all and waits for that."""
    if len(generations) == 1:
        async with aclosing(generations[0].deltas()) as deltas:
            async for delta in deltas:
                yield delta
        return
    queue: asyncio.Queue[TextDelta | BaseException | None] = asyncio.Queue(maxsize=len(generations))
    pumps = [asyncio.create_task(_pump(generation, queue)) for generation in generations]
    try:
        num_running = len(pumps)
        while num_running:
            item = await queue.get()
            if item is None:
                num_running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(generation: TextGeneration, queue: asyncio.Queue[TextDelta | BaseException | None]) -> None:
    try:
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                await queue.put(delta)
    except Exception as error:  # whatever it is, the reader raises it
        await queue.put(error)
    else:
        await queue.put(None)
