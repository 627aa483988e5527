"""Equal to an oracle: a server with the same weights that does nothing clever, greedy on both sides."""

from __future__ import annotations

import asyncio

import orjson

from relevo.check.context import CheckContext
from relevo.check.exchange import Answer
from relevo.check.sources import ISOLATION
from relevo.check.texts import TOPICS, fresh_words
from relevo.check.words import Need, Skip, check
from relevo.client.http import CLIENT_ERRORS

_NEEDS = (Need.ORACLE,)
_LENGTHS = (1, 12, 13, 25, 50, 100, 200, 400)  # words; around block and chunk borders for common sizes


async def _ask_oracle(ctx: CheckContext, path: str, body: dict[str, object]) -> Answer:
    """Raises Skip if it has none: that says nothing about the server."""
    assert ctx.oracle is not None, "checks that need an oracle run with one only"
    exchange = ctx.oracle.exchange("POST", path, orjson.dumps(body | {"model": ctx.oracle_model}))
    try:
        answer = await ctx.oracle.send(exchange)
    except CLIENT_ERRORS as error:
        raise Skip(f"the oracle does not answer: {str(error) or type(error).__name__}") from error
    if answer.status != 200:
        raise Skip(f"the oracle refused with HTTP {answer.status}: {answer.error_message}")
    return answer


@check(
    "oracle.topics",
    "Greedy answers to twelve prompts at once equal the oracle's, but for near ties.",
    why="Serving must not change what the model says.",
    source=ISOLATION,
    needs=_NEEDS,
)
async def topics(ctx: CheckContext) -> None:
    bodies = [ctx.prompt_body(f"Here is a text about {topic}:") for topic in TOPICS]
    bodies = [(path, body | ctx.logprob_fields(path)) for path, body in bodies]
    wanted = [await _ask_oracle(ctx, path, body) for path, body in bodies]
    answers = await asyncio.gather(*(ctx.post(*body) for body in bodies))
    for topic, answer, reference in zip(TOPICS, answers, wanted, strict=True):
        ctx.same_text(answer.ok(), reference, f"about {topic}, here and at the oracle")


@check(
    "oracle.lengths",
    "Greedy answers to prompts of 1 to 400 words equal the oracle's, but for near ties.",
    why="Wrong blocks show at the borders of blocks and chunks.",
    source=ISOLATION,
    needs=_NEEDS,
)
async def lengths(ctx: CheckContext) -> None:
    for num_words in _LENGTHS:
        path, body = ctx.prompt_body(fresh_words(ctx.rng, num_words), max_tokens=12)
        body |= ctx.logprob_fields(path)
        reference = await _ask_oracle(ctx, path, body)
        ctx.same_text((await ctx.post(path, body)).ok(), reference, f"{num_words} words, here and at the oracle")


@check(
    "oracle.usage",
    "prompt_tokens equals the oracle's.",
    why="Another count means another template or tokenizer, and so another prompt.",
    source=ISOLATION,
    needs=_NEEDS,
)
async def usage(ctx: CheckContext) -> None:
    for path, body in (
        ctx.prompt_body("Here is a text about the sea:", max_tokens=1),
        ("/v1/chat/completions", ctx.chat_body(max_tokens=1)),
    ):
        if path == "/v1/chat/completions" and not ctx.facts.has(Need.CHAT):
            continue
        reference = await _ask_oracle(ctx, path, body)
        answer = (await ctx.post(path, body)).ok()
        if answer.usage("prompt_tokens") != reference.usage("prompt_tokens"):
            raise answer.fail(
                f"{answer.usage('prompt_tokens')} prompt tokens", f"{reference.usage('prompt_tokens')}, as the oracle"
            )


@check(
    "oracle.logprobs",
    "Log probabilities of greedy tokens are within 0.05 of the oracle's.",
    why="Texts can agree while the numbers drift; drift shows here first.",
    source=ISOLATION,
    needs=(Need.ORACLE, Need.CHAT, Need.CHAT_LOGPROBS),
)
async def logprobs(ctx: CheckContext) -> None:
    body = ctx.chat_body(logprobs=True, top_logprobs=1)
    reference = await _ask_oracle(ctx, "/v1/chat/completions", body)
    answer = (await ctx.post("/v1/chat/completions", body)).ok()
    for one, other in zip(answer.logprobs(), reference.logprobs(), strict=False):
        if one.token != other.token:
            return  # another text from here on; oracle.topics judges texts
        if abs(one.logprob - other.logprob) > 0.05:
            raise answer.fail(f"{one.token!r} has {one.logprob}", f"{other.logprob}, as the oracle")
