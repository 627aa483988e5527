"""Temperature, seeds, bias: what makes answers the same and what makes them differ."""

from __future__ import annotations

from relevo.check.context import CheckContext
from relevo.check.sources import OPENAI_CHAT, VLLM
from relevo.check.texts import QUESTION
from relevo.check.words import Level, Need, check

_CHAT = (Need.CHAT,)


@check(
    "sampling.greedy_repeats",
    "At temperature 0 the same request gives the same text.",
    why="Tests and caches build on it.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def greedy_repeats(ctx: CheckContext) -> None:
    fields = ctx.logprob_fields("/v1/chat/completions")
    ctx.same_text((await ctx.chat(**fields)).ok(), (await ctx.chat(**fields)).ok(), "twice the same request")


@check(
    "sampling.unseeded_varies",
    "At temperature 1.5 without a seed, four answers are not all the same.",
    why="A server that samples with a fixed seed gives all clients the same dice.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def unseeded_varies(ctx: CheckContext) -> None:
    answers = [(await ctx.chat(temperature=1.5)).ok() for _ in range(4)]
    if len({answer.text() for answer in answers}) == 1:
        raise answers[-1].fail("four equal texts", "different texts")


@check(
    "sampling.seed_repeats",
    "The same seed gives the same text.",
    why="The reference promises it as far as possible; without it a sampled answer cannot be looked into.",
    source=OPENAI_CHAT,
    needs=_CHAT,
    level=Level.SHOULD,
)
async def seed_repeats(ctx: CheckContext) -> None:
    first, second = (await ctx.chat(temperature=1, seed=42)).ok(), (await ctx.chat(temperature=1, seed=42)).ok()
    ctx.same_text(second, first, "twice with seed 42")


@check(
    "sampling.seeds_differ",
    "Four different seeds do not all give the same text.",
    why="A seed that is ignored is a seed that is fixed.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def seeds_differ(ctx: CheckContext) -> None:
    answers = [(await ctx.chat(temperature=1.5, seed=seed)).ok() for seed in (1, 2, 3, 4)]
    if len({answer.text() for answer in answers}) == 1:
        raise answers[-1].fail("four equal texts", "different texts")


@check(
    "sampling.seeded_stream_equals_whole",
    "A streamed answer with a seed equals the one not streamed.",
    why="Streaming is a way to deliver an answer, not another answer.",
    source=OPENAI_CHAT,
    needs=_CHAT,
    level=Level.SHOULD,
)
async def seeded_stream_equals_whole(ctx: CheckContext) -> None:
    streamed = (await ctx.stream_chat(temperature=1, seed=5)).ok()
    ctx.same_text(streamed, (await ctx.chat(temperature=1, seed=5)).ok(), "streamed and whole with seed 5")


@check(
    "sampling.narrow_top_p",
    "With top_p close to 0 a sampled answer is the greedy one.",
    why="A nucleus of one token leaves no choice.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def narrow_top_p(ctx: CheckContext) -> None:
    fields = ctx.logprob_fields("/v1/chat/completions")
    narrow = (await ctx.chat(temperature=1, top_p=1e-6, seed=3, **fields)).ok()
    ctx.same_text(narrow, (await ctx.chat(**fields)).ok(), "top_p 1e-6 and greedy")


@check(
    "sampling.logit_bias",
    "A logit_bias of 100 makes a token come, again and again.",
    why="Classifiers confine answers to labels with it.",
    source=OPENAI_CHAT,
    needs=(Need.CHAT, Need.LOGIT_BIAS, Need.TOKENIZE),
)
async def logit_bias(ctx: CheckContext) -> None:
    token = (await ctx.tokenize("banana", special=False))[-1]
    answer = (await ctx.chat(logit_bias={str(token): 100}, max_tokens=4)).ok()
    text = answer.text().strip()
    if not text or len(set(_quarters(text))) != 1:
        raise answer.fail(f"the text is {answer.text()!r}", f"token {token}, the last of 'banana', four times")


def _quarters(text: str) -> list[str]:
    """`text` in four pieces of the same length, spaces aside; the pieces differ if it is no repetition."""
    joined = "".join(text.split())
    size = max(1, len(joined) // 4)
    return [joined[start : start + size] for start in range(0, len(joined), size)]


@check(
    "sampling.min_tokens",
    "With ignore_eos and max_tokens 12 exactly 12 tokens are generated, where the fields are known.",
    why="Load generators depend on it; ignored, their numbers mean nothing.",
    source=VLLM,
    needs=(Need.CHAT, Need.IGNORE_EOS),
    level=Level.SHOULD,
)
async def min_tokens(ctx: CheckContext) -> None:
    answer = (await ctx.chat("Say only: Yes.", ignore_eos=True, min_tokens=12, max_tokens=12)).ok()
    if answer.usage("completion_tokens") != 12:
        raise answer.fail(f"{answer.usage('completion_tokens')} completion tokens", "12")


@check(
    "sampling.temperature_range",
    "A negative temperature is a 4xx error.",
    why="Silently mended, the client never learns of its mistake.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def temperature_range(ctx: CheckContext) -> None:
    answer = await ctx.chat(QUESTION, temperature=-1, max_tokens=1)
    if not 400 <= answer.status < 500:
        raise answer.fail(f"HTTP {answer.status}", "a 4xx status")
