"""Slow readers, slow links, full disks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from relevo.check.chaos.recovery import some_target, undone
from relevo.check.context import CLIENT_ERRORS, CheckContext
from relevo.check.disturber import Action
from relevo.check.sources import RECOVERY
from relevo.check.texts import QUESTION, fresh_words
from relevo.check.words import Mismatch, Need, check

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
async def slow_reader(t: CheckContext) -> None:
    baseline, reference = await t.quiet_baseline()
    path, body = t.prompt_body(QUESTION, max_tokens=300, **t.endless)
    begun = [asyncio.Event() for _ in range(4)]
    slow = [asyncio.create_task(_read_slowly(t, path, body, event)) for event in begun]
    try:
        for event, task in zip(begun, slow, strict=True):
            waiting = asyncio.create_task(event.wait())
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        answer = await t.ask_again(reference)
        t.same_text(answer.ok(), reference, "beside slow readers and alone")
    except CLIENT_ERRORS as error:
        raise Mismatch(
            f"no answer beside slow readers ({type(error).__name__})", expected="an answer", exchange=t.last
        ) from error
    finally:
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
    await t.closing_probe(baseline, reference)


async def _read_slowly(t: CheckContext, path: str, body: dict[str, object], begun: asyncio.Event) -> None:
    exchange = t.stream_exchange(path, body)
    async with t.server.session.request(
        exchange.method, exchange.url, data=exchange.body, headers=exchange.headers
    ) as response:
        async for _ in response.content.iter_chunked(8):
            begun.set()
            await asyncio.sleep(_READ_PAUSE_S)


@asynccontextmanager
async def _a_stream(t: CheckContext) -> AsyncIterator[None]:
    """One runs meanwhile, from its first text on; how it ends is not judged."""
    path, body = t.prompt_body(QUESTION, max_tokens=_STREAM_TOKENS, **t.endless)
    heard = asyncio.Event()
    running = asyncio.create_task(t.stream(path, body, heard))
    waiting = asyncio.create_task(heard.wait())
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        waiting.cancel()
        running.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)


async def _disturbed(t: CheckContext, begin: Action, end: Action, why_skipped: str) -> None:
    """New prompts under a disturbance that lasts, asked again after it; then the closing probe.

    New ones, because a prompt whose KV is where it is needed crosses no link and reads no disk; and beside a stream,
    because a worker without one may compute a prompt itself and hand nothing over.
    """
    baseline, reference = await t.quiet_baseline()
    requests = [t.prompt_body(fresh_words(t.rng, _NUM_WORDS)) for _ in range(_NUM_REQUESTS)]
    target, _ = await some_target(t)
    async with _a_stream(t), undone(t, begin, end, target, why_skipped):
        answers = await asyncio.gather(*(t.post(path, body | t.logprob_fields(path)) for path, body in requests))
    for answer in answers:
        if answer.status == 200:
            t.same_text(answer, (await t.ask_again(answer)).ok(), "disturbed and undisturbed")
        elif answer.status < 500 and answer.status != 429:
            raise answer.fail(f"HTTP {answer.status}", "the right answer, or an error of the server")
    await t.closing_probe(baseline, reference)


@check(
    "chaos.slow_link",
    "Over a slow link between processes answers stay right.",
    why="Transfers that outlast a timer are where blocks are freed under a writer.",
    source=RECOVERY,
    needs=_NEEDS,
)
async def slow_link(t: CheckContext) -> None:
    reason = (
        "slowing a link down would reach beyond the named processes; "
        "give a --chaos-command that does slow-link and normal-link inside a network namespace"
    )
    await _disturbed(t, Action.SLOW_LINK, Action.NORMAL_LINK, reason)


@check(
    "chaos.disk_full",
    "With a full disk under the cache tiers answers stay right.",
    why="A cache may forget; it may not fail requests or give back half-written blocks.",
    source=RECOVERY,
    needs=_NEEDS,
)
async def disk_full(t: CheckContext) -> None:
    reason = (
        "filling a disk would reach beyond the named processes; "
        "give a --chaos-command that does fill-disk and free-disk on a file system of its own"
    )
    await _disturbed(t, Action.FILL_DISK, Action.FREE_DISK, reason)
