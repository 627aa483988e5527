"""Calls of functions as chats tell them: tools that determine what a forced call says, and the calls of an answer.

Owns no check. Tools are strict and leave little to say, so that small and odd models write right calls too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relevo.check.exchange import Answer, StreamAnswer, parse_json, shortened
from relevo.check.schema_fit import Schema, fits

NAME = "get_tide"
ASKED = "When is high tide in Brest?"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"port": {"type": "string", "enum": ["Brest", "Dover"]}, "rising": {"type": "boolean"}},
    "required": ["port", "rising"],
    "additionalProperties": False,
}
OTHER_NAME = "get_wind"
OTHER_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["knots", "beaufort"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
LONG_WORDS = " ".join(
    f"{tide} water at {port}" for tide in ("high", "low", "slack") for port in ("Brest", "Dover", "Cork")
)
LONG_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"note": {"type": "string", "enum": [LONG_WORDS]}},
    "required": ["note"],
    "additionalProperties": False,
}
NUM_CALL_TOKENS = 256  # enough for every call that is not to be cut


def function(name: str = NAME, parameters: Schema = PARAMETERS) -> dict[str, Any]:
    return {"name": name, "description": f"Tells what {name} says.", "parameters": parameters, "strict": True}


def tool(name: str = NAME, parameters: Schema = PARAMETERS) -> dict[str, Any]:
    return {"type": "function", "function": function(name, parameters)}


def named(name: str = NAME) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@dataclass(slots=True)
class ToldCall:
    id: str = ""
    name: str = ""
    arguments: str = ""


def calls_of(answer: Answer, index: int = 0) -> list[ToldCall]:
    """The calls of one choice; of a stream, joined as SDKs do: texts of the same call are put together."""
    if isinstance(answer, StreamAnswer):
        return _joined(answer, index)
    told = answer.at(dict, "choices", index, "message").get("tool_calls") or []
    calls = []
    for one in answer.typed(told, list, "tool_calls"):
        call = answer.typed(one, dict, "tool_calls[]")
        if call.get("type") != "function":
            raise answer.fail(f"a call's type is {call.get('type')!r}", "'function'")
        within = answer.typed(call.get("function"), dict, "function")
        calls.append(
            ToldCall(
                answer.typed(call.get("id"), str, "tool_calls[].id"),
                answer.typed(within.get("name"), str, "function.name"),
                answer.typed(within.get("arguments"), str, "function.arguments"),
            )
        )
    return calls


def _joined(answer: StreamAnswer, index: int) -> list[ToldCall]:
    calls: list[ToldCall] = []
    for delta in answer.deltas(index):
        for one in answer.typed(delta.get("tool_calls") or [], list, "delta.tool_calls"):
            piece = answer.typed(one, dict, "delta.tool_calls[]")
            place = answer.typed(piece.get("index"), int, "delta.tool_calls[].index")
            within = answer.typed(piece.get("function") or {}, dict, "delta.tool_calls[].function")
            if place == len(calls):
                _must_begin(answer, piece, within)
                calls.append(ToldCall())
            elif place > len(calls):
                raise answer.fail(
                    f"a delta is of call {place} before call {len(calls)} began", "indices in order from 0"
                )
            call = calls[place]
            call.id += answer.typed(piece.get("id") or "", str, "delta.tool_calls[].id")
            call.name += answer.typed(within.get("name") or "", str, "function.name")
            call.arguments += answer.typed(within.get("arguments") or "", str, "function.arguments")
    return calls


def _must_begin(answer: StreamAnswer, piece: dict[str, Any], within: dict[str, Any]) -> None:
    if not piece.get("id") or not within.get("name"):
        raise answer.fail(
            f"the first delta of a call has id {piece.get('id')!r} and name {within.get('name')!r}",
            "id and name in the first delta of each call",
        )


def must_fit(answer: Answer, text: str, schema: Schema, what: str = "arguments") -> Any:
    """The JSON value of `text`. Raises Mismatch unless it is of the schema."""
    try:
        value = parse_json(text)
    except ValueError:
        raise answer.fail(f"{what} are no JSON: {shortened(text, 200)!r}", "JSON of the schema") from None
    if not fits(value, schema):
        raise answer.fail(f"{what} are {shortened(text, 200)!r}", "a value of the schema")
    return value


def first_call(answer: Answer, name: str = NAME, schema: Schema = PARAMETERS) -> ToldCall:
    """The first call of an answer. Raises Mismatch unless it is of that function, with arguments of the schema."""
    calls = calls_of(answer)
    if not calls:
        raise answer.fail("no call", f"a call of {name}")
    if calls[0].name != name:
        raise answer.fail(f"a call of {calls[0].name!r}", name)
    must_fit(answer, calls[0].arguments, schema)
    return calls[0]
