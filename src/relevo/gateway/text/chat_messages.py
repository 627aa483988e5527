"""Fits chat messages, as clients of any API write them, to what one chat template understands. Pure; the template
itself is not known here, only the `MessageForm` that was found by asking it.

Whatever an earlier turn left in the history (cut arguments, calls without results, results without calls, ids twice) is
rendered and never refused: a refusal would end an agent's session for good. Refused is only what a text model cannot
take, in a message of the user's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from relevo.core.errors import InvalidRequest
from relevo.gateway.text.call_ids import CallIdForm, pair_calls
from relevo.gateway.text.turns import TurnForm, fit_turns

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}  # part type -> the field that holds its text
_THOUGHT_PARTS = ("thinking", "reasoning")
_THOUGHT_NAMES = ("reasoning_content", "reasoning", "thinking")
_UNREADABLE_RESULT = "[The tool returned {kind} here, which this model cannot read: it takes text only.]"
UNREAD_ARGUMENTS = "arguments"  # the key under which arguments stand that are no object


class ContentForm(StrEnum):
    """What a template takes as the `content` of a message."""

    STRING = "string"
    PARTS = "parts"  # a list of {"type": "text", "text": ...}
    EITHER = "either"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageForm:
    """What one template was written for."""

    content: ContentForm = ContentForm.STRING
    asks_for_none: bool = False  # tells an answer without content by `none`, and not by an empty text
    knows_developer: bool = True
    wants_argument_text: bool = False  # arguments of calls as a text of JSON, and not as an object
    thought_names: tuple[str, ...] = ()  # what it calls the reasoning of an answer, of the names that clients use
    call_ids: CallIdForm = CallIdForm.ANY
    turns: TurnForm = field(default_factory=TurnForm)


def fit_messages(messages: Sequence[Mapping[str, Any]], form: MessageForm) -> list[dict[str, Any]]:
    """New messages in the form that the template takes; the given ones stay as they are.

    Keys whose value is None are left out, as templates test for presence; but `content` is always there, empty where a
    client sent none. Arguments of tool calls become objects, as templates write them as JSON. `developer` becomes
    `system` where the template does not know it. Raises InvalidRequest, naming the place, for anything but text.
    """
    if not messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    fitted = [_fit_message(message, form, f"messages[{i}]") for i, message in enumerate(messages)]
    return fit_turns(pair_calls(fitted, form.call_ids), form.turns)


def _fit_message(message: Mapping[str, Any], form: MessageForm, place: str) -> dict[str, Any]:
    fitted = {key: value for key, value in message.items() if value is not None}
    if "role" not in fitted:
        raise InvalidRequest(f"{place} has no role", param=f"{place}.role")
    if fitted["role"] == "developer" and not form.knows_developer:
        fitted["role"] = "system"
    if fitted["role"] == "function":  # OpenAI's older name of a tool's result
        fitted["role"] = "tool"
    is_result, is_answer = fitted["role"] == "tool", fitted["role"] == "assistant"
    if is_answer:
        _fit_thoughts(fitted, form.thought_names)
        fitted["content"] = fitted.get("content", fitted.get("refusal", None if form.asks_for_none else ""))
    content = fitted.setdefault("content", "")
    if content is not None:
        fitted["content"] = _fit_content(content, form.content, f"{place}.content", is_result=is_result)
    calls = _calls_of(fitted, place)
    fitted.pop("function_call", None)
    fitted.pop("tool_calls", None)
    if calls:
        fitted["tool_calls"] = [
            _fit_tool_call(call, form, f"{place}.tool_calls[{number}]") for number, call in enumerate(calls)
        ]
    return fitted


def _fit_thoughts(fitted: dict[str, Any], names: tuple[str, ...]) -> None:
    """Reasoning that comes back goes to the template under the names it reads, whatever a client called it."""
    content, thoughts = fitted.get("content"), [fitted.pop(name, None) for name in _THOUGHT_NAMES]
    found = next((text for text in thoughts if isinstance(text, str) and text), "")
    if isinstance(content, list):
        parts = [part for part in content if _is_thought(part)]
        found = found or "".join(map(_thought_text, parts))
        fitted["content"] = [part for part in content if not _is_thought(part)]
    if found:
        fitted |= dict.fromkeys(names, found)


def _is_thought(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _THOUGHT_PARTS


def _thought_text(part: Mapping[str, Any]) -> str:
    """A text under the type's own name or as `text`, or parts that have one."""
    told = part.get(part["type"]) or part.get("text")
    if isinstance(told, list):
        return "".join(each["text"] for each in told if isinstance(each, Mapping) and isinstance(each.get("text"), str))
    return told if isinstance(told, str) else ""


def _fit_content(content: Any, form: ContentForm, place: str, *, is_result: bool) -> str | list[dict[str, Any]]:
    """Parts that become one string are joined by line ends."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if form is ContentForm.PARTS else content
    if not isinstance(content, list):
        if is_result:  # an object of an agent's own
            return _fit_content(json.dumps(content, ensure_ascii=False), form, place, is_result=True)
        raise InvalidRequest(f"{place} must be a string or a list of parts", param=place)
    texts = [_text_of_part(part, f"{place}[{j}]", is_result=is_result) for j, part in enumerate(content)]
    return "\n".join(texts) if form is ContentForm.STRING else [{"type": "text", "text": text} for text in texts]


def _text_of_part(part: Any, place: str, *, is_result: bool) -> str:
    """What a tool returned besides text is named in its place: the user can do nothing about it."""
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    text = part.get(field) if field is not None else None
    if isinstance(text, str):
        return text
    if is_result:
        return _UNREADABLE_RESULT.format(kind=f"a part of type {kind!r}" if isinstance(kind, str) else "something")
    if field is None:
        raise InvalidRequest(f"{place} is of type {kind!r}, and this model takes text only", param=f"{place}.type")
    raise InvalidRequest(f"{place}.{field} must be a string", param=f"{place}.{field}")


def _calls_of(fitted: Mapping[str, Any], place: str) -> Sequence[Any]:
    calls = fitted.get("tool_calls")
    if calls is None:
        old = fitted.get("function_call")
        return () if old is None else ({"type": "function", "function": old},)
    if not isinstance(calls, list):
        raise InvalidRequest(f"{place}.tool_calls must be a list", param=f"{place}.tool_calls")
    return calls


def _fit_tool_call(call: Any, form: MessageForm, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        place = f"{place}.function.name"
        raise InvalidRequest(f"{place} must be a string that names the called tool", param=place)
    arguments: Any = argument_object(function.get("arguments"))
    if form.wants_argument_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    known = {key: value for key, value in call.items() if value is not None}
    return {**known, "function": {**function, "arguments": arguments}}


def argument_object(given: Any) -> dict[str, Any]:
    """Clients send arguments as a text of JSON. What is no object in there, a text that was cut too, stands whole under
    one key: templates take objects only."""
    arguments = given
    if isinstance(given, str):
        try:
            arguments = json.loads(given) if given.strip() else None
        except (ValueError, RecursionError):
            arguments = given
    if arguments is None:
        return {}
    return dict(arguments) if isinstance(arguments, Mapping) else {UNREAD_ARGUMENTS: arguments}
