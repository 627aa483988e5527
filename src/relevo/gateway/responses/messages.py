"""Items of a conversation as messages of a chat template.

An answer of the model is several items (reasoning, text, calls) and one message; it ends where something else comes, or
where an item comes that a model writes earlier in an answer. Items that no template can say (searches that ran
elsewhere, foreign sealed reasoning) are left out, and named in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from relevo.core.errors import InvalidRequest
from relevo.gateway.responses.content import message_content, result_content, texts_of
from relevo.gateway.responses.json_text import encoded
from relevo.gateway.responses.sealed import Seal
from relevo.gateway.responses.tools import INPUT, DeclaredTools

MAX_OPENED_CHARS = 8 * 2**20  # arbitrary; as much as a body may have

Item = Mapping[str, Any]
Note = Callable[[Iterable[str]], None]

_RUN_BY_CLIENTS = {  # calls without a declared function: how a model could have written them
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
}
_CALLS = frozenset(("function_call", "custom_tool_call", *_RUN_BY_CLIENTS))
_RESULTS = frozenset((*(f"{kind}_output" for kind in _CALLS), "function_call_output"))


def chat_messages(
    instructions: str | None,
    before: Sequence[Item],
    items: Sequence[Item],
    tools: DeclaredTools,
    seal: Seal,
    note: Note,
) -> list[dict[str, Any]]:
    """`before`: items of earlier responses. Raises InvalidRequest, naming the item."""
    turns = _Turns(tools, seal, note)
    if instructions:
        turns.messages.append({"role": "system", "content": instructions})
    for index, item in enumerate(before):
        turns.add(item, f"previous_response_id: items[{index}]")
    for index, item in enumerate(items):
        turns.add(item, f"input[{index}]")
    return turns.said()


class _Turns:
    def __init__(self, tools: DeclaredTools, seal: Seal, note: Note) -> None:
        self.messages: list[dict[str, Any]] = []
        self._tools, self._seal, self._note = tools, seal, note
        self._names: dict[str, str] = {}  # of the called tools, by the call's id
        self._num_opened_chars = 0  # of sealed reasoning

    def said(self) -> list[dict[str, Any]]:
        for message in self.messages:
            if isinstance(thoughts := message.get("reasoning_content"), list):
                message["reasoning_content"] = "\n".join(thoughts)
        return self.messages

    def add(self, item: Item, place: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        if not isinstance(kind, str):
            raise InvalidRequest(f"'{place}' must have a 'type' or a 'role'.", param=f"{place}.type")
        if kind == "message":
            self._message(item, place)
        elif kind == "reasoning":
            self._reasoning(item, place)
        elif kind in _CALLS:
            self._call(kind, item, place)
        elif kind in _RESULTS:
            self._result(item, place)
        else:
            self._note([f"input.{kind}"])

    def _message(self, item: Item, place: str) -> None:
        role, content = item.get("role"), item.get("content")
        if not isinstance(role, str) or not role:
            raise InvalidRequest(f"'{place}.role' must be a non-empty string.", param=f"{place}.role")
        if role != "assistant":
            self.messages.append({"role": role, "content": message_content(content, f"{place}.content")})
            return
        text = message_content("" if content is None else content, f"{place}.content")
        self._answer("content", "tool_calls")["content"] = text

    def _reasoning(self, item: Item, place: str) -> None:
        text = self._reasoning_text(item, place)
        if text:
            self._answer("content", "tool_calls").setdefault("reasoning_content", []).append(text)

    def _reasoning_text(self, item: Item, place: str) -> str:
        """The reasoning itself, plain or sealed; else the summary that another model made of it."""
        texts, sealed = texts_of(item.get("content")), item.get("encrypted_content")
        if not texts and isinstance(sealed, str):
            texts = self._opened(sealed, f"{place}.encrypted_content")
        return "\n".join(texts or texts_of(item.get("summary")))

    def _opened(self, sealed: str, place: str) -> list[str]:
        """Sealed text is packed, so a short body may hold a long one."""
        opened = self._seal.open(sealed)
        if opened is None:
            self._note(["input.reasoning.encrypted_content"])
            return []
        self._num_opened_chars += len(opened)
        if self._num_opened_chars > MAX_OPENED_CHARS:
            raise InvalidRequest(
                f"Up to '{place}' the sealed reasoning of the conversation has more than {MAX_OPENED_CHARS} "
                "characters; leave out that of earlier turns.",
                param=place,
            )
        return [opened]

    def _call(self, kind: str, item: Item, place: str) -> None:
        call_id = item.get("call_id") or item.get("id")
        if not isinstance(call_id, str):
            raise InvalidRequest(f"'{place}.call_id' must be a string.", param=f"{place}.call_id")
        if kind in _RUN_BY_CLIENTS:
            name, member = _RUN_BY_CLIENTS[kind]
            arguments = encoded(item.get(member) or {}, f"{place}.{member}").decode()
        else:
            name, arguments = self._called(kind, item, place)
        self._names[call_id] = name
        function = {"name": name, "arguments": arguments}
        calls = self._answer().setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})

    def _called(self, kind: str, item: Item, place: str) -> tuple[str, str]:
        """By the name that the model knows it by, and with what."""
        name, namespace = item.get("name"), item.get("namespace")
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"'{place}.name' must be a non-empty string.", param=f"{place}.name")
        shown = self._tools.shown_name(name, namespace if isinstance(namespace, str) else "")
        if kind == "custom_tool_call":
            return shown, orjson.dumps({INPUT: str(item.get("input") or "")}).decode()
        arguments = item.get("arguments")
        if isinstance(arguments, str):
            return shown, arguments
        return shown, "{}" if arguments is None else encoded(arguments, f"{place}.arguments").decode()

    def _result(self, item: Item, place: str) -> None:
        call_id = item.get("call_id") or item.get("id")
        if not isinstance(call_id, str):
            raise InvalidRequest(f"'{place}.call_id' must be a string.", param=f"{place}.call_id")
        message = {"role": "tool", "tool_call_id": call_id}
        if name := self._names.get(call_id):
            message["name"] = name
        self.messages.append({**message, "content": result_content(item.get("output"), f"{place}.output")})

    def _answer(self, *later: str) -> dict[str, Any]:
        """The message that is being written, a new one if it has what comes later in one."""
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant" or any(last.get(name) is not None for name in later):
            last = {"role": "assistant", "content": None}
            self.messages.append(last)
        return last
