"""SIGSTOP: a process that is there and does nothing, which is worse than one that is gone."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager

from relevo.check.chaos.recovery import disturb_under_streams, some_target, undone, wait_until_healed
from relevo.check.context import POLL_S, CheckContext
from relevo.check.disturber import Action
from relevo.check.sources import RECOVERY
from relevo.check.texts import fresh_words
from relevo.check.words import Mismatch, Need, check
from relevo.client.http import CLIENT_ERRORS

_NEEDS = (Need.PROCESSES,)
_NUM_STREAMS = 6
_SHORT_PAUSE_S = 0.5
_NUM_PROBES = 4
NOTICE_S = 10.0  # within which a stopped process must be noticed


def stopped(ctx: CheckContext, target: str) -> AbstractAsyncContextManager[None]:
    """The process does nothing inside, and runs again afterwards whatever happens."""
    return undone(ctx, Action.STOP, Action.CONTINUE, target, "the chaos command cannot stop processes")


async def _stopped_for(ctx: CheckContext, target: str, pause_s: float) -> None:
    async with stopped(ctx, target):
        await asyncio.sleep(pause_s)


@check(
    "chaos.short_pause",
    "When a process pauses for half a second, every open stream goes on to its right end.",
    why="Garbage collectors, page faults and busy machines pause processes all the time.",
    source=RECOVERY,
    needs=_NEEDS,
)
async def short_pause(ctx: CheckContext) -> None:
    await disturb_under_streams(
        ctx, _NUM_STREAMS, lambda target: _stopped_for(ctx, target, _SHORT_PAUSE_S), may_fail=False
    )


@check(
    "chaos.stopped_is_noticed",
    "While a process is stopped, requests are answered within 10 s, or /ready (or /health) says no by then.",
    why="Health that stays green over a wedged worker sends every request into it.",
    source=RECOVERY,
    needs=_NEEDS,
)
async def stopped_is_noticed(ctx: CheckContext) -> None:
    baseline, reference = await ctx.quiet_baseline()
    target, num_targets = await some_target(ctx)
    ready_path = await _ready_path(ctx)
    async with stopped(ctx, target):
        if not await _is_noticed(ctx, ready_path):
            raise Mismatch(
                f"no answer and ready after {NOTICE_S:.0f} s with a stopped process",
                expected="an answer, or a readiness that says no",
                exchange=ctx.last,
            )
    await wait_until_healed(ctx, num_targets, baseline, reference)


async def _ready_path(ctx: CheckContext) -> str | None:
    """The most telling of the usual paths that says yes while all is well; the no of another means nothing."""
    for path in ("/ready", "/health"):
        if (await ctx.server.send(ctx.server.exchange("GET", path))).status == 200:
            return path
    return None


async def _is_noticed(ctx: CheckContext, ready_path: str | None) -> bool:
    deadline_s = time.monotonic() + NOTICE_S
    asking = asyncio.create_task(_are_answered(ctx))
    try:
        while time.monotonic() < deadline_s:
            if asking.done() and asking.result():
                return True
            if ready_path is not None and not await _says_ready(ctx, ready_path):
                return True
            if asking.done():
                asking = asyncio.create_task(_are_answered(ctx))
            await asyncio.sleep(4 * POLL_S)
        return False
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def _are_answered(ctx: CheckContext) -> bool:
    """Several at once, of different prompts: a single one may have gone past the process that is stopped."""
    bodies = [ctx.prompt_body(fresh_words(ctx.rng, 4), max_tokens=2) for _ in range(_NUM_PROBES)]
    try:
        answers = await asyncio.gather(*(ctx.post(*body) for body in bodies))
    except CLIENT_ERRORS:
        return False
    return all(answer.status == 200 for answer in answers)


async def _says_ready(ctx: CheckContext, path: str) -> bool:
    """A path that does not answer does not say yes."""
    try:
        async with asyncio.timeout(NOTICE_S):
            answer = await ctx.server.send(ctx.server.exchange("GET", path))
    except CLIENT_ERRORS:
        return False
    return answer.status == 200


@check(
    "chaos.long_pause",
    "After a process was stopped for 12 s with streams open, each stream is whole or has one error, and all is well.",
    why="A process that wakes up believes that nothing has happened; what it then writes belongs to others.",
    source=RECOVERY,
    needs=_NEEDS,
)
async def long_pause(ctx: CheckContext) -> None:
    await disturb_under_streams(ctx, _NUM_STREAMS, lambda target: _stopped_for(ctx, target, ctx.pause_s), may_fail=True)
