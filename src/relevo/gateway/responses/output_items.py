"""The items that an answer consists of, put together from its parts: what each begins as, its deltas, what it ends as.

A stream shows the events, a whole answer the items alone; both come from here, so ids, places and texts are the same.
The order of events of an item is `added`, its parts' `added`, `delta`s and `done`, then its own `done`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import orjson

from relevo.gateway.responses.raw_input import RawInput
from relevo.gateway.responses.tools import DeclaredTools, Tool
from relevo.gateway.text.parts import Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart

Event = tuple[str, dict[str, Any]]  # its type without "response.", and its members
Logprobs = Sequence[dict[str, Any]] | orjson.Fragment

COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"


class OpenItem(Protocol):
    """The last item, which may go on. The caller knows its place."""

    id: str

    def takes(self, part: Part) -> bool: ...

    def item(self, status: str) -> dict[str, Any]:
        """As it is now."""
        ...

    def feed(self, part: Part, logprobs: Logprobs) -> list[Event]: ...

    def close(self, *, is_cut: bool) -> tuple[list[Event], str]:
        """Its last events, and its status."""
        ...


class OutputItems:
    """Of one answer. `base`: what its items' ids have in common. `seal`: None: reasoning is not sealed."""

    def __init__(self, base: str, tools: DeclaredTools, seal: Callable[[str], str] | None) -> None:
        self.finished: list[dict[str, Any]] = []
        self._base, self._tools, self._seal = base, tools, seal
        self._open: OpenItem | None = None

    def add(self, part: Part, logprobs: Logprobs = ()) -> list[Event]:
        """`logprobs`: of a text's tokens, if they are asked for."""
        events: list[Event] = []
        if self._open is None or not self._open.takes(part):
            if not _says(part):
                return []
            events += self._close(is_cut=False)
            events += self._begin(part)
        assert self._open is not None, "just begun"
        return events + self._placed(self._open.feed(part, logprobs))

    def end(self, *, is_cut: bool) -> list[Event]:
        """No part follows. An answer of nothing is a message of no text."""
        events: list[Event] = []
        if self._open is None and not self.finished:
            events += self._begin(TextPart(""))
        return events + self._close(is_cut=is_cut)

    def now(self) -> list[dict[str, Any]]:
        """All of them, one that is open as far as it has come."""
        return [*self.finished, *([] if self._open is None else [self._open.item(INCOMPLETE)])]

    @property
    def open_text(self) -> tuple[str, int, int] | None:
        """The id and the places of the text that goes on; None if none does."""
        if not isinstance(self._open, _Message) or self._open.open_kind != "output_text":
            return None
        return self._open.id, len(self.finished), self._open.content_index

    def take_text(self, text: str) -> None:
        """What follows of the open text, for a caller that tells it on its own."""
        assert isinstance(self._open, _Message), "a text is open"
        self._open.grow(text)

    def _begin(self, part: Part) -> list[Event]:
        self._open = self._opened(part, f"{self._base}{len(self.finished):02x}")
        added = ("output_item.added", {"item": self._open.item(IN_PROGRESS)})
        events: list[Event] = [added]
        if isinstance(part, TextPart) and not part.text:  # the answer of nothing
            assert isinstance(self._open, _Message), "of a text"
            events += self._open.open_part("output_text")
        return self._placed(events)

    def _opened(self, part: Part, name: str) -> OpenItem:
        match part:
            case ReasoningPart():
                return _Reasoning(f"rs_{name}", self._seal)
            case ToolCallPart():
                tool = self._tools.called(part.name)
                kind = _CustomCall if tool.is_custom else _FunctionCall
                return kind(f"{'ctc' if tool.is_custom else 'fc'}_{name}", tool, part)
            case _:
                return _Message(f"msg_{name}")

    def _close(self, *, is_cut: bool) -> list[Event]:
        item = self._open
        if item is None:
            return []
        events, status = item.close(is_cut=is_cut)
        done = item.item(status)
        events.append(("output_item.done", {"item": done}))
        placed = self._placed(events)
        self.finished.append(done)
        self._open = None
        return placed

    def _placed(self, events: list[Event]) -> list[Event]:
        assert self._open is not None, "events are of an open item"
        place, item_id = {"output_index": len(self.finished)}, {"item_id": self._open.id}
        return [(name, place | ({} if "item" in members else item_id) | members) for name, members in events]


def _says(part: Part) -> bool:
    return isinstance(part, ToolCallPart) or bool(part.text)


class _Message:
    """Texts and refusals, a content part each."""

    def __init__(self, item_id: str) -> None:
        self.id = item_id
        self.open_kind = ""  # of the part that goes on
        self._parts: list[dict[str, Any]] = []  # finished ones
        self._text: list[str] = []  # of the open part
        self._logprobs: list[bytes] = []

    @property
    def content_index(self) -> int:
        return len(self._parts)

    def takes(self, part: Part) -> bool:
        return isinstance(part, TextPart | RefusalPart)

    def item(self, status: str) -> dict[str, Any]:
        content = [*self._parts, *([self._part()] if self.open_kind and status != IN_PROGRESS else [])]
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    def feed(self, part: Part, logprobs: Logprobs) -> list[Event]:
        assert isinstance(part, TextPart | RefusalPart), "it takes no other"
        kind = "output_text" if isinstance(part, TextPart) else "refusal"
        events: list[Event] = []
        if self.open_kind != kind:
            if not part.text:
                return []
            events += self._close_part() + self.open_part(kind)
        elif not part.text and not logprobs:
            return []
        self.grow(part.text)
        if logprobs:
            self._logprobs.append(orjson.dumps(logprobs)[1:-1])
        shown = {"logprobs": logprobs} if kind == "output_text" else {}
        return [*events, (f"{kind}.delta", {"content_index": self.content_index, "delta": part.text, **shown})]

    def grow(self, text: str) -> None:
        self._text.append(text)

    def open_part(self, kind: str) -> list[Event]:
        self.open_kind = kind
        return [("content_part.added", {"content_index": self.content_index, "part": self._part()})]

    def close(self, *, is_cut: bool) -> tuple[list[Event], str]:
        return self._close_part(), INCOMPLETE if is_cut else COMPLETED

    def _close_part(self) -> list[Event]:
        if not self.open_kind:
            return []
        part, index = self._part(), {"content_index": self.content_index}
        if self.open_kind == "refusal":
            said = {"refusal": part["refusal"]}
        else:
            said = {"text": part["text"], "logprobs": part["logprobs"]}
        done = [(f"{self.open_kind}.done", index | said), ("content_part.done", index | {"part": part})]
        self._parts.append(part)
        self.open_kind, self._text, self._logprobs = "", [], []
        return done

    def _part(self) -> dict[str, Any]:
        text = "".join(self._text)
        if self.open_kind == "refusal":
            return {"type": "refusal", "refusal": text}
        logprobs = orjson.Fragment(b"[" + b",".join(self._logprobs) + b"]") if self._logprobs else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


class _Reasoning:
    def __init__(self, item_id: str, seal: Callable[[str], str] | None) -> None:
        self.id = item_id
        self._seal = seal
        self._text: list[str] = []

    def takes(self, part: Part) -> bool:
        return isinstance(part, ReasoningPart)

    def item(self, status: str) -> dict[str, Any]:
        """Its summary is there and empty: the reasoning itself is shown."""
        text = "".join(self._text)
        content = [{"type": "reasoning_text", "text": text}] if text else []
        sealed = {} if self._seal is None or not text else {"encrypted_content": self._seal(text)}
        return {"id": self.id, "type": "reasoning", "summary": [], "content": content, **sealed, "status": status}

    def feed(self, part: Part, logprobs: Logprobs) -> list[Event]:
        assert isinstance(part, ReasoningPart), "it takes no other"
        if not part.text:
            return []
        events: list[Event] = []
        if not self._text:
            events.append(("content_part.added", {"content_index": 0, "part": {"type": "reasoning_text", "text": ""}}))
        self._text.append(part.text)
        return [*events, ("reasoning_text.delta", {"content_index": 0, "delta": part.text})]

    def close(self, *, is_cut: bool) -> tuple[list[Event], str]:
        text = "".join(self._text)
        part = {"type": "reasoning_text", "text": text}
        done: list[Event] = [
            ("reasoning_text.done", {"content_index": 0, "text": text}),
            ("content_part.done", {"content_index": 0, "part": part}),
        ]
        return done, INCOMPLETE if is_cut else COMPLETED


class _FunctionCall:
    def __init__(self, item_id: str, tool: Tool, first: ToolCallPart) -> None:
        self.id = item_id
        self._tool, self._index, self._call_id = tool, first.index, first.id
        self._arguments: list[str] = []

    def takes(self, part: Part) -> bool:
        return isinstance(part, ToolCallPart) and part.index == self._index

    def item(self, status: str) -> dict[str, Any]:
        tool = self._tool
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "arguments": "".join(self._arguments),
            "call_id": self._call_id,
            "name": tool.name,
            **({"namespace": tool.namespace} if tool.namespace else {}),
        }

    def feed(self, part: Part, logprobs: Logprobs) -> list[Event]:
        assert isinstance(part, ToolCallPart), "it takes no other"
        if not part.arguments:
            return []
        self._arguments.append(part.arguments)
        return [("function_call_arguments.delta", {"delta": part.arguments})]

    def close(self, *, is_cut: bool) -> tuple[list[Event], str]:
        """A call whose arguments were not finished is never shown as if they were, whatever ended the answer."""
        arguments = "".join(self._arguments)
        done: list[Event] = [("function_call_arguments.done", {"arguments": arguments})]
        return done, COMPLETED if _is_json(arguments) else INCOMPLETE


class _CustomCall:
    def __init__(self, item_id: str, tool: Tool, first: ToolCallPart) -> None:
        self.id = item_id
        self._tool, self._index, self._call_id = tool, first.index, first.id
        self._raw = RawInput()
        self._input: list[str] = []

    def takes(self, part: Part) -> bool:
        return isinstance(part, ToolCallPart) and part.index == self._index

    def item(self, status: str) -> dict[str, Any]:
        tool = self._tool
        return {
            "id": self.id,
            "type": "custom_tool_call",
            "status": status,
            "call_id": self._call_id,
            "name": tool.name,
            **({"namespace": tool.namespace} if tool.namespace else {}),
            "input": "".join(self._input),
        }

    def feed(self, part: Part, logprobs: Logprobs) -> list[Event]:
        assert isinstance(part, ToolCallPart), "it takes no other"
        return self._tell(self._raw.feed(part.arguments))

    def close(self, *, is_cut: bool) -> tuple[list[Event], str]:
        told = self._tell(self._raw.flush())
        done: list[Event] = [("custom_tool_call_input.done", {"input": "".join(self._input)})]
        return told + done, COMPLETED if self._raw.is_whole else INCOMPLETE

    def _tell(self, text: str) -> list[Event]:
        if not text:
            return []
        self._input.append(text)
        return [("custom_tool_call_input.delta", {"delta": text})]


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
