"""Structured output of chats: answers held to a schema, whole, streamed, several at once, cut, stopped."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from relevo.check.calls import LONG_PARAMETERS, LONG_WORDS, calls_of, must_fit, tool
from relevo.check.context import CheckContext
from relevo.check.exchange import Answer
from relevo.check.schema_fit import Schema
from relevo.check.sources import ISOLATION, OPENAI_CHAT, OPENAI_STRUCTURED, VLLM
from relevo.check.words import Level, Need, Skip, check

_NEEDS = (Need.CHAT, Need.JSON_SCHEMA)
_ASKED = "Describe a ship, as JSON."
_NUM_TOKENS = 256  # more than any whole answer here needs
_MOST_BLANKS = 32  # in a row, outside of texts; arbitrary: an indented answer of few levels has less
_SHIP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["sloop", "ketch", "yawl"]},
        "sails": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "enum": ["jib", "main"]},
                    "set": {"type": "boolean"},
                },
                "required": ["name", "set"],
                "additionalProperties": False,
            },
            "minItems": 1,
            "maxItems": 2,
        },
        "crew": {"type": "integer", "enum": [1, 2, 3]},
        "port": {"type": ["string", "null"], "enum": ["Brest", None]},
    },
    "required": ["kind", "sails", "crew", "port"],
    "additionalProperties": False,
}


def _of(schema: Schema) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "ship", "strict": True, "schema": schema}}


def _one(member: Schema) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": member}, "required": ["a"], "additionalProperties": False}


async def _answer(ctx: CheckContext, schema: Schema, **fields: Any) -> Answer:
    return (await ctx.chat(_ASKED, **{"response_format": _of(schema), "max_tokens": _NUM_TOKENS} | fields)).ok()


async def _check_held_or_refused(ctx: CheckContext, schema: Schema) -> None:
    answer = await ctx.chat(_ASKED, response_format=_of(schema), max_tokens=_NUM_TOKENS)
    if answer.is_refusal:
        raise Skip(f"the schema is refused with HTTP {answer.status}: {answer.error_message}")
    must_fit(answer.ok(), answer.text(), schema, "content")


@check(
    "structured.fits",
    "An answer under a strict schema with objects in a list, integers, booleans and null is of that schema, and stops.",
    why="Programs parse it into types without a second look.",
    source=OPENAI_STRUCTURED,
    needs=_NEEDS,
)
async def fits_schema(ctx: CheckContext) -> None:
    answer = await _answer(ctx, _SHIP)
    must_fit(answer, answer.text(), _SHIP, "content")
    if answer.finish_reason() != "stop":
        raise answer.fail(f"finish_reason is {answer.finish_reason()!r}", "'stop'")


@check(
    "structured.stream",
    "A stream under a strict schema joins to a value of that schema, and stops.",
    why="Programs that show an answer as it grows parse it as the others do.",
    source=OPENAI_STRUCTURED,
    needs=_NEEDS,
)
async def stream(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat(_ASKED, response_format=_of(_SHIP), max_tokens=_NUM_TOKENS)).ok()
    must_fit(answer, answer.text(), _SHIP, "content")
    if answer.finish_reason() != "stop":
        raise answer.fail(f"finish_reason is {answer.finish_reason()!r}", "'stop'")


@check(
    "structured.choices",
    "Each of several choices under a strict schema is of that schema.",
    why="State that is shared among them holds one and spoils the others.",
    source=OPENAI_STRUCTURED,
    needs=(*_NEEDS, Need.CHOICES),
)
async def choices(ctx: CheckContext) -> None:
    answer = await _answer(ctx, _SHIP, n=3, temperature=1)
    for index in range(answer.num_choices):
        must_fit(answer, answer.text(index), _SHIP, f"content of choice {index}")


@check(
    "structured.pattern",
    "A text under a pattern matches it.",
    why="A pattern that is taken and not held is found by the customer's database.",
    source=OPENAI_STRUCTURED,
    needs=_NEEDS,
)
async def pattern(ctx: CheckContext) -> None:
    await _check_held_or_refused(ctx, _one({"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2}$"}))


@check(
    "structured.range",
    "An integer under minimum and maximum is between them.",
    why="Limits that are taken and not held are found by the program that relies on them.",
    source=OPENAI_STRUCTURED,
    needs=_NEEDS,
)
async def number_range(ctx: CheckContext) -> None:
    await _check_held_or_refused(ctx, _one({"type": "integer", "minimum": 95, "maximum": 104}))


@check(
    "structured.references",
    "A schema that refers to its own definitions, itself among them, is held.",
    why="Generators of schemas write every nested type as a reference.",
    source=OPENAI_STRUCTURED,
    needs=_NEEDS,
)
async def references(ctx: CheckContext) -> None:
    leaf = {
        "type": "object",
        "properties": {"end": {"type": "boolean"}},
        "required": ["end"],
        "additionalProperties": False,
    }
    knot = _one({"anyOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/knot"}]})
    schema = {**_one({"$ref": "#/$defs/leaf"}), "$defs": {"leaf": leaf, "knot": knot}}
    schema["properties"] = {"a": {"$ref": "#/$defs/leaf"}, "b": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]}}
    await _check_held_or_refused(ctx, schema | {"required": ["a", "b"]})


@check(
    "structured.unusual_texts",
    "Values with quotes, backslashes, line ends, other scripts and emoji come back exactly, streamed and whole.",
    why="Characters that are cut between tokens, or escaped twice, spoil a value that looks right.",
    source=OPENAI_STRUCTURED,
    needs=_NEEDS,
)
async def unusual_texts(ctx: CheckContext) -> None:
    schema = _one({"type": "string", "enum": ['a "b" \\ c\nd é 日本 🚀']})
    answer = await _answer(ctx, schema)
    must_fit(answer, answer.text(), schema, "content")
    streamed = (await ctx.stream_chat(_ASKED, response_format=_of(schema), max_tokens=_NUM_TOKENS)).ok()
    must_fit(streamed, streamed.text(), schema, "content")


@check(
    "structured.order",
    "Members come in the order of the schema.",
    why="A schema that asks for reasons before the verdict is written so for a purpose.",
    source=OPENAI_STRUCTURED,
    needs=_NEEDS,
    level=Level.SHOULD,
)
async def order(ctx: CheckContext) -> None:
    names = ["why", "verdict", "also"]
    members = {name: {"type": "boolean"} for name in names}
    schema = {"type": "object", "properties": members, "required": names, "additionalProperties": False}
    answer = await _answer(ctx, schema)
    told = list(must_fit(answer, answer.text(), schema, "content"))
    if told != names:
        raise answer.fail(f"members come as {told}", str(names))


@check(
    "structured.length",
    "An answer under a schema that max_tokens cuts has finish_reason length.",
    why="Told as stop, half of a value is parsed.",
    source=OPENAI_STRUCTURED,
    needs=_NEEDS,
)
async def length(ctx: CheckContext) -> None:
    answer = await _answer(ctx, LONG_PARAMETERS, max_tokens=8)
    if answer.finish_reason() != "length" or answer.usage("completion_tokens") > 8:
        raise answer.fail(
            f"finish_reason {answer.finish_reason()!r} after {answer.usage('completion_tokens')} tokens",
            "'length' after 8",
        )


@check(
    "structured.stop_string",
    "A stop string ends an answer under a schema too, and is not in it.",
    why="The two are independent of each other in the reference.",
    source=OPENAI_CHAT,
    needs=_NEEDS,
)
async def stop_string(ctx: CheckContext) -> None:
    answer = await _answer(ctx, LONG_PARAMETERS, stop=["low water"])
    begun = answer.text().partition("high")[2]
    if answer.finish_reason() != "stop" or not LONG_WORDS.partition("low water")[0].endswith(begun) or not begun:
        raise answer.fail(
            f"finish_reason {answer.finish_reason()!r}, content {answer.text()!r}", "an end before 'low water'"
        )


@check(
    "structured.held_or_refused",
    "A keyword that a server cannot hold is a 4xx error, or the answer is of the schema all the same.",
    why="Ignored in silence, a wrong answer passes for a checked one.",
    source=OPENAI_STRUCTURED,
    needs=_NEEDS,
)
async def held_or_refused(ctx: CheckContext) -> None:
    items = {"type": "string", "enum": ["jib", "main", "mizzen"]}
    unique = _one({"type": "array", "items": items, "minItems": 3, "maxItems": 3, "uniqueItems": True})
    answer = await ctx.chat(_ASKED, response_format=_of(unique), max_tokens=_NUM_TOKENS)
    if not 400 <= answer.status < 500:
        must_fit(answer.ok(), answer.text(), unique, "content")


@check(
    "structured.no_schema",
    "What is no schema at all is a 4xx error.",
    why="A 5xx is tried again for ever, and an answer held to nothing passes for a checked one.",
    source=OPENAI_STRUCTURED,
    needs=_NEEDS,
)
async def no_schema(ctx: CheckContext) -> None:
    answer = await ctx.chat(_ASKED, response_format=_of(_one({"type": "no_such_type"})), max_tokens=8)
    if not 400 <= answer.status < 500:
        raise answer.fail(f"HTTP {answer.status}", "a 4xx status")


@check(
    "structured.few_blanks",
    "An answer under a schema has no long runs of blanks between its values.",
    why="A model with nothing else to say writes blanks to the limit, and the customer pays for them.",
    source=VLLM,
    needs=_NEEDS,
    level=Level.SHOULD,
)
async def few_blanks(ctx: CheckContext) -> None:
    for seed in range(3):
        answer = await _answer(ctx, _SHIP, temperature=1.5, seed=seed)
        if runs := re.findall(rf"\s{{{_MOST_BLANKS},}}", answer.text()):
            raise answer.fail(f"{len(runs[0])} blanks in a row", f"fewer than {_MOST_BLANKS}")


@check(
    "structured.json_object_stream",
    "A stream under json_object joins to a JSON object, unless max_tokens cut it.",
    why="Programs parse what was joined.",
    source=OPENAI_CHAT,
    needs=(Need.CHAT, Need.JSON_OBJECT),
)
async def json_object_stream(ctx: CheckContext) -> None:
    wanted = {"type": "json_object"}
    answer = (await ctx.stream_chat("Name a colour, as JSON.", response_format=wanted, max_tokens=_NUM_TOKENS)).ok()
    if answer.finish_reason() == "length":
        ctx.notes.append("cut by max_tokens, which small models do not avoid")
        if not answer.text().lstrip().startswith("{"):
            raise answer.fail("the text does not begin as an object", "a JSON object")
        return
    must_fit(answer, answer.text(), {"type": "object"}, "content")


@check(
    "structured.with_tools",
    "Where tools may be called and a schema holds the answer, it has a call or is of the schema.",
    why="Agent frameworks send both on every turn; either of them dropped in silence ends the turn wrongly.",
    source=OPENAI_STRUCTURED,
    needs=(*_NEEDS, Need.TOOLS),
)
async def with_tools(ctx: CheckContext) -> None:
    fields = {"tools": [tool()], "response_format": _of(_SHIP), "max_tokens": _NUM_TOKENS}
    answer = await ctx.chat("Is it a sloop?", **fields)
    if answer.is_refusal:
        raise Skip(f"both together are refused with HTTP {answer.status}: {answer.error_message}")
    if calls_of(answer.ok()):
        return
    if answer.finish_reason() != "length":
        must_fit(answer, answer.text(), _SHIP, "content")
    elif not answer.text().lstrip().startswith("{"):
        raise answer.fail(f"content begins as {answer.text()[:40]!r}", "a call, or an object of the schema")


@check(
    "structured.choice",
    "Under structured_outputs with a choice the answer is one of the texts.",
    why="Classifiers compare it with their labels.",
    source=VLLM,
    needs=(Need.CHAT, Need.STRUCTURED_OUTPUTS),
    level=Level.SHOULD,
)
async def choice(ctx: CheckContext) -> None:
    labels = ["ebb tide", "slack water"]
    answer = (await ctx.chat("How is the tide?", structured_outputs={"choice": labels}, max_tokens=32)).ok()
    if answer.text() not in labels:
        raise answer.fail(f"content is {answer.text()!r}", f"one of {labels}")


@check(
    "structured.regex",
    "Under structured_outputs with a regular expression the answer as a whole matches it.",
    why="Programs read it with the same expression.",
    source=VLLM,
    needs=(Need.CHAT, Need.STRUCTURED_OUTPUTS),
    level=Level.SHOULD,
)
async def regex(ctx: CheckContext) -> None:
    expression = "[A-Z]{2}-[0-9]{3}"
    answer = (await ctx.chat("Name a berth.", structured_outputs={"regex": expression}, max_tokens=32)).ok()
    if not re.fullmatch(expression, answer.text()):
        raise answer.fail(f"content is {answer.text()!r}", f"a text that matches {expression}")


@check(
    "structured.request_alone",
    "A request beside others that are held to schemas is answered as when alone.",
    why="State of a grammar that reaches a neighbour spoils answers of clients that asked for no schema.",
    source=ISOLATION,
    needs=_NEEDS,
)
async def request_alone(ctx: CheckContext) -> None:
    alone = (await ctx.chat(**ctx.logprob_fields("/v1/chat/completions"))).ok()
    held = [asyncio.create_task(_answer(ctx, _SHIP)) for _ in range(3)]
    try:
        for _ in range(3):  # the held ones have begun by the last
            ctx.same_text((await ctx.ask_again(alone)).ok(), alone, "beside held answers and alone")
    finally:
        answers = await asyncio.gather(*held, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        must_fit(answer, answer.text(), _SHIP, "content")
