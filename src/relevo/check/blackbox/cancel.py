"""A client that goes away takes its request with it."""

from __future__ import annotations

import asyncio
import time

import orjson

from relevo.check.context import CLIENT_ERRORS, CheckContext
from relevo.check.sources import RECOVERY
from relevo.check.texts import OPENING, QUESTION, fresh_words
from relevo.check.words import Mismatch, Need, check

_LONG_TOKENS = 400  # of an answer that is left in the middle
_NUM_PREFILLS = 12
_PREFILL_WORDS = 400
_NUM_RANDOM = 40


async def _wait_until_none_runs(t: CheckContext, what: str) -> None:
    left = await t.settled_at(True, 0.0)
    if left is not None:
        raise Mismatch(
            f"{left:g} requests are still running {t.settle_s:g} s after {what}", expected="none", exchange=t.last
        )


async def _need_idle(t: CheckContext) -> None:
    await _wait_until_none_runs(t, "the check began")


@check(
    "cancel.stream",
    "A stream that its client leaves after the first text is ended on the server.",
    why="Answers nobody reads take the room of those that somebody waits for.",
    source=RECOVERY,
    needs=(Need.RUNNING_METRIC,),
)
async def stream(t: CheckContext) -> None:
    await _need_idle(t)
    path, body = t.prompt_body(QUESTION, max_tokens=_LONG_TOKENS, **t.endless)
    t.last = t.stream_exchange(path, body)
    await t.server.abandon_after_events(t.last, 3)
    await _wait_until_none_runs(t, "the client left its stream")


@check(
    "cancel.whole",
    "A request without a stream is ended when its client leaves.",
    why="Clients give up after their timeout and try again; the first attempt must not run on.",
    source=RECOVERY,
    needs=(Need.RUNNING_METRIC,),
)
async def whole(t: CheckContext) -> None:
    await _need_idle(t)
    path, body = t.prompt_body(QUESTION, max_tokens=_LONG_TOKENS, **t.endless)
    t.last = t.server.exchange("POST", path, orjson.dumps(body))
    if not await t.server.abandon_after_s(t.last, 0.2):
        t.notes.append("answered before the client left, so that there was nothing to end")
        return
    await _wait_until_none_runs(t, "the client left")


@check(
    "cancel.many_prefills",
    "Long prompts that their clients left before the first token do not delay the next request.",
    why="Where the abort does not reach the prefill queue, ten cancelled prompts block the server for a minute.",
    source=RECOVERY,
)
async def many_prefills(t: CheckContext) -> None:
    started_s = time.monotonic()
    (await t.ask(fresh_words(t.rng, _PREFILL_WORDS), max_tokens=1)).ok()
    one_prefill_s = time.monotonic() - started_s
    bodies = [
        t.prompt_body(fresh_words(t.rng, _PREFILL_WORDS), max_tokens=_LONG_TOKENS, **t.endless)
        for _ in range(_NUM_PREFILLS)
    ]
    delay_s = min(0.3, max(0.05, one_prefill_s))  # long enough that the server has the requests
    exchanges = [t.stream_exchange(path, body) for path, body in bodies]
    await asyncio.gather(*(t.server.abandon_after_s(exchange, delay_s) for exchange in exchanges))
    limit_s = 3 * one_prefill_s + t.settle_s
    try:
        async with asyncio.timeout(limit_s):
            (await t.ask(OPENING, max_tokens=1)).ok()
    except TimeoutError:
        raise Mismatch(
            f"no answer within {limit_s:.1f} s after {_NUM_PREFILLS} prompts were left",
            expected=f"an answer within three prefills of {one_prefill_s:.1f} s and {t.settle_s:g} s",
            exchange=t.last,
        ) from None


@check(
    "cancel.kv_returns",
    "After requests were left in the middle, KV cache usage is back at its baseline.",
    why="Blocks that leak at each abort add up until the server has none left.",
    source=RECOVERY,
    needs=(Need.RUNNING_METRIC, Need.KV_METRIC),
)
async def kv_returns(t: CheckContext) -> None:
    baseline, reference = await t.quiet_baseline()
    for _ in range(5):
        path, body = t.prompt_body(fresh_words(t.rng, 60), max_tokens=_LONG_TOKENS, **t.endless)
        t.last = t.stream_exchange(path, body)
        await t.server.abandon_after_events(t.last, 2)
    await t.closing_probe(baseline, reference)


@check(
    "cancel.random_moments",
    "Forty requests left at random moments leave nothing behind, and the next answer is as before.",
    why="Leaks hide in the moments between queue, prefill, transfer and decode.",
    source=RECOVERY,
)
async def random_moments(t: CheckContext) -> None:
    baseline, reference = await t.quiet_baseline()

    async def one() -> None:
        text = fresh_words(t.rng, t.rng.choice((4, 40, 200)))
        path, body = t.prompt_body(text, max_tokens=_LONG_TOKENS, **t.endless)
        try:
            await t.server.abandon_after_s(t.stream_exchange(path, body), t.rng.uniform(0.0, 0.5))
        except CLIENT_ERRORS:
            return  # it was refused or had ended: as good as left

    for _ in range(_NUM_RANDOM // 8):
        await asyncio.gather(*(one() for _ in range(8)))
    await t.closing_probe(baseline, reference)


@check(
    "cancel.beside_others",
    "A request that goes on beside ones that are left has the same answer.",
    why="Freed blocks that somebody still writes to show as another request's words.",
    source=RECOVERY,
)
async def beside_others(t: CheckContext) -> None:
    path, body = t.prompt_body(OPENING, max_tokens=24)
    body |= t.logprob_fields(path)
    reference = (await t.post(path, body)).ok()

    async def leave() -> None:
        other_path, other = t.prompt_body(fresh_words(t.rng, 60), max_tokens=_LONG_TOKENS, **t.endless)
        await t.server.abandon_after_s(t.stream_exchange(other_path, other), t.rng.uniform(0.0, 0.4))

    asking = asyncio.create_task(t.post(path, body))
    await asyncio.gather(*(leave() for _ in range(6)))
    answer = await asking
    t.same_text(answer.ok(), reference, "beside abandoned requests and alone")
