"""Aborts in numbers, alone and together with a kill."""

from __future__ import annotations

import asyncio

from relevo.check.chaos.recovery import ended, kill, some_target, wait_until_healed
from relevo.check.context import CheckContext
from relevo.check.sources import RECOVERY
from relevo.check.texts import fresh_words
from relevo.check.words import Need, check
from relevo.client.http import CLIENT_ERRORS

_NUM_ABORTS = 200
_AT_ONCE = 16


async def _abort_one(ctx: CheckContext) -> None:
    text = fresh_words(ctx.rng, ctx.rng.choice((3, 20, 80, 250)))
    path, body = ctx.prompt_body(text, max_tokens=300, **ctx.endless)
    exchange = ctx.stream_exchange(path, body)
    try:
        if ctx.rng.random() < 0.5:
            await ctx.server.abandon_after_s(exchange, ctx.rng.uniform(0.0, 0.4))
        else:
            await ctx.server.abandon_after_events(exchange, ctx.rng.randint(1, 6))
    except CLIENT_ERRORS:
        return  # refused or cut: nothing is left to abort


async def _storm(ctx: CheckContext, count: int) -> None:
    for _ in range(count // _AT_ONCE):
        await asyncio.gather(*(_abort_one(ctx) for _ in range(_AT_ONCE)))


@check(
    "chaos.abort_storm",
    "Two hundred aborts at random phases leave nothing: KV at its baseline, nothing running, the answer as before.",
    why="Aborts are ordinary; a leak at any phase of a request's life ends a server within days.",
    source=RECOVERY,
)
async def abort_storm(ctx: CheckContext) -> None:
    baseline, reference = await ctx.quiet_baseline()
    await _storm(ctx, _NUM_ABORTS)
    await ctx.closing_probe(baseline, reference)


@check(
    "chaos.abort_and_kill",
    "Aborts at random phases around a kill leave nothing behind.",
    why="Cleaning up after a request and after a worker at the same time is where double frees and leaks are.",
    source=RECOVERY,
    needs=(Need.PROCESSES,),
)
async def abort_and_kill(ctx: CheckContext) -> None:
    baseline, reference = await ctx.quiet_baseline()
    target, num_targets = await some_target(ctx)
    storm = asyncio.create_task(_storm(ctx, _NUM_ABORTS // 4))
    await asyncio.sleep(ctx.rng.uniform(0.1, 0.5))
    try:
        await kill(ctx, target)
        await storm
    finally:
        await ended([storm])
    await wait_until_healed(ctx, num_targets, baseline, reference)
