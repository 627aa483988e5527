"""Aborts in numbers, alone and together with a kill."""

from __future__ import annotations

import asyncio

from relevo.check.chaos.recovery import ended, kill, some_target, wait_until_healed
from relevo.check.context import CLIENT_ERRORS, CheckContext
from relevo.check.sources import RECOVERY
from relevo.check.texts import fresh_words
from relevo.check.words import Need, check

_NUM_ABORTS = 200
_AT_ONCE = 16


async def _abort_one(t: CheckContext) -> None:
    text = fresh_words(t.rng, t.rng.choice((3, 20, 80, 250)))
    path, body = t.prompt_body(text, max_tokens=300, **t.endless)
    exchange = t.stream_exchange(path, body)
    try:
        if t.rng.random() < 0.5:
            await t.server.abandon_after_s(exchange, t.rng.uniform(0.0, 0.4))
        else:
            await t.server.abandon_after_events(exchange, t.rng.randint(1, 6))
    except CLIENT_ERRORS:
        return  # refused or cut: nothing is left to abort


async def _storm(t: CheckContext, count: int) -> None:
    for _ in range(count // _AT_ONCE):
        await asyncio.gather(*(_abort_one(t) for _ in range(_AT_ONCE)))


@check(
    "chaos.abort_storm",
    "Two hundred aborts at random phases leave nothing: KV at its baseline, nothing running, the answer as before.",
    why="Aborts are ordinary; a leak at any phase of a request's life ends a server within days.",
    source=RECOVERY,
)
async def abort_storm(t: CheckContext) -> None:
    baseline, reference = await t.quiet_baseline()
    await _storm(t, _NUM_ABORTS)
    await t.closing_probe(baseline, reference)


@check(
    "chaos.abort_and_kill",
    "Aborts at random phases around a kill leave nothing behind.",
    why="Cleaning up after a request and after a worker at the same time is where double frees and leaks are.",
    source=RECOVERY,
    needs=(Need.PROCESSES,),
)
async def abort_and_kill(t: CheckContext) -> None:
    baseline, reference = await t.quiet_baseline()
    target, num_targets = await some_target(t)
    storm = asyncio.create_task(_storm(t, _NUM_ABORTS // 4))
    await asyncio.sleep(t.rng.uniform(0.1, 0.5))
    try:
        await kill(t, target)
        await storm
    finally:
        await ended([storm])
    await wait_until_healed(t, num_targets, baseline, reference)
