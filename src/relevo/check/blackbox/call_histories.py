"""Histories with calls, as clients of all kinds send them: they are rendered, or refused, and break nothing."""

from __future__ import annotations

from typing import Any

from relevo.check.calls import ASKED, NAME
from relevo.check.context import CheckContext
from relevo.check.exchange import Answer
from relevo.check.sources import ISOLATION, OPENAI_CHAT
from relevo.check.words import Level, Need, Skip, check

_ARGUMENTS = '{"port": "Brest", "rising": true}'
_LONG_RESULT = "High water at noon, as the lighthouse keeper saw it from the old mole"
_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=="
)
_NEEDS = (Need.CHAT,)


def _called(id: str = "call_1", arguments: Any = _ARGUMENTS, **content: Any) -> dict[str, Any]:
    call = {"id": id, "type": "function", "function": {"name": NAME, "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call], **content}


def _result(content: Any = "at noon", id: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


async def _ask(ctx: CheckContext, *messages: dict[str, Any]) -> Answer:
    return await ctx.chat(messages=[{"role": "user", "content": ASKED}, *messages], max_tokens=1)


async def _usual(ctx: CheckContext, *messages: dict[str, Any]) -> int:
    """How many prompt tokens a conversation of the usual form has; Skip if the server refuses such."""
    answer = await _ask(ctx, *(messages or (_called(content=None), _result())))
    if answer.is_refusal:
        raise Skip(f"tool messages are refused with HTTP {answer.status}: {answer.error_message}")
    return answer.ok().usage("prompt_tokens")


async def _check_same(ctx: CheckContext, usual: int, *messages: dict[str, Any]) -> None:
    answer = (await _ask(ctx, *messages)).ok()
    if answer.usage("prompt_tokens") != usual:
        raise answer.fail(
            f"{answer.usage('prompt_tokens')} prompt tokens, {usual} in the usual form", "the same prompt"
        )


async def _check_not_broken(ctx: CheckContext, *messages: dict[str, Any]) -> None:
    answer = await _ask(ctx, *messages)
    if answer.status != 200 and not answer.is_refusal:
        raise answer.fail(f"HTTP {answer.status}: {answer.error_message}", "an answer or a 4xx status")


@check(
    "tools.content_missing",
    "An assistant's message with calls and without content is as one whose content is null.",
    why="The reference lets it be left out, and clients do; a prompt that says None confuses the model.",
    source=OPENAI_CHAT,
    needs=_NEEDS,
)
async def content_missing(ctx: CheckContext) -> None:
    await _check_same(ctx, await _usual(ctx), _called(), _result())


@check(
    "tools.content_parts",
    "An assistant's text beside its calls is the same as a text and as a part.",
    why="Clients of several vendors write every content as parts.",
    source=OPENAI_CHAT,
    needs=_NEEDS,
)
async def content_parts(ctx: CheckContext) -> None:
    usual = await _usual(ctx, _called(content="Let me look."), _result())
    await _check_same(ctx, usual, _called(content=[{"type": "text", "text": "Let me look."}]), _result())


@check(
    "tools.cut_arguments",
    "A history with a call whose arguments were cut is answered.",
    why="max_tokens leaves such a call in the history; refused, every later turn of the session is lost.",
    source=ISOLATION,
    needs=_NEEDS,
    level=Level.SHOULD,
)
async def cut_arguments(ctx: CheckContext) -> None:
    await _usual(ctx)
    for arguments in ('{"port": "Br', ""):
        (await _ask(ctx, _called(arguments=arguments, content=None), _result("no such port"))).ok()


@check(
    "tools.unpaired",
    "A result without its call, and a call without its result, are answered or a 4xx error.",
    why="Histories are shortened by programs; a 5xx is tried again for ever.",
    source=OPENAI_CHAT,
    needs=_NEEDS,
)
async def unpaired(ctx: CheckContext) -> None:
    await _check_not_broken(ctx, _result())
    await _check_not_broken(ctx, _called(content=None), {"role": "user", "content": "And the wind?"})


@check(
    "tools.repeated_ids",
    "A history in which two calls have the same id is answered or a 4xx error.",
    why="Servers that number calls from 0 in each turn make such histories.",
    source=OPENAI_CHAT,
    needs=_NEEDS,
)
async def repeated_ids(ctx: CheckContext) -> None:
    turn = (_called(content=None), _result())
    await _check_not_broken(ctx, *turn, *turn)


@check(
    "tools.result_parts",
    "All parts of a tool's result are in the prompt.",
    why="Where only the first is, the model answers without having read the rest.",
    source=OPENAI_CHAT,
    needs=_NEEDS,
)
async def result_parts(ctx: CheckContext) -> None:
    await _usual(ctx)
    part = {"type": "text", "text": "at noon"}
    one = (await _ask(ctx, _called(content=None), _result([part]))).ok()
    two = (await _ask(ctx, _called(content=None), _result([part, {"type": "text", "text": _LONG_RESULT}]))).ok()
    if two.usage("prompt_tokens") <= one.usage("prompt_tokens") + 4:
        raise two.fail(
            f"{two.usage('prompt_tokens')} prompt tokens with two parts, {one.usage('prompt_tokens')} with one",
            "both parts in the prompt",
        )


@check(
    "tools.image_result",
    "An image in a tool's result is answered or a 4xx error.",
    why="Screenshots are results of tools; a 5xx is tried again for ever.",
    source=OPENAI_CHAT,
    needs=_NEEDS,
)
async def image_result(ctx: CheckContext) -> None:
    image = {"type": "image_url", "image_url": {"url": _PIXEL}}
    await _check_not_broken(ctx, _called(content=None), _result([{"type": "text", "text": "the mole"}, image]))


@check(
    "tools.empty_result",
    "A tool's result that is an empty text is answered.",
    why="Commands that print nothing have such results.",
    source=OPENAI_CHAT,
    needs=_NEEDS,
)
async def empty_result(ctx: CheckContext) -> None:
    await _usual(ctx)
    (await _ask(ctx, _called(content=None), _result(""))).ok()
