"""Two clients with keys of their own: neither learns of the other, and neither is kept out by the other.

The first key is the hostile one here, the other one's requests are judged. How many of the first one's answers were
there when the other's came says who was served, whatever the speed of the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from relevo.check.context import CheckContext
from relevo.check.exchange import Answer, Exchange
from relevo.check.server import Server
from relevo.check.sources import FAIRNESS, ISOLATION, OPENAI_CACHING, SECRETS
from relevo.check.texts import QUESTION, TOPICS, fresh_words
from relevo.check.words import Level, Mismatch, Need, Skip, check
from relevo.client.http import CLIENT_ERRORS

_TWO = (Need.OTHER_KEY,)
_NUM_FLOOD = 48  # requests of the first key at once
_FLOOD_TOKENS = 128  # of each
_NUM_STREAMS = 96
_STREAM_TOKENS = 512
_NUM_CHOICES = 64
_HEAD_START_S = 0.2  # of the first key; arbitrary
_SHORT_TOKENS = 4  # of the other key's request


def _other(ctx: CheckContext) -> Server:
    assert ctx.other is not None, "the check needs another key"
    return ctx.other


async def _as_other(ctx: CheckContext, text: str, **fields: Any) -> Answer:
    path, body = ctx.prompt_body(text, **fields)
    ctx.last = ctx.exchange(path, body, _other(ctx))
    return await _other(ctx).send(ctx.last)


# ---- nothing is learned ---------------------------------------------------------------------------------------------


@check(
    "tenants.cached_tokens",
    "What one key has sent is not cached for another key, also under the same session and cache names.",
    why="A client that guesses a prompt could see whether another customer has sent it.",
    source=OPENAI_CACHING,
    needs=(*_TWO, Need.CACHED_TOKENS),
)
async def cached_tokens(ctx: CheckContext) -> None:
    text = fresh_words(ctx.rng, 200)
    names = {"prompt_cache_key": "one", "user": "one"}
    await ctx.ask(text, max_tokens=1)
    again = (await ctx.ask(text, max_tokens=1)).ok()
    if again.num_cached_tokens == 0:
        raise Skip("nothing is cached for the same key either")
    for fields in ({}, names):
        answer = (await _as_other(ctx, text, max_tokens=1, **fields)).ok()
        if answer.num_cached_tokens:
            raise answer.fail(f"{answer.num_cached_tokens} cached tokens for the other key", "none")
        text = fresh_words(ctx.rng, 200)
        await ctx.ask(text, max_tokens=1, **names)


@check(
    "tenants.no_foreign_words",
    "A word that only the first key's prompts contain appears in no answer or error for the other key.",
    why="It would be another customer's text.",
    source=ISOLATION,
    needs=_TWO,
)
async def no_foreign_words(ctx: CheckContext) -> None:
    canary = f"zq{ctx.rng.getrandbits(40):010x}"
    first = [ctx.ask(f"{canary} {canary} {topic}") for topic in TOPICS[:6]]
    wrong = [ctx.ask(canary, temperature=canary) for _ in range(3)]
    others = [_as_other(ctx, f"Here is a text about {topic}:") for topic in TOPICS[:6]]
    others += [_as_other(ctx, "Here is a text", temperature="hot") for _ in range(3)]
    answers = await asyncio.gather(*first, *wrong, *others)
    for answer in answers[-len(others) :]:
        if canary.encode() in answer.raw or any(canary in value for value in answer.headers.values()):
            raise answer.fail(f"the answer has {canary!r} of another key's prompt", "none of it")


@check(
    "tenants.same_request_id",
    "Two keys that send the same x-request-id at the same time each get the answer to their own prompt.",
    why="A table that is keyed by what clients name hands one customer's answer to another.",
    source=ISOLATION,
    needs=_TWO,
)
async def same_request_id(ctx: CheckContext) -> None:
    name = f"same-{ctx.rng.getrandbits(40):010x}"
    paths = [ctx.prompt_body(f"Here is a text about {topic}:") for topic in TOPICS[:2]]
    bodies = [(path, body | ctx.logprob_fields(path)) for path, body in paths]
    servers = (ctx.server, _other(ctx))
    alone = [
        (await server.send(ctx.exchange(*body, server))).ok() for server, body in zip(servers, bodies, strict=True)
    ]
    named = [
        server.exchange("POST", path, ctx.exchange(path, body).request.body, {"X-Request-Id": name})
        for server, (path, body) in zip(servers, bodies, strict=True)
    ]
    together = await asyncio.gather(*(server.send(one) for server, one in zip(servers, named, strict=True)))
    for answer, reference in zip(together, alone, strict=True):
        ctx.same_text(answer.ok(), reference, "with another's request id and alone")


@check(
    "tenants.keys_are_not_shown",
    "No page that needs no key of an operator shows a key.",
    why="A metric's label or an error that names the caller gives its key to all who can read it.",
    source=SECRETS,
    needs=_TWO,
)
async def keys_are_not_shown(ctx: CheckContext) -> None:
    keys = [key for key in (ctx.server.api_key, _other(ctx).api_key) if key is not None]
    await _as_other(ctx, QUESTION, max_tokens=1, temperature="hot")
    for path in ("/metrics", "/ready", "/health", "/version", "/v1/models", "/openapi.json", "/"):
        answer = await ctx.send("GET", path)
        if any(key.encode() in answer.raw for key in keys):
            raise Mismatch(f"{path} shows an API key", expected="none", exchange=answer.exchange)


# ---- none is kept out ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def _flood(ctx: CheckContext, exchanges: Sequence[Exchange]) -> AsyncIterator[list[asyncio.Task[Answer]]]:
    """The first key's requests, all at once; they are abandoned at the end."""
    tasks = [asyncio.create_task(ctx.server.send(exchange)) for exchange in exchanges]
    try:
        await asyncio.sleep(_HEAD_START_S)  # they are there before the other key's
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _need_served_beside(ctx: CheckContext, exchanges: Sequence[Exchange]) -> None:
    """Raises Mismatch unless the other key's short request is answered while most of the first key's run or wait."""
    async with _flood(ctx, exchanges) as tasks:
        num_before = sum(_is_answered(task) for task in tasks)
        num_left = sum(not task.done() for task in tasks)
        answer = await _as_other(ctx, "Here is a text about the sea:", max_tokens=_SHORT_TOKENS)
        num_answered = sum(_is_answered(task) for task in tasks) - num_before
    if answer.status != 200:
        raise answer.fail(f"HTTP {answer.status} for the other key's only request", "HTTP 200")
    if num_left <= 1 and num_before > 1:
        raise Skip("the first key's requests were all answered at once")
    if num_answered > max(1, num_left // 2):
        raise answer.fail(
            f"{num_answered} of the first key's {num_left} longer requests were answered before it",
            "it does not wait until the first key has been served",
        )


def _is_answered(task: asyncio.Task[Answer]) -> bool:
    if not task.done() or task.cancelled():
        return False
    error = task.exception()
    if isinstance(error, CLIENT_ERRORS):
        return False
    return task.result().status == 200


def _long_bodies(ctx: CheckContext, num: int, num_tokens: int, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    return [
        ctx.prompt_body(
            f"{number}: a text about {TOPICS[number % len(TOPICS)]}", max_tokens=num_tokens, **ctx.endless, **fields
        )
        for number in range(num)
    ]


@check(
    "tenants.flood",
    "A short request is answered while another key has forty-eight long ones running and waiting.",
    why="First come, first served means that one customer's loop is an outage for all.",
    source=FAIRNESS,
    needs=_TWO,
    level=Level.SHOULD,
)
async def flood(ctx: CheckContext) -> None:
    await _need_served_beside(ctx, [ctx.exchange(*body) for body in _long_bodies(ctx, _NUM_FLOOD, _FLOOD_TOKENS)])


@check(
    "tenants.long_streams",
    "A short request is answered while another key holds every place with long streams.",
    why="Agents hold streams for minutes; the next client should not wait for their end.",
    source=FAIRNESS,
    needs=_TWO,
    level=Level.SHOULD,
)
async def long_streams(ctx: CheckContext) -> None:
    bodies = _long_bodies(ctx, _NUM_STREAMS, _STREAM_TOKENS)
    await _need_served_beside(ctx, [ctx.stream_exchange(*body) for body in bodies])


@check(
    "tenants.large_n",
    "A short request is answered while another key has asked for sixty-four choices at once.",
    why="A request that must have all its places at once blocks the line for those that need one.",
    source=FAIRNESS,
    needs=(*_TWO, Need.CHOICES),
    level=Level.SHOULD,
)
async def large_n(ctx: CheckContext) -> None:
    bodies = _long_bodies(ctx, 4, _FLOOD_TOKENS, n=_NUM_CHOICES, temperature=1)
    await _need_served_beside(ctx, [ctx.exchange(*body) for body in bodies])


@check(
    "tenants.priority",
    "A key cannot put itself before another key by naming a priority.",
    why="Where clients choose their place, the honest ones are last.",
    source=FAIRNESS,
    needs=_TWO,
    level=Level.SHOULD,
)
async def priority(ctx: CheckContext) -> None:
    headers = {"x-priority": "-100", "x-relevo-priority": "-100"}
    exchanges = [
        ctx.server.exchange("POST", path, ctx.exchange(path, body | {"priority": -100}).request.body, headers)
        for path, body in _long_bodies(ctx, _NUM_FLOOD, _FLOOD_TOKENS)
    ]
    await _need_served_beside(ctx, exchanges)


@check(
    "tenants.equal_beside",
    "The other key's text beside the first key's load is the text it has alone.",
    why="Batches, evictions and preemptions are the server's affair.",
    source=ISOLATION,
    needs=_TWO,
)
async def equal_beside(ctx: CheckContext) -> None:
    path, body = ctx.prompt_body("Here is a text about glass:")
    body |= ctx.logprob_fields(path)
    alone = (await _other(ctx).send(ctx.exchange(path, body, _other(ctx)))).ok()
    async with _flood(ctx, [ctx.exchange(*one) for one in _long_bodies(ctx, _NUM_FLOOD // 2, _FLOOD_TOKENS)]):
        beside = await _other(ctx).send(ctx.exchange(path, body, _other(ctx)))
    ctx.same_text(beside.ok(), alone, "beside the first key's load and alone")
