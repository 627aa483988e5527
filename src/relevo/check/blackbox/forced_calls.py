"""Forced calls of functions, whole and streamed: their shape, their arguments, and how they end."""

from __future__ import annotations

from typing import Any

from relevo.check.calls import (
    ASKED,
    LONG_PARAMETERS,
    NAME,
    NO_PARAMETERS,
    NUM_CALL_TOKENS,
    OTHER_NAME,
    OTHER_PARAMETERS,
    PARAMETERS,
    calls_of,
    first_call,
    must_fit,
    named,
    tool,
)
from relevo.check.context import CheckContext
from relevo.check.exchange import Answer
from relevo.check.sources import ISOLATION, OPENAI_CHAT, OPENAI_SDK, OPENAI_STREAM, OPENAI_TOOLS
from relevo.check.words import Level, Need, Skip, check

_NAMED = (Need.CHAT, Need.FORCED_TOOL)
_REQUIRED = (Need.CHAT, Need.REQUIRED_TOOL)
_FORCED: dict[str, Any] = {"tools": [tool()], "tool_choice": named(), "max_tokens": NUM_CALL_TOKENS}
_BOTH: dict[str, Any] = {
    "tools": [tool(), tool(OTHER_NAME, OTHER_PARAMETERS)],
    "tool_choice": "required",
    "max_tokens": NUM_CALL_TOKENS,
}
_CUT: dict[str, Any] = {"tools": [tool(NAME, LONG_PARAMETERS)], "tool_choice": named(), "max_tokens": 8}
_NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "stops": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "port": {"type": "string", "enum": ["Brest", "Dover"]},
                    "kind": {"type": ["string", "null"], "enum": ["call", "pass", None]},
                },
                "required": ["port", "kind"],
                "additionalProperties": False,
            },
            "minItems": 1,
            "maxItems": 2,
        },
        "quay": {"type": "integer", "enum": [7, 12]},
    },
    "required": ["stops", "quay"],
    "additionalProperties": False,
}


@check(
    "tools.forced_stream",
    "A forced call that is streamed has id and name in its first delta, and arguments that join to its schema's JSON.",
    why="SDKs put the pieces together and parse them once; a piece that is missing or twice ends the agent's turn.",
    source=OPENAI_STREAM,
    needs=_NAMED,
)
async def forced_stream(ctx: CheckContext) -> None:
    first_call((await ctx.stream_chat(ASKED, **_FORCED)).ok())


@check(
    "tools.named_is_one",
    "With a function named in tool_choice the answer has one call and nothing else.",
    why="Programs that force a function run what they get; further calls are run too.",
    source=OPENAI_TOOLS,
    needs=_NAMED,
)
async def named_is_one(ctx: CheckContext) -> None:
    answer = (await ctx.chat(ASKED, **_FORCED)).ok()
    if len(calls_of(answer)) != 1 or answer.text():
        raise answer.fail(f"{len(calls_of(answer))} calls and the content {answer.text()!r}", "exactly one call")


@check(
    "tools.stream_equals_whole",
    "A call that leaves nothing to choose is the same streamed and whole.",
    why="Programs change between the two without another thought.",
    source=OPENAI_STREAM,
    needs=_NAMED,
)
async def stream_equals_whole(ctx: CheckContext) -> None:
    schema = {**OTHER_PARAMETERS, "properties": {"unit": {"type": "string", "enum": ['a } " </tool_call> [']}}}
    fields = _FORCED | {"tools": [tool(NAME, schema)]}
    for answer in ((await ctx.chat(ASKED, **fields)).ok(), (await ctx.stream_chat(ASKED, **fields)).ok()):
        first_call(answer, schema=schema)


@check(
    "tools.required",
    "With tool_choice required the answer is calls of declared functions, and its finish_reason is tool_calls.",
    why="Agents branch on finish_reason and look the function up by its name.",
    source=OPENAI_TOOLS,
    needs=_REQUIRED,
)
async def required(ctx: CheckContext) -> None:
    _check_required((await ctx.chat(ASKED, **_BOTH)).ok())


@check(
    "tools.required_stream",
    "With tool_choice required a stream is calls of declared functions, and its finish_reason is tool_calls.",
    why="Agents branch on finish_reason; tool_calls without a call, or stop with one, ends their loop.",
    source=OPENAI_TOOLS,
    needs=_REQUIRED,
)
async def required_stream(ctx: CheckContext) -> None:
    _check_required((await ctx.stream_chat(ASKED, **_BOTH)).ok())


def _check_required(answer: Answer) -> None:
    schemas = {NAME: PARAMETERS, OTHER_NAME: OTHER_PARAMETERS}
    calls = calls_of(answer)
    whole = calls[:-1] if answer.finish_reason() == "length" else calls  # a model may call without end
    if not whole:
        raise answer.fail(f"{len(calls)} calls, none of them whole", "a call")
    for call in whole:
        if call.name not in schemas:
            raise answer.fail(f"a call of {call.name!r}", "a declared function")
        must_fit(answer, call.arguments, schemas[call.name])
    if whole == calls and answer.finish_reason() != "tool_calls":
        raise answer.fail(f"finish_reason is {answer.finish_reason()!r}", "'tool_calls'")


@check(
    "tools.required_without_tools",
    "tool_choice required without tools is a 4xx error.",
    why="There is nothing to call; an answer in prose is taken for a call.",
    source=OPENAI_TOOLS,
    needs=(Need.CHAT,),
)
async def required_without_tools(ctx: CheckContext) -> None:
    _check_refused(await ctx.chat(ASKED, max_tokens=1, tool_choice="required"))


@check(
    "tools.unknown_name",
    "A tool_choice that names a function that is not declared is a 4xx error.",
    why="A call of anything else is not what the program forced.",
    source=OPENAI_TOOLS,
    needs=_NAMED,
)
async def unknown_name(ctx: CheckContext) -> None:
    _check_refused(await ctx.chat(ASKED, **_FORCED | {"tool_choice": named("no_such_function")}))


@check(
    "tools.unknown_name_stream",
    "A tool_choice that names a function that is not declared is a 4xx status for a stream too, not an event.",
    why="SDKs raise by status; an error within a stream of status 200 is lost by many of them.",
    source=OPENAI_TOOLS,
    needs=_NAMED,
)
async def unknown_name_stream(ctx: CheckContext) -> None:
    _check_refused(await ctx.stream_chat(ASKED, **_FORCED | {"tool_choice": named("no_such_function")}))


def _check_refused(answer: Answer) -> None:
    if not 400 <= answer.status < 500:
        raise answer.fail(f"HTTP {answer.status}", "a 4xx status")


@check(
    "tools.empty_list",
    "An empty list of tools is as none.",
    why="Agents whose tools are all switched off send it.",
    source=OPENAI_SDK,
    needs=(Need.CHAT,),
    level=Level.SHOULD,
)
async def empty_list(ctx: CheckContext) -> None:
    await _check_as_none(ctx, tools=[])


@check(
    "tools.null",
    "Tools and tool_choice that are null are as none.",
    why="Typed clients send null for what is not set.",
    source=OPENAI_SDK,
    needs=(Need.CHAT,),
    level=Level.SHOULD,
)
async def null(ctx: CheckContext) -> None:
    await _check_as_none(ctx, tools=None, tool_choice=None)


async def _check_as_none(ctx: CheckContext, **fields: Any) -> None:
    plain = (await ctx.chat(ASKED, max_tokens=1)).ok().usage("prompt_tokens")
    answer = (await ctx.chat(ASKED, max_tokens=1, **fields)).ok()
    if answer.usage("prompt_tokens") != plain:
        raise answer.fail(f"{answer.usage('prompt_tokens')} prompt tokens, {plain} without", "the same prompt")


@check(
    "tools.one_at_a_time",
    "With parallel_tool_calls false an answer has one call.",
    why="Tools that change something are called in turn for a reason.",
    source=OPENAI_CHAT,
    needs=_REQUIRED,
)
async def one_at_a_time(ctx: CheckContext) -> None:
    content = "Get the tide of Brest, the tide of Dover and the wind, with a call each, all at once."
    answer = await ctx.chat(content, **_BOTH, parallel_tool_calls=False)
    if answer.is_refusal:
        raise Skip(f"refused with HTTP {answer.status}: {answer.error_message}")
    if len(calls_of(answer.ok())) != 1:
        raise answer.fail(f"{len(calls_of(answer))} calls", "one call")


@check(
    "tools.length",
    "An answer that max_tokens cuts within a call has finish_reason length.",
    why="Told as tool_calls, half of a call is run.",
    source=OPENAI_CHAT,
    needs=_NAMED,
)
async def length(ctx: CheckContext) -> None:
    _check_cut((await ctx.chat(ASKED, **_CUT)).ok())


@check(
    "tools.length_stream",
    "A stream that max_tokens cuts within a call has finish_reason length.",
    why="Told as tool_calls, half of a call is run.",
    source=OPENAI_CHAT,
    needs=_NAMED,
)
async def length_stream(ctx: CheckContext) -> None:
    _check_cut((await ctx.stream_chat(ASKED, **_CUT)).ok())


def _check_cut(answer: Answer) -> None:
    if answer.finish_reason() != "length":
        raise answer.fail(f"finish_reason is {answer.finish_reason()!r}", "'length'")


@check(
    "tools.nested_arguments",
    "Arguments of a strict function fit a nested schema: objects in a list, a list of types, an integer.",
    why="Values of another type, such as a number as text, break the program that was called.",
    source=OPENAI_TOOLS,
    needs=_NAMED,
)
async def nested_arguments(ctx: CheckContext) -> None:
    answer = await ctx.chat(ASKED, **_FORCED | {"tools": [tool(NAME, _NESTED)]})
    if answer.is_refusal:
        raise Skip(f"the schema is refused with HTTP {answer.status}: {answer.error_message}")
    first_call(answer.ok(), schema=_NESTED)


@check(
    "tools.no_arguments",
    "A call of a function without parameters has the arguments {}, streamed and whole.",
    why="Programs parse the arguments; an empty text is no JSON.",
    source=OPENAI_SDK,
    needs=_NAMED,
)
async def no_arguments(ctx: CheckContext) -> None:
    fields = _FORCED | {"tools": [tool(NAME, NO_PARAMETERS)]}
    first_call((await ctx.chat(ASKED, **fields)).ok(), schema=NO_PARAMETERS)
    first_call((await ctx.stream_chat(ASKED, **fields)).ok(), schema=NO_PARAMETERS)


@check(
    "tools.ids_differ",
    "Calls of two answers have different ids.",
    why="Both are in the next request of a conversation, and results are matched with calls by their ids.",
    source=OPENAI_TOOLS,
    needs=_NAMED,
    level=Level.SHOULD,
)
async def ids_differ(ctx: CheckContext) -> None:
    first = first_call((await ctx.chat(ASKED, **_FORCED)).ok())
    answer = (await ctx.chat(ASKED, **_FORCED)).ok()
    if first_call(answer).id == first.id:
        raise answer.fail(f"both calls have the id {first.id!r}", "an id of its own for each call")


@check(
    "tools.odd_schema",
    "Tools that are not strict and whose schemas are odd do not fail a request.",
    why="One of thirty tools of an agent's plugins has an unexpected schema; the others are lost with it.",
    source=ISOLATION,
    needs=(Need.CHAT, Need.TOOLS),
    level=Level.SHOULD,
)
async def odd_schema(ctx: CheckContext) -> None:
    odd: tuple[dict[str, Any], ...] = (
        {"type": "object"},
        {"type": "object", "properties": {"a": {"default": None}, "b": {"type": "string", "format": "path"}}},
        {"type": "object", "properties": {"c": {"type": "string", "pattern": r"\S"}, "d": {"not": {"const": 1}}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"e": True}},
    )
    for number, parameters in enumerate(odd):
        tools = [tool(), {"type": "function", "function": {"name": f"odd_{number}", "parameters": parameters}}]
        (await ctx.chat(ASKED, max_tokens=1, tools=tools)).ok()
