"""Slow readers, slow links, full disks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from relevo.check.chaos.recovery import some_target, undone
from relevo.check.context import CheckContext
from relevo.check.disturber import Action
from relevo.check.sources import RECOVERY
from relevo.check.texts import QUESTION, fresh_words
from relevo.check.words import Mismatch, Need, check
from relevo.client.http import CLIENT_ERRORS

_NEEDS = (Need.PROCESSES,)
_READ_PAUSE_S = 0.2
_NUM_REQUESTS = 4  # under a disturbance that lasts
_NUM_WORDS = 150  # of their prompts
_STREAM_TOKENS = 400  # of the stream beside them


@check(
    "chaos.slow_reader",
    "Clients that hardly read their streams do not keep others waiting, and leave nothing behind.",
    why="One reader on a bad line must not hold up a batch.",
    source=RECOVERY,
)
async def slow_reader(ctx: CheckContext) -> None:
    baseline, reference = await ctx.quiet_baseline()
    path, body = ctx.prompt_body(QUESTION, max_tokens=300, **ctx.endless)
    begun = [asyncio.Event() for _ in range(4)]
    slow = [asyncio.create_task(_read_slowly(ctx, path, body, event)) for event in begun]
    try:
        for event, task in zip(begun, slow, strict=True):
            waiting = asyncio.create_task(event.wait())
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        answer = await ctx.ask_again(reference)
        ctx.same_text(answer.ok(), reference, "beside slow readers and alone")
    except CLIENT_ERRORS as error:
        raise Mismatch(
            f"no answer beside slow readers ({type(error).__name__})", expected="an answer", exchange=ctx.last
        ) from error
    finally:
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
    await ctx.closing_probe(baseline, reference)


async def _read_slowly(ctx: CheckContext, path: str, body: dict[str, object], begun: asyncio.Event) -> None:
    async with ctx.server.open(ctx.stream_exchange(path, body).request) as response:
        async for _ in response.pieces(max_bytes=8):
            begun.set()
            await asyncio.sleep(_READ_PAUSE_S)


@asynccontextmanager
async def _a_stream(ctx: CheckContext) -> AsyncIterator[None]:
    """One runs meanwhile, from its first text on; how it ends is not judged."""
    path, body = ctx.prompt_body(QUESTION, max_tokens=_STREAM_TOKENS, **ctx.endless)
    heard = asyncio.Event()
    running = asyncio.create_task(ctx.stream(path, body, heard))
    waiting = asyncio.create_task(heard.wait())
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        waiting.cancel()
        running.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)


async def _disturbed(ctx: CheckContext, begin: Action, end: Action, why_skipped: str) -> None:
    """New prompts under a disturbance that lasts, asked again after it; then the closing probe.

    New ones, because a prompt whose KV is where it is needed crosses no link and reads no disk; and beside a stream,
    because a worker without one may compute a prompt itself and hand nothing over.
    """
    baseline, reference = await ctx.quiet_baseline()
    requests = [ctx.prompt_body(fresh_words(ctx.rng, _NUM_WORDS)) for _ in range(_NUM_REQUESTS)]
    target, _ = await some_target(ctx)
    async with _a_stream(ctx), undone(ctx, begin, end, target, why_skipped):
        answers = await asyncio.gather(*(ctx.post(path, body | ctx.logprob_fields(path)) for path, body in requests))
    for answer in answers:
        if answer.status == 200:
            ctx.same_text(answer, (await ctx.ask_again(answer)).ok(), "disturbed and undisturbed")
        elif answer.status < 500 and answer.status != 429:
            raise answer.fail(f"HTTP {answer.status}", "the right answer, or an error of the server")
    await ctx.closing_probe(baseline, reference)


@check(
    "chaos.slow_link",
    "Over a slow link between processes answers stay right.",
    why="Transfers that outlast a timer are where blocks are freed under a writer.",
    source=RECOVERY,
    needs=_NEEDS,
)
async def slow_link(ctx: CheckContext) -> None:
    reason = (
        "slowing a link down would reach beyond the named processes; "
        "give a --chaos-command that does slow-link and normal-link inside a network namespace"
    )
    await _disturbed(ctx, Action.SLOW_LINK, Action.NORMAL_LINK, reason)


@check(
    "chaos.disk_full",
    "With a full disk under the cache tiers answers stay right.",
    why="A cache may forget; it may not fail requests or give back half-written blocks.",
    source=RECOVERY,
    needs=_NEEDS,
)
async def disk_full(ctx: CheckContext) -> None:
    reason = (
        "filling a disk would reach beyond the named processes; "
        "give a --chaos-command that does fill-disk and free-disk on a file system of its own"
    )
    await _disturbed(ctx, Action.FILL_DISK, Action.FREE_DISK, reason)
