"""Token counts: what people pay by."""

from __future__ import annotations

from relevo.check.context import CheckContext
from relevo.check.sources import OPENAI_CACHING, OPENAI_CHAT, OPENAI_COMPLETIONS
from relevo.check.texts import OPENING, QUESTION, fresh_words
from relevo.check.words import Level, Need, check

_LONG_WORDS = 160  # a prompt of several cache blocks, whatever their size
_CACHED = (Need.CACHED_TOKENS,)


@check(
    "usage.sums",
    "total_tokens is prompt_tokens plus completion_tokens.",
    why="Budgets are kept by the total.",
    source=OPENAI_CHAT,
)
async def sums(ctx: CheckContext) -> None:
    answer = (await ctx.ask(OPENING)).ok()
    prompt, completion, total = (answer.usage(f"{name}_tokens") for name in ("prompt", "completion", "total"))
    if prompt + completion != total:
        raise answer.fail(f"{prompt} + {completion} is told as {total}", str(prompt + completion))


@check(
    "usage.exact",
    "With max_tokens 1, 2 and 3 a story is cut after exactly so many tokens, with finish_reason 'length'.",
    why="One token too many or too few at the seam between prefill and decode shows here.",
    source=OPENAI_CHAT,
)
async def exact(ctx: CheckContext) -> None:
    for max_tokens in (1, 2, 3):
        answer = (await ctx.ask(OPENING, max_tokens=max_tokens)).ok()
        if answer.usage("completion_tokens") != max_tokens or answer.finish_reason() != "length":
            raise answer.fail(
                f"{answer.usage('completion_tokens')} tokens, finish_reason {answer.finish_reason()!r}",
                f"{max_tokens} tokens, 'length'",
            )


@check(
    "usage.prompt_is_tokenize",
    "prompt_tokens of a completion is the number of tokens that /tokenize gives.",
    why="Clients count ahead with it.",
    source=OPENAI_COMPLETIONS,
    needs=(Need.COMPLETIONS, Need.TOKENIZE),
)
async def prompt_is_tokenize(ctx: CheckContext) -> None:
    tokens = await ctx.tokenize(OPENING)
    answer = (await ctx.complete(OPENING)).ok()
    if answer.usage("prompt_tokens") != len(tokens):
        raise answer.fail(f"{answer.usage('prompt_tokens')} prompt tokens", f"{len(tokens)}, as /tokenize says")


@check(
    "usage.prompt_grows",
    "A longer prompt has more prompt tokens, the same prompt as many.",
    why="Constant or drifting counts are invented ones.",
    source=OPENAI_CHAT,
)
async def prompt_grows(ctx: CheckContext) -> None:
    short, again = (await ctx.ask(QUESTION)).ok(), (await ctx.ask(QUESTION)).ok()
    longer = (await ctx.ask(QUESTION * 3)).ok()
    if short.usage("prompt_tokens") != again.usage("prompt_tokens"):
        raise again.fail(f"{again.usage('prompt_tokens')} prompt tokens", f"{short.usage('prompt_tokens')} as before")
    if longer.usage("prompt_tokens") <= short.usage("prompt_tokens"):
        raise longer.fail(f"{longer.usage('prompt_tokens')} for three times the text", "more prompt tokens")


@check(
    "usage.tells_cached",
    "usage.prompt_tokens_details.cached_tokens is there.",
    why="Cached tokens are cheaper; without the number no client can check a bill or a cache.",
    source=OPENAI_CACHING,
    level=Level.SHOULD,
)
async def tells_cached(ctx: CheckContext) -> None:
    answer = (await ctx.ask(OPENING)).ok()
    answer.at(int, "usage", "prompt_tokens_details", "cached_tokens")


@check(
    "usage.fresh_is_not_cached",
    "Of a prompt that was never sent before hardly anything is cached.",
    why="KV that was moved between workers is no cache hit; counted as one, the bill is too low.",
    source=OPENAI_CACHING,
    needs=_CACHED,
)
async def fresh_is_not_cached(ctx: CheckContext) -> None:
    answer = (await ctx.ask(fresh_words(ctx.rng, _LONG_WORDS))).ok()
    if answer.num_cached_tokens > answer.usage("prompt_tokens") / 2:
        raise answer.fail(f"{answer.num_cached_tokens} of {answer.usage('prompt_tokens')} tokens cached", "hardly any")


@check(
    "usage.cached_bounds",
    "A repeated prompt has between 0 and prompt_tokens cached tokens.",
    why="Numbers outside have been billed.",
    source=OPENAI_CACHING,
    needs=_CACHED,
)
async def cached_bounds(ctx: CheckContext) -> None:
    prompt = fresh_words(ctx.rng, _LONG_WORDS)
    for _ in range(3):
        answer = (await ctx.ask(prompt)).ok()
        if not 0 <= answer.num_cached_tokens <= answer.usage("prompt_tokens"):
            raise answer.fail(f"{answer.num_cached_tokens} cached tokens", f"0 to {answer.usage('prompt_tokens')}")


@check(
    "usage.repeat_is_cached",
    "A long prompt sent again is mostly cached.",
    why="Conversations repeat all that was said; without the cache every turn costs more than the last.",
    source=OPENAI_CACHING,
    needs=_CACHED,
    level=Level.SHOULD,
)
async def repeat_is_cached(ctx: CheckContext) -> None:
    prompt = fresh_words(ctx.rng, _LONG_WORDS)
    (await ctx.ask(prompt)).ok()
    answer = (await ctx.ask(prompt)).ok()
    if answer.num_cached_tokens < answer.usage("prompt_tokens") / 2:
        raise answer.fail(f"{answer.num_cached_tokens} of {answer.usage('prompt_tokens')} cached", "more than half")


@check(
    "usage.cached_answer_is_same",
    "An answer from cached KV equals the one computed afresh.",
    why="A cache that changes answers is worse than none.",
    source=OPENAI_CACHING,
)
async def cached_answer_is_same(ctx: CheckContext) -> None:
    path, body = ctx.prompt_body(fresh_words(ctx.rng, _LONG_WORDS))
    body |= ctx.logprob_fields(path)
    first, second = (await ctx.post(path, body)).ok(), (await ctx.post(path, body)).ok()
    ctx.same_text(second, first, "cached and fresh")


@check(
    "usage.cached_prefix_only",
    "A prompt that differs from an earlier one at its first word shares nothing with it.",
    why="A hit on a different prefix means that blocks are matched without what came before them.",
    source=OPENAI_CACHING,
    needs=_CACHED,
)
async def cached_prefix_only(ctx: CheckContext) -> None:
    prompt = fresh_words(ctx.rng, _LONG_WORDS)
    (await ctx.ask(prompt)).ok()
    answer = (await ctx.ask("x" + prompt)).ok()
    if answer.num_cached_tokens > answer.usage("prompt_tokens") / 2:
        raise answer.fail(f"{answer.num_cached_tokens} of {answer.usage('prompt_tokens')} tokens cached", "hardly any")
