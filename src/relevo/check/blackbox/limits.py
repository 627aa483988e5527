"""What is too long, too many or nothing at all."""

from __future__ import annotations

from typing import Any

from relevo.check.context import CheckContext
from relevo.check.exchange import Answer
from relevo.check.sources import OPENAI_CHAT, OPENAI_ERRORS, VLLM
from relevo.check.texts import OPENING, QUESTION
from relevo.check.words import Level, Mismatch, Need, Skip, check

_FEW_EVENTS = 6
_MAX_WORDS = 400_000  # that are sent, each at least a token; arbitrary


async def _overflow(ctx: CheckContext) -> Answer:
    """A prompt of about one and a half times the context. Raises Skip where that is too long to send."""
    num_words = 3 * (ctx.facts.max_model_len or 0) // 2
    if num_words > _MAX_WORDS:
        raise Skip(f"a prompt longer than a context of {ctx.facts.max_model_len} tokens is too long to send")
    return await ctx.ask("word " * num_words, max_tokens=1)


@check(
    "limits.context_overflow",
    "A prompt longer than the context is a 4xx error, at once.",
    why="Cut silently, the answer is to another question; sent on to a worker, it hangs or kills it.",
    source=OPENAI_ERRORS,
    needs=(Need.CONTEXT_LENGTH,),
)
async def context_overflow(ctx: CheckContext) -> None:
    answer = await _overflow(ctx)
    if not 400 <= answer.status < 500:
        raise answer.fail(f"HTTP {answer.status}", "a 4xx status")


@check(
    "limits.context_overflow_wording",
    "The error for it says so: code 'context_length_exceeded' or 'maximum context length' in the message.",
    why="Agents match exactly that to shorten the conversation and go on; other words end their work.",
    source=OPENAI_ERRORS,
    needs=(Need.CONTEXT_LENGTH,),
    level=Level.SHOULD,
)
async def context_overflow_wording(ctx: CheckContext) -> None:
    answer = await _overflow(ctx)
    text = answer.raw.decode(errors="replace").lower()
    if "context_length_exceeded" not in text and "maximum context length" not in text:
        raise answer.fail(answer.error_message, "context_length_exceeded, or 'maximum context length'")


async def _refused_or_bounded(ctx: CheckContext, **fields: Any) -> Answer | None:
    """The answer, or None where text began to flow; it is not read to its end."""
    path, body = ctx.prompt_body(QUESTION, **fields)
    return await ctx.stream_at_most(path, body, _FEW_EVENTS)


@check(
    "limits.huge_max_tokens",
    "max_tokens far above the context is either cut to what fits or a 4xx error.",
    why="Clients send one large number for every model.",
    source=VLLM,
)
async def huge_max_tokens(ctx: CheckContext) -> None:
    answer = await _refused_or_bounded(ctx, max_tokens=1_000_000_000)
    if answer is not None and answer.status != 200 and not answer.is_refusal:
        raise answer.fail(f"HTTP {answer.status}", "an answer or a 4xx status")


@check(
    "limits.negative_max_tokens",
    "A negative max_tokens is a 4xx error.",
    why="Taken for 'no limit', a mistake in a client costs a whole context of tokens.",
    source=OPENAI_CHAT,
    level=Level.SHOULD,
)
async def negative_max_tokens(ctx: CheckContext) -> None:
    answer = await _refused_or_bounded(ctx, max_tokens=-1)
    if answer is None or not 400 <= answer.status < 500:
        raise Mismatch(
            "text" if answer is None else f"HTTP {answer.status}", expected="a 4xx status", exchange=ctx.last
        )


@check(
    "limits.zero_max_tokens",
    "max_tokens 0 gives a 4xx error or no token, never text without end.",
    why="Zero is what a client's arithmetic gives when the context is full.",
    source=VLLM,
)
async def zero_max_tokens(ctx: CheckContext) -> None:
    answer = await _refused_or_bounded(ctx, max_tokens=0)
    if answer is None or not (answer.is_refusal or answer.status == 200):
        raise Mismatch("text" if answer is None else f"HTTP {answer.status}", expected="no text", exchange=ctx.last)
    if answer.status == 200 and len(answer.text()) > 20:
        raise answer.fail(f"the text {answer.text()!r}", "no text")


@check(
    "limits.empty_prompt",
    "An empty prompt is an answer or a 4xx error, not a failure of the server.",
    why="It is the first thing a form sends by accident.",
    source=OPENAI_CHAT,
)
async def empty_prompt(ctx: CheckContext) -> None:
    answer = await ctx.ask("", max_tokens=2)
    if answer.status != 200 and not answer.is_refusal:
        raise answer.fail(f"HTTP {answer.status}", "HTTP 200 or a 4xx status")
    (await ctx.ask(OPENING, max_tokens=2)).ok()


@check(
    "limits.many_stop_strings",
    "A thousand stop strings are an answer or a 4xx error, within the time limit.",
    why="Work per token that grows with what a client sends is a way to stop the server.",
    source=OPENAI_CHAT,
)
async def many_stop_strings(ctx: CheckContext) -> None:
    stops = [f"\u0001{number}\u0002" for number in range(1_000)]
    answer = await ctx.ask(QUESTION, stop=stops, max_tokens=4)
    if answer.status != 200 and not answer.is_refusal:
        raise answer.fail(f"HTTP {answer.status}", "HTTP 200 or a 4xx status")


@check(
    "limits.whole_context",
    "A prompt of half the context, at most 2,000 tokens, is answered, and counted as it was sent.",
    why="The context length is a promise.",
    source=OPENAI_CHAT,
    needs=(Need.CONTEXT_LENGTH, Need.TOKENIZE, Need.COMPLETIONS),
)
async def whole_context(ctx: CheckContext) -> None:
    wanted = min(
        (ctx.facts.max_model_len or 0) // 2, 2_000
    )  # enough to cross chunks and blocks, short enough to wait for
    tokens = await ctx.tokenize("The quick brown fox jumps over the lazy dog. " * (wanted // 10 + 1))
    answer = (await ctx.complete(tokens[:wanted], max_tokens=2)).ok()
    if answer.usage("prompt_tokens") != len(tokens[:wanted]):
        raise answer.fail(f"{answer.usage('prompt_tokens')} prompt tokens", f"{len(tokens[:wanted])}, as sent")
