"""Tools: what a server accepts reaches the model, and what it forces is a call."""

from __future__ import annotations

import json
from typing import Any

from relevo.check.context import CheckContext
from relevo.check.exchange import Answer
from relevo.check.sources import OPENAI_CHAT, OPENAI_TOOLS
from relevo.check.texts import QUESTION
from relevo.check.words import Need, Skip, check

_UNITS = ("celsius", "fahrenheit")
_PARAMETERS = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": list(_UNITS)}},
    "required": ["unit"],
    "additionalProperties": False,
}
_NAME = "get_temperature"
_FUNCTION = {"name": _NAME, "description": "The temperature of the sea, measured at noon.", "parameters": _PARAMETERS}
_TOOL = {"type": "function", "function": _FUNCTION}
_ASKED = "How warm is the sea?"


@check(
    "tools.reach_the_model",
    "Tools that are accepted are part of the prompt: prompt_tokens grow with them.",
    why="Where they are dropped in silence, an agent waits for a call from a model that was told of no tools.",
    source=OPENAI_TOOLS,
    needs=(Need.CHAT, Need.TOOLS),
)
async def reach_the_model(ctx: CheckContext) -> None:
    plain = (await ctx.chat(_ASKED, max_tokens=1)).ok()
    given = (await ctx.chat(_ASKED, max_tokens=1, tools=[_TOOL])).ok()
    if given.usage("prompt_tokens") <= plain.usage("prompt_tokens"):
        raise given.fail(
            f"{given.usage('prompt_tokens')} prompt tokens with a tool, {plain.usage('prompt_tokens')} without",
            "more prompt tokens, or a 4xx status",
        )


@check(
    "tools.forced",
    "With a function named in tool_choice the message has a call of it, with arguments that fit its schema.",
    why="Programs that force a call read tool_calls[0] without a second look.",
    source=OPENAI_TOOLS,
    needs=(Need.CHAT, Need.FORCED_TOOL),
)
async def forced(ctx: CheckContext) -> None:
    choice = {"type": "function", "function": {"name": _NAME}}
    answer = (await ctx.chat(_ASKED, max_tokens=256, tools=[_TOOL], tool_choice=choice)).ok()
    call = answer.at(dict, "choices", 0, "message", "tool_calls", 0)
    if call.get("type") != "function" or not call.get("id"):
        raise answer.fail(f"the call has type {call.get('type')!r} and id {call.get('id')!r}", "'function' and an id")
    if answer.at(str, "choices", 0, "message", "tool_calls", 0, "function", "name") != _NAME:
        raise answer.fail("another function is called", _NAME)
    _check_arguments(answer)


def _check_arguments(answer: Answer) -> None:
    told = answer.at(str, "choices", 0, "message", "tool_calls", 0, "function", "arguments")
    try:
        value: Any = json.loads(told)
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.get("unit") not in _UNITS or len(value) != 1:
        raise answer.fail(f"arguments are {told!r}", "JSON of the function's schema")


@check(
    "tools.history",
    "A conversation with a tool call, whose content is null, and the tool's result is answered, the result included.",
    why="It is what every agent sends after its first call; without the result the model calls again and again.",
    source=OPENAI_CHAT,
    needs=(Need.CHAT,),
)
async def history(ctx: CheckContext) -> None:
    short = await ctx.chat(messages=_after_a_call("17"), max_tokens=1)
    if short.is_refusal:
        raise Skip(f"tool messages are refused with HTTP {short.status}: {short.error_message}")
    told = "17, measured at noon by the lighthouse keeper with the old thermometer"
    longer = (await ctx.chat(messages=_after_a_call(told), max_tokens=1)).ok()
    if longer.usage("prompt_tokens") <= short.ok().usage("prompt_tokens"):
        raise longer.fail(
            f"{longer.usage('prompt_tokens')} prompt tokens, as many as with a shorter result",
            "the tool's result is part of the prompt",
        )


def _after_a_call(result: str) -> list[dict[str, Any]]:
    call = {"id": "call_1", "type": "function", "function": {"name": _NAME, "arguments": '{"unit": "celsius"}'}}
    return [
        {"role": "user", "content": _ASKED},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": result},
    ]


@check(
    "tools.unknown_choice",
    "A tool_choice that does not exist is a 4xx error.",
    why="Taken for another one, it lets a model call where it was told not to.",
    source=OPENAI_TOOLS,
    needs=(Need.CHAT,),
)
async def unknown_choice(ctx: CheckContext) -> None:
    answer = await ctx.chat(QUESTION, max_tokens=1, tools=[_TOOL], tool_choice="sometimes")
    if not 400 <= answer.status < 500:
        raise answer.fail(f"HTTP {answer.status}: {answer.error_message}", "a 4xx status")
