"""kill -9: what open streams see of it, and whether the stack is whole again afterwards."""

from __future__ import annotations

import asyncio
import time

from relevo.check.chaos.recovery import (
    all_targets,
    disturb_under_streams,
    ended,
    judge_all,
    kill,
    open_streams,
    some_target,
    wait_until_healed,
    watched_requests,
)
from relevo.check.context import CheckContext
from relevo.check.sources import RECOVERY
from relevo.check.texts import fresh_words
from relevo.check.words import Level, Mismatch, Need, check
from relevo.client.http import CLIENT_ERRORS

_NEEDS = (Need.PROCESSES,)
_NUM_STREAMS = 8
_ERROR_WITHIN_S = 10.0


async def _kill_under_streams(ctx: CheckContext, *, may_fail: bool) -> None:
    await disturb_under_streams(ctx, _NUM_STREAMS, lambda target: kill(ctx, target), may_fail=may_fail)


@check(
    "chaos.kill_no_silent_end",
    "When a process is killed, each open stream goes on as if nothing had happened or ends with one error event.",
    why="A stream that just ends, repeats or skips looks like an answer.",
    source=RECOVERY,
    needs=_NEEDS,
)
async def kill_no_silent_end(ctx: CheckContext) -> None:
    await _kill_under_streams(ctx, may_fail=True)


@check(
    "chaos.kill_streams_survive",
    "When a process is killed, every open stream goes on to its right end.",
    why="Prompt and emitted tokens are known; another process can continue from them.",
    source=RECOVERY,
    needs=_NEEDS,
    level=Level.SHOULD,
)
async def kill_streams_survive(ctx: CheckContext) -> None:
    await _kill_under_streams(ctx, may_fail=False)


@check(
    "chaos.kill_in_prefill",
    "When a process is killed while prompts are computed, each request is answered or gets an error within 10 s.",
    why="A request that waits for a dead worker waits for ever.",
    source=RECOVERY,
    needs=_NEEDS,
)
async def kill_in_prefill(ctx: CheckContext) -> None:
    baseline, reference = await ctx.quiet_baseline()
    target, num_targets = await some_target(ctx)
    bodies = [ctx.prompt_body(fresh_words(ctx.rng, 300), max_tokens=4) for _ in range(6)]
    tasks = [asyncio.create_task(_ended(ctx, path, body)) for path, body in bodies]
    await asyncio.sleep(ctx.rng.uniform(0.0, 0.3))
    killed_at_s = time.monotonic()
    try:
        await kill(ctx, target)
        answers = await asyncio.gather(*tasks)
    finally:
        await ended(tasks)
    for status, ended_at_s, told in answers:
        if status != 200 and ended_at_s - killed_at_s > _ERROR_WITHIN_S:
            raise Mismatch(
                f"{told} {ended_at_s - killed_at_s:.1f} s after the kill",
                expected="an error within 10 s",
                exchange=ctx.last,
            )
        if status is None:
            raise Mismatch(told, expected="an answer or an error status", exchange=ctx.last)
    await wait_until_healed(ctx, num_targets, baseline, reference)


async def _ended(ctx: CheckContext, path: str, body: dict[str, object]) -> tuple[int | None, float, str]:
    try:
        answer = await ctx.post(path, body)
        return answer.status, time.monotonic(), f"HTTP {answer.status}"
    except CLIENT_ERRORS as error:
        return None, time.monotonic(), f"no answer ({type(error).__name__})"


@check(
    "chaos.restart_each",
    "Each process is killed once in turn under load; all come back, and all requests are answered or get an error.",
    why="Workers that cannot rejoin, or of which others keep stale state, show at the second kill.",
    source=RECOVERY,
    needs=_NEEDS,
)
async def restart_each(ctx: CheckContext) -> None:
    baseline, reference = await ctx.quiet_baseline()
    requests = await watched_requests(ctx, 3)
    targets = await all_targets(ctx)  # those that come back have other names
    num_targets = len(targets)
    for target in targets:
        streams = await open_streams(ctx, requests)
        try:
            await kill(ctx, target)
            await judge_all(ctx, streams, requests, may_fail=True)
        finally:
            await ended(streams)
        await wait_until_healed(ctx, num_targets, baseline, reference)
