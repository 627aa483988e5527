"""A client that goes away takes its request with it."""

from __future__ import annotations

import asyncio
import time

import orjson

from relevo.check.context import CheckContext
from relevo.check.sources import RECOVERY
from relevo.check.texts import OPENING, QUESTION, fresh_words
from relevo.check.words import Mismatch, Need, check
from relevo.client.http import CLIENT_ERRORS

_LONG_TOKENS = 400  # of an answer that is left in the middle
_NUM_PREFILLS = 12
_PREFILL_WORDS = 400
_NUM_RANDOM = 40


async def _wait_until_none_runs(ctx: CheckContext, what: str) -> None:
    left = await ctx.settled_at(True, 0.0)
    if left is not None:
        raise Mismatch(
            f"{left:g} requests are still running {ctx.settle_s:g} s after {what}", expected="none", exchange=ctx.last
        )


async def _need_idle(ctx: CheckContext) -> None:
    await _wait_until_none_runs(ctx, "the check began")


@check(
    "cancel.stream",
    "A stream that its client leaves after the first text is ended on the server.",
    why="Answers that no client reads take the room of those that a client waits for.",
    source=RECOVERY,
    needs=(Need.RUNNING_METRIC,),
)
async def stream(ctx: CheckContext) -> None:
    await _need_idle(ctx)
    path, body = ctx.prompt_body(QUESTION, max_tokens=_LONG_TOKENS, **ctx.endless)
    ctx.last = ctx.stream_exchange(path, body)
    await ctx.server.abandon_after_events(ctx.last, 3)
    await _wait_until_none_runs(ctx, "the client left its stream")


@check(
    "cancel.whole",
    "A request without a stream is ended when its client leaves.",
    why="Clients give up after their timeout and try again; the first attempt must not run on.",
    source=RECOVERY,
    needs=(Need.RUNNING_METRIC,),
)
async def whole(ctx: CheckContext) -> None:
    await _need_idle(ctx)
    path, body = ctx.prompt_body(QUESTION, max_tokens=_LONG_TOKENS, **ctx.endless)
    ctx.last = ctx.server.exchange("POST", path, orjson.dumps(body))
    if not await ctx.server.abandon_after_s(ctx.last, 0.2):
        ctx.notes.append("answered before the client left, so that there was nothing to end")
        return
    await _wait_until_none_runs(ctx, "the client left")


@check(
    "cancel.many_prefills",
    "Long prompts that their clients left before the first token do not delay the next request.",
    why="Where the abort does not reach the prefill queue, ten cancelled prompts block the server for a minute.",
    source=RECOVERY,
)
async def many_prefills(ctx: CheckContext) -> None:
    context = ctx.facts.max_model_len
    num_words = min(_PREFILL_WORDS, context // 16) if context else _PREFILL_WORDS  # a token may be as short as a byte
    started_s = time.monotonic()
    (await ctx.ask(fresh_words(ctx.rng, num_words), max_tokens=1)).ok()
    one_prefill_s = time.monotonic() - started_s
    bodies = [
        ctx.prompt_body(fresh_words(ctx.rng, num_words), max_tokens=_LONG_TOKENS, **ctx.endless)
        for _ in range(_NUM_PREFILLS)
    ]
    delay_s = min(0.3, max(0.05, one_prefill_s))  # long enough that the server has the requests
    exchanges = [ctx.stream_exchange(path, body) for path, body in bodies]
    await asyncio.gather(*(ctx.server.abandon_after_s(exchange, delay_s) for exchange in exchanges))
    limit_s = 3 * one_prefill_s + ctx.settle_s
    try:
        async with asyncio.timeout(limit_s):
            (await ctx.ask(OPENING, max_tokens=1)).ok()
    except TimeoutError:
        raise Mismatch(
            f"no answer within {limit_s:.1f} s after {_NUM_PREFILLS} prompts were left",
            expected=f"an answer within three prefills of {one_prefill_s:.1f} s and {ctx.settle_s:g} s",
            exchange=ctx.last,
        ) from None


@check(
    "cancel.kv_returns",
    "After requests were left in the middle, KV cache usage is back at its baseline.",
    why="Blocks that leak at each abort add up until the server has none left.",
    source=RECOVERY,
    needs=(Need.RUNNING_METRIC, Need.KV_METRIC),
)
async def kv_returns(ctx: CheckContext) -> None:
    baseline, reference = await ctx.quiet_baseline()
    for _ in range(5):
        path, body = ctx.prompt_body(fresh_words(ctx.rng, 60), max_tokens=_LONG_TOKENS, **ctx.endless)
        ctx.last = ctx.stream_exchange(path, body)
        await ctx.server.abandon_after_events(ctx.last, 2)
    await ctx.closing_probe(baseline, reference)


@check(
    "cancel.random_moments",
    "Forty requests left at random moments leave nothing behind, and the next answer is as before.",
    why="Leaks hide in the moments between queue, prefill, transfer and decode.",
    source=RECOVERY,
)
async def random_moments(ctx: CheckContext) -> None:
    baseline, reference = await ctx.quiet_baseline()

    async def one() -> None:
        text = fresh_words(ctx.rng, ctx.rng.choice((4, 40, 200)))
        path, body = ctx.prompt_body(text, max_tokens=_LONG_TOKENS, **ctx.endless)
        try:
            await ctx.server.abandon_after_s(ctx.stream_exchange(path, body), ctx.rng.uniform(0.0, 0.5))
        except CLIENT_ERRORS:
            return  # it was refused or had ended: as good as left

    for _ in range(_NUM_RANDOM // 8):
        await asyncio.gather(*(one() for _ in range(8)))
    await ctx.closing_probe(baseline, reference)


@check(
    "cancel.beside_others",
    "A request that goes on beside ones that are left has the same answer.",
    why="Freed blocks that are still written to show as another request's words.",
    source=RECOVERY,
)
async def beside_others(ctx: CheckContext) -> None:
    path, body = ctx.prompt_body(OPENING, max_tokens=24)
    body |= ctx.logprob_fields(path)
    reference = (await ctx.post(path, body)).ok()

    async def leave() -> None:
        other_path, other = ctx.prompt_body(fresh_words(ctx.rng, 60), max_tokens=_LONG_TOKENS, **ctx.endless)
        await ctx.server.abandon_after_s(ctx.stream_exchange(other_path, other), ctx.rng.uniform(0.0, 0.4))

    asking = asyncio.create_task(ctx.post(path, body))
    await asyncio.gather(*(leave() for _ in range(6)))
    answer = await asking
    ctx.same_text(answer.ok(), reference, "beside abandoned requests and alone")
