"""What chaos checks share: open streams with known answers, how each may end, and waiting for a stack to heal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from relevo.check.context import CheckContext
from relevo.check.disturber import Action, Disturber
from relevo.check.equality import difference
from relevo.check.exchange import Answer, StreamAnswer
from relevo.check.texts import TOPICS
from relevo.check.words import Mismatch, Skip
from relevo.client.http import CLIENT_ERRORS
from relevo.core.errors import StartError

RECOVERY_S = 60.0  # arbitrary: a model has to be loaded again
POLL_S = 0.1
STREAM_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Watched:
    """A request whose right answer is known."""

    path: str
    body: dict[str, Any]
    reference: Answer
    is_repeatable: bool = True  # False: sampled by a server whose seeds do not hold, so that only the form is judged


def disturber_of(ctx: CheckContext) -> Disturber:
    assert ctx.disturber is not None, "checks that need processes run with a disturber only"
    return ctx.disturber


async def all_targets(ctx: CheckContext) -> list[str]:
    """The processes that may be disturbed. Raises Skip if there is none."""
    targets = await disturber_of(ctx).targets()
    if not targets:
        raise Skip("there is no process to disturb at present")
    return targets


async def some_target(ctx: CheckContext) -> tuple[str, int]:
    """A process to disturb, drawn, and how many there are. Raises Skip if there is none."""
    targets = await all_targets(ctx)
    return ctx.rng.choice(targets), len(targets)


async def kill(ctx: CheckContext, target: str) -> None:
    """Raises Skip if that cannot be done."""
    if not await disturber_of(ctx).do(Action.KILL, target):
        raise Skip("the chaos command cannot kill processes")


@asynccontextmanager
async def undone(ctx: CheckContext, begin: Action, end: Action, target: str, why_skipped: str) -> AsyncIterator[None]:
    """`begin` holds inside, and `end` follows whatever happens. Raises Skip if `begin` cannot be done.

    A `begin` that failed or was broken off may hold all the same: it is ended too.
    """
    disturber = disturber_of(ctx)
    try:
        if not await disturber.do(begin, target):
            raise Skip(why_skipped)
    except (StartError, asyncio.CancelledError):
        with suppress(StartError):  # the first failure is the one to tell
            await disturber.do(end, target)
        raise
    try:
        yield
    finally:
        await disturber.do(end, target)


async def watched_requests(ctx: CheckContext, count: int) -> list[Watched]:
    """Greedy and seeded requests with their answers of a quiet server.

    A seed is a promise only as far as the server keeps it undisturbed, asked for again with the others at once.
    """
    found = []
    for number in range(count):
        path, body = ctx.prompt_body(f"Here is a text about {TOPICS[number % len(TOPICS)]}:", max_tokens=STREAM_TOKENS)
        if number % 3 == 2:
            body |= {"temperature": 0.8, "seed": 100 + number}
        body |= ctx.logprob_fields(path)
        found.append(Watched(path, body, (await ctx.post(path, body)).ok()))
    again = await asyncio.gather(*(ctx.post(one.path, one.body) for one in found))
    return [
        replace(one, is_repeatable="seed" not in one.body or difference(answer.ok(), one.reference) is None)
        for one, answer in zip(found, again, strict=True)
    ]


async def open_streams(ctx: CheckContext, requests: list[Watched]) -> list[asyncio.Task[StreamAnswer | None]]:
    """All of them running, each with some text already received (or ended early)."""
    heard = [asyncio.Event() for _ in requests]
    tasks = [asyncio.create_task(_stream(ctx, request, event)) for request, event in zip(requests, heard, strict=True)]
    waits = [asyncio.create_task(event.wait()) for event in heard]
    try:
        for task, wait in zip(tasks, waits, strict=True):
            await asyncio.wait((task, wait), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await ended(tasks)
        raise
    finally:
        await ended(waits)
    return tasks


async def ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """None of them runs on beside what comes next."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _stream(ctx: CheckContext, request: Watched, heard: asyncio.Event) -> StreamAnswer | None:
    """None: the connection broke without any answer."""
    try:
        return await ctx.stream(request.path, request.body, heard)
    except CLIENT_ERRORS:
        return None


def judge_stream(ctx: CheckContext, answer: StreamAnswer | None, request: Watched, *, may_fail: bool) -> bool:
    """Whether it is whole. Raises Mismatch unless it equals its reference, or (`may_fail`) ended with one error."""
    if answer is None:
        raise Mismatch("the connection broke without an answer", expected="the whole answer, or one error")
    if answer.status != 200 or answer.error_events:
        if may_fail and (answer.status >= 500 or answer.status == 429 or _ends_with_one_error(answer)):
            return False
        raise answer.fail(
            f"HTTP {answer.status}, {len(answer.error_events)} error events",
            "one error at the end, without [DONE]" if may_fail else "the whole answer",
        )
    if answer.was_cut or answer.num_done != 1:
        raise answer.fail("the stream ends without [DONE] and without an error", "the whole answer, or one error event")
    if not request.is_repeatable:
        return True
    ctx.same_text(answer, request.reference, "disturbed and undisturbed")
    if answer.finish_reason() != request.reference.finish_reason():
        raise answer.fail(f"finish_reason is {answer.finish_reason()!r}", repr(request.reference.finish_reason()))
    return True


def _ends_with_one_error(answer: StreamAnswer) -> bool:
    is_object = all(isinstance(error, dict) and error.get("message") for error in answer.error_events)
    return len(answer.error_events) == 1 and is_object and "error" in answer.chunks[-1] and answer.num_done == 0


async def judge_all(
    ctx: CheckContext, streams: Sequence[Awaitable[StreamAnswer | None]], requests: Sequence[Watched], *, may_fail: bool
) -> None:
    """Every stream to its end. Raises Mismatch as `judge_stream` does."""
    answers = await asyncio.gather(*streams)
    pairs = zip(answers, requests, strict=True)
    num_whole = sum(judge_stream(ctx, answer, request, may_fail=may_fail) for answer, request in pairs)
    ctx.notes.append(f"{num_whole} of {len(requests)} streams whole")


async def disturb_under_streams(
    ctx: CheckContext, num_streams: int, disturb: Callable[[str], Awaitable[object]], *, may_fail: bool
) -> None:
    """Streams are open while `disturb` does something to one process; each is judged, and all must be well again."""
    baseline, reference = await ctx.quiet_baseline()
    requests = await watched_requests(ctx, num_streams)
    target, num_targets = await some_target(ctx)
    streams = await open_streams(ctx, requests)
    try:
        await disturb(target)
        await judge_all(ctx, streams, requests, may_fail=may_fail)
    finally:
        await ended(streams)
    await wait_until_healed(ctx, num_targets, baseline, reference)


async def wait_until_healed(ctx: CheckContext, num_targets: int, kv_before: float | None, reference: Answer) -> None:
    """As many processes as before, and the closing probe. Raises Mismatch after RECOVERY_S."""
    deadline_s = time.monotonic() + RECOVERY_S
    while True:
        try:
            answer = await ctx.ask_again(reference)
            if answer.status == 200 and len(await disturber_of(ctx).targets()) >= num_targets:
                break
            told = f"HTTP {answer.status}, {len(await disturber_of(ctx).targets())} processes"
        except CLIENT_ERRORS as error:
            told = f"{type(error).__name__}: {error}"
        if time.monotonic() > deadline_s:
            raise Mismatch(
                f"{told} after {RECOVERY_S:.0f} s", expected=f"an answer and {num_targets} processes", exchange=ctx.last
            )
        await asyncio.sleep(POLL_S)
    await ctx.closing_probe(kv_before, reference)
