"""Stop strings. The stop string of each check is cut out of the server's own greedy answer, so that it must occur."""

from __future__ import annotations

from typing import Any

from relevo.check.context import CHAT, COMPLETIONS, CheckContext
from relevo.check.exchange import Answer
from relevo.check.sources import OPENAI_CHAT, OPENAI_COMPLETIONS
from relevo.check.words import Need, Skip, check

_CHAT = (Need.CHAT,)
_NEVER = "\u0001\u0002never\u0003"  # no model writes this


def stop_inside(text: str, length: int, start: int | None = None) -> str:
    """A piece of `text`, from about its middle, without replacement characters. Raises Skip if there is none."""
    begin = len(text) // 2 if start is None else start
    last = len(text) - length
    for at in (*range(begin, last + 1), *range(min(begin, last + 1))):
        piece = text[at : at + length]
        if "\ufffd" not in piece and piece.strip() == piece:
            return piece
    if length > 1:
        return stop_inside(text, length - 1, start)
    raise Skip("the model's answer has no piece that could be a stop string")


async def _plain(ctx: CheckContext, path: str = CHAT, **fields: Any) -> Answer:
    return (await ctx.chat(**fields)).ok() if path == CHAT else (await ctx.complete(**fields)).ok()


def _check_stopped(answer: Answer, full_text: str, *stops: str) -> None:
    """The text ends where the first of `stops` was complete, and without it."""
    found = [(full_text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in full_text]
    end, _, stop = min(found)
    wanted = full_text[: end - len(stop)]
    if answer.text() != wanted:
        raise answer.fail(f"the text is {answer.text()!r}", f"{wanted!r}: the unstopped text up to {stop!r}")
    if answer.finish_reason() != "stop":
        raise answer.fail(f"finish_reason is {answer.finish_reason()!r}", "'stop'")


@check(
    "stop.string",
    "The text ends before the stop string, and finish_reason is 'stop'.",
    why="Programs cut answers by it; the stop string in the text breaks their parsers.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def string(ctx: CheckContext) -> None:
    text = (await _plain(ctx)).text()
    stop = stop_inside(text, 3)
    _check_stopped((await ctx.chat(stop=stop)).ok(), text, stop)


@check(
    "stop.completion",
    "The text of a completion ends before the stop string, and finish_reason is 'stop'.",
    why="Evaluation suites depend on it.",
    source=OPENAI_COMPLETIONS,
    needs=(Need.COMPLETIONS,),
)
async def completion(ctx: CheckContext) -> None:
    text = (await _plain(ctx, COMPLETIONS)).text()
    stop = stop_inside(text, 3)
    _check_stopped((await ctx.complete(stop=stop)).ok(), text, stop)


@check(
    "stop.first_of_list",
    "Of several stop strings the one that comes first in the text ends it.",
    why="ReAct agents send several markers.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def first_of_list(ctx: CheckContext) -> None:
    text = (await _plain(ctx)).text()
    later, earlier = stop_inside(text, 3, 2 * len(text) // 3), stop_inside(text, 3, len(text) // 3)
    _check_stopped((await ctx.chat(stop=[_NEVER, later, earlier])).ok(), text, later, earlier)


@check(
    "stop.across_tokens",
    "A stop string that is spread over several tokens is found.",
    why="Token borders are the model's affair; clients think in characters.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def across_tokens(ctx: CheckContext) -> None:
    text = (await _plain(ctx)).text()
    stop = stop_inside(text, min(12, max(2, len(text) // 3)), len(text) // 3)
    _check_stopped((await ctx.chat(stop=[stop])).ok(), text, stop)


@check(
    "stop.stream_leaks_nothing",
    "A stream shows nothing of the stop string, not even its first characters.",
    why="What has been shown cannot be taken back.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def stream_leaks_nothing(ctx: CheckContext) -> None:
    text = (await _plain(ctx)).text()
    stop = stop_inside(text, min(12, max(2, len(text) // 3)), len(text) // 3)
    _check_stopped((await ctx.stream_chat(stop=[stop])).ok(), text, stop)


@check(
    "stop.held_back_text_comes",
    "Text that could have become a stop string but did not is delivered, also at the end of a stream.",
    why="Servers hold such text back; forgetting it loses the last characters of the answer.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def held_back_text_comes(ctx: CheckContext) -> None:
    text = (await _plain(ctx)).text()
    stop = text[-3:].lstrip("\ufffd") + _NEVER
    answer = (await ctx.stream_chat(stop=[stop])).ok()
    if answer.text() != text:
        raise answer.fail(f"the text is {answer.text()!r}", f"{text!r}: the stop string {stop!r} does not occur in it")


@check(
    "stop.no_match",
    "A stop string that does not occur changes nothing.",
    why="Clients send stop strings with every request.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def no_match(ctx: CheckContext) -> None:
    fields = ctx.logprob_fields(CHAT)
    plain = await _plain(ctx, **fields)
    answer = (await ctx.chat(stop=_NEVER, **fields)).ok()
    ctx.same_text(answer, plain, "with and without a stop string that does not occur")
    if answer.finish_reason() != plain.finish_reason():
        raise answer.fail(f"finish_reason is {answer.finish_reason()!r}", repr(plain.finish_reason()))


@check(
    "stop.empty_list",
    "An empty list of stop strings means none.",
    why="Client libraries send it as their default.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def empty_list(ctx: CheckContext) -> None:
    fields = ctx.logprob_fields(CHAT)
    ctx.same_text((await ctx.chat(stop=[], **fields)).ok(), await _plain(ctx, **fields), "with stop [] and without")


@check(
    "stop.at_the_start",
    "A stop string at the very start of the answer gives an empty text and finish_reason 'stop'.",
    why="An empty answer is a valid one; it is no reason for an error or for going on.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def at_the_start(ctx: CheckContext) -> None:
    text = (await _plain(ctx)).text()
    if not text[:1] or text[0] in "\ufffd \n":
        raise Skip("the model's answer does not begin with a character that could be a stop string")
    _check_stopped((await ctx.chat(stop=text[0])).ok(), text, text[0])


@check(
    "stop.saves_tokens",
    "After a stop string no more tokens are generated or billed.",
    why="People set stop strings to save tokens.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def saves_tokens(ctx: CheckContext) -> None:
    plain = await _plain(ctx)
    stop = stop_inside(plain.text(), 2, len(plain.text()) // 4)
    fields: dict[str, Any] = {"stop": stop}
    answer = (await ctx.chat(**fields)).ok()
    used, whole = answer.usage("completion_tokens"), plain.usage("completion_tokens")
    if whole >= 8 and used > whole * 3 / 4:
        raise answer.fail(f"{used} completion tokens of {whole} for a quarter of the text", "about a quarter")
