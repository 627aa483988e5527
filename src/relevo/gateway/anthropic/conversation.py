"""Anthropic's messages as the messages that chat templates take.

Owns what becomes of each role and block: `system` in front, results of tools as messages of their own before the text
that came with them, thinking as the reasoning of an answer, turns of one role that follow each other as one turn.
Histories come from anywhere: signatures are not checked. Does not know which result answers which call, nor what one
template takes (`text.chat_messages`). Source: Anthropic API reference, "Messages".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relevo.core.errors import InvalidRequest
from relevo.core.told_values import as_sent
from relevo.gateway.anthropic.blocks import Skipped, checked_blocks, joined_text, lines, text_of
from relevo.policy.routing.affinity import BILLING_PREFIX

_ROLES = ("user", "assistant", "system", "developer")
_NOT_SHOWN = ("redacted_thinking", "fallback")  # of other models; nothing that this one could read
ERROR_PREFIX = "Error: "


def conversation(system: Any, messages: Sequence[Mapping[str, Any]], skipped: Skipped) -> list[dict[str, Any]]:
    """Raises InvalidRequest, naming the place."""
    turns = _Turns(skipped)
    if system:
        turns.add_system(system, "system")
    for index, message in enumerate(messages):
        turns.add(message, f"messages[{index}]")
    return [_with_texts(message) for message in turns.messages]


def is_begun_answer(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last of what `conversation` made is text of an answer that is to be gone on with."""
    last = messages[-1]
    return last["role"] == "assistant" and bool(last.get("content")) and "tool_calls" not in last


class _Turns:
    def __init__(self, skipped: Skipped) -> None:
        self.messages: list[dict[str, Any]] = []
        self._skipped = skipped

    def add(self, message: Mapping[str, Any], place: str) -> None:
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES:
            raise InvalidRequest(
                f"'{place}.role' must be 'user', 'assistant' or 'system', got {as_sent(role)}.", param=f"{place}.role"
            )
        if role == "user":
            self._add_user(content, f"{place}.content")
        elif role == "assistant":
            self._add_answer(content, f"{place}.content")
        else:
            self.add_system(content, f"{place}.content")

    def add_system(self, content: Any, place: str) -> None:
        blocks = [block for block in checked_blocks(content, place) if not _is_nonce(block)]
        text = lines(text_of(block, f"{place}[{i}]", self._skipped) for i, block in enumerate(blocks))
        if text:
            self.messages.append({"role": "system", "content": text})

    def _add_user(self, content: Any, place: str) -> None:
        """Results first: a template shows them right behind their calls."""
        results, texts = list[dict[str, Any]](), list[str]()
        for number, block in enumerate(checked_blocks(content, place)):
            at = f"{place}[{number}]"
            if block["type"] == "tool_result":
                results.append(self._result(block, at))
            else:
                texts.append(text_of(block, at, self._skipped, refuses_images=True))
        self.messages += results
        text = lines(texts)
        if text or not results:
            self._go_on("user", {"content": [text]})

    def _result(self, block: Mapping[str, Any], place: str) -> dict[str, Any]:
        call_id = _text_member(block, "tool_use_id", place)
        text = joined_text(block.get("content"), f"{place}.content", self._skipped)
        if block.get("is_error") is True and not text.lstrip().lower().startswith(("error", "<tool_use_error")):
            text = ERROR_PREFIX + text
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    def _add_answer(self, content: Any, place: str) -> None:
        thoughts, texts, calls = list[str](), list[str](), list[dict[str, Any]]()
        for number, block in enumerate(checked_blocks(content, place)):
            at = f"{place}[{number}]"
            match block["type"]:
                case "thinking":
                    thoughts.append(_text_member(block, "thinking", at))
                case "tool_use":
                    calls.append(_call(block, at))
                case kind if kind in _NOT_SHOWN:
                    self._skipped.note("content", kind)
                case _:
                    texts.append(text_of(block, at, self._skipped))
        members: dict[str, list[Any]] = {"content": texts, "reasoning_content": thoughts, "tool_calls": calls}
        shown = {name: values for name, values in members.items() if any(values)}
        if shown:
            self._go_on("assistant", shown)

    def _go_on(self, role: str, members: Mapping[str, list[Any]]) -> None:
        """Turns of one role that follow each other are one, as the API has it. Texts are joined once, at the end."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role})
        for name, values in members.items():
            self.messages[-1].setdefault(name, []).extend(values)


def _with_texts(message: dict[str, Any]) -> dict[str, Any]:
    """Of a message whose texts are lists."""
    return {
        name: lines(value) if isinstance(value, list) and name != "tool_calls" else value
        for name, value in message.items()
    }


def _call(block: Mapping[str, Any], place: str) -> dict[str, Any]:
    name = _text_member(block, "name", place)
    if not name:
        raise InvalidRequest(f"'{place}.name' must name the tool that was called.", param=f"{place}.name")
    given = block.get("input")
    cut = block.get("partial_json")  # as this server writes a call that was cut
    arguments = cut if isinstance(cut, str) and not given else {} if given is None else given
    call_id = _text_member(block, "id", place)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _text_member(block: Mapping[str, Any], name: str, place: str) -> str:
    """Empty if it is not there. Raises InvalidRequest."""
    value = block.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"'{place}.{name}' must be a string.", param=f"{place}.{name}")
    return value


def _is_nonce(block: Mapping[str, Any]) -> bool:
    """A line for the bill, which some agents put first: it changes with every request, and no cache would ever hit."""
    text = block.get("text")
    return isinstance(text, str) and text.lstrip().startswith(BILLING_PREFIX)
