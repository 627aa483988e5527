"""Fits OpenAI chat messages to what one chat template understands. Pure; the template itself is not known here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from relevo.core.errors import InvalidRequest

_TEXT_PARTS = {"text": "text", "refusal": "refusal"}  # part type -> the field that holds its text


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


def fit_messages(messages: Sequence[Mapping[str, Any]], form: MessageForm) -> list[dict[str, Any]]:
    """New messages in the form that the template takes; the given ones stay as they are.

    Keys whose value is None are left out, as templates test for presence; but `content` is always there, empty where a
    client sent none. Arguments of tool calls become objects, as templates write them as JSON. `developer` becomes
    `system` where the template does not know it. Raises InvalidRequest, naming the place, for anything but text.
    """
    if not messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    return [_fit_message(message, form, f"messages[{i}]") for i, message in enumerate(messages)]


def _fit_message(message: Mapping[str, Any], form: MessageForm, place: str) -> dict[str, Any]:
    fitted = {key: value for key, value in message.items() if value is not None}
    if "role" not in fitted:
        raise InvalidRequest(f"{place} has no role", param=f"{place}.role")
    if fitted["role"] == "developer" and not form.knows_developer:
        fitted["role"] = "system"
    if "content" in fitted or not (form.asks_for_none and fitted["role"] == "assistant"):
        fitted["content"] = _fit_content(fitted.get("content", ""), form.content, f"{place}.content")
    else:
        fitted["content"] = None
    if "tool_calls" in fitted:
        if not isinstance(fitted["tool_calls"], list):
            raise InvalidRequest(f"{place}.tool_calls must be a list", param=f"{place}.tool_calls")
        calls = enumerate(fitted["tool_calls"])
        fitted["tool_calls"] = [_fit_tool_call(call, f"{place}.tool_calls[{j}]") for j, call in calls]
    return fitted


def _fit_content(content: Any, form: ContentForm, place: str) -> str | list[dict[str, Any]]:
    """Parts that become one string are joined by line ends."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if form is ContentForm.PARTS else content
    if not isinstance(content, list):
        raise InvalidRequest(f"{place} must be a string or a list of parts", param=place)
    texts = [_text_of_part(part, f"{place}[{j}]") for j, part in enumerate(content)]
    return "\n".join(texts) if form is ContentForm.STRING else [{"type": "text", "text": text} for text in texts]


def _text_of_part(part: Any, place: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise InvalidRequest(f"{place} is of type {kind!r}, and this model takes text only", param=f"{place}.type")
    text = part.get(field)
    if not isinstance(text, str):
        raise InvalidRequest(f"{place}.{field} must be a string", param=f"{place}.{field}")
    return text


def _fit_tool_call(call: Any, place: str) -> Any:
    """Clients send arguments as a string of JSON; what is not an object in there stays a string."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        place = f"{place}.function.name"
        raise InvalidRequest(f"{place} must be a string that names the called tool", param=place)
    given = function.get("arguments")
    if given is not None and not isinstance(given, str):
        return call
    try:
        arguments = json.loads(given or "{}")
    except (json.JSONDecodeError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
