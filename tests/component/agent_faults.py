"""For every check of tools, structured output and reasoning a server with exactly the fault it is there to find."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fault_edits import chunks, request, retext, status, whole
from scripted_answers import Call, Reply
from scripted_openai import Fault


def _body(call: Call) -> dict[str, Any]:
    return call.body if isinstance(call.body, dict) else {}


def _has(*words: bytes) -> Callable[[Call], bool]:
    """Whether the body as it came has all of these words, blanks left out."""
    return lambda call: all(word in call.raw for word in words)


def _streamed_calls(edit: Callable[[list[dict[str, Any]]], Any]) -> Fault:
    """Edits the deltas of calls."""

    def apply(found: list[Any]) -> None:
        edit([c["delta"]["tool_calls"][0] for one in found for c in one["choices"] if "tool_calls" in c["delta"]])

    return chunks(apply)


def _name_twice(deltas: list[dict[str, Any]]) -> None:
    for delta in deltas:
        delta["function"]["name"] = "get_tide"


def _arguments(change: Callable[[str], str]) -> Fault:
    def edit(body: dict[str, Any]) -> None:
        for call in body["choices"][0].get("message", {}).get("tool_calls", ()):
            call["function"]["arguments"] = change(call["function"]["arguments"])

    return whole(edit)


def _finish(reason: str, when: Callable[[Any], Any] = bool) -> Fault:
    return whole(lambda body: body["choices"][0].update(finish_reason=reason), when=when)


def _finish_stream(reason: str) -> Fault:
    def edit(found: list[Any]) -> None:
        found[-1]["choices"][0]["finish_reason"] = reason

    return chunks(edit)


def _held(change: Callable[[str], str], index: int = 0) -> Fault:
    """Another text where an answer is held."""
    return whole(retext(change, index), when=lambda body: "response_format" in body or "structured_outputs" in body)


def _value(change: Callable[[Any], Any]) -> Fault:
    return _held(lambda text: json.dumps(change(json.loads(text))))


def _stream_text(text: str) -> Fault:
    def edit(found: list[Any]) -> None:
        for one in found:
            for choice in one["choices"]:
                if choice["delta"].get("content"):
                    choice["delta"]["content"] = text

    return chunks(edit, when=lambda body: "response_format" in body)


def _drop_missing(body: dict[str, Any]) -> None:
    body["messages"] = [one for one in body.get("messages", ()) if "content" in one]


def _parts_as_lists(body: dict[str, Any]) -> None:
    for one in body.get("messages", ()):
        if isinstance(one.get("content"), list):
            one["content"] = str(one["content"])


def _first_part(body: dict[str, Any]) -> None:
    for one in body.get("messages", ()):
        if isinstance(one.get("content"), list):
            one["content"] = one["content"][:1]


def _same_id(body: dict[str, Any]) -> None:
    for call in body["choices"][0]["message"].get("tool_calls", ()):
        call["id"] = "call_0"


def _second_call(body: dict[str, Any]) -> None:
    calls = body["choices"][0]["message"].get("tool_calls")
    if calls:
        calls.append(calls[0])


def _reasoning_as_content(found: list[Any]) -> None:
    for one in found:
        for choice in one["choices"]:
            if told := choice["delta"].pop("reasoning_content", None):
                choice["delta"]["content"] = f"<think>{told}</think>"


def _wrong_beside_held() -> Fault:
    """Once an answer was held, others have its mask too."""
    held: list[bool] = []

    def edit(call: Call, answer: Reply) -> None:
        if "response_format" in _body(call):
            held.append(True)
        elif held and answer.status == 200 and "choices" in (answer.body or {}):
            answer.body["choices"][0]["logprobs"] = None
            retext(lambda text: "{" + text)(answer.body)

    return Fault(reply=edit)


AGENT_FAULTS: dict[str, Fault] = {
    "tools.forced_stream": _streamed_calls(_name_twice),
    "tools.named_is_one": whole(_second_call),
    "tools.stream_equals_whole": _arguments(lambda text: text.partition("</tool_call>")[0]),
    "tools.required": _finish("stop"),
    "tools.required_stream": _finish_stream("stop"),
    "tools.required_without_tools": request(
        lambda body: body.pop("tool_choice", None) if not body.get("tools") else None
    ),
    "tools.unknown_name": request(
        lambda body: body.pop("tool_choice", None) if "no_such_function" in json.dumps(body) else None
    ),
    "tools.unknown_name_stream": status(_has(b"no_such_function", b'"stream":true')),
    "tools.empty_list": status(lambda call: _body(call).get("tools") == [], 400),
    "tools.null": status(lambda call: b'"tools":null' in call.raw, 400),
    "tools.one_at_a_time": request(lambda body: body.pop("parallel_tool_calls", None)),
    "tools.length": _finish("tool_calls"),
    "tools.length_stream": _finish_stream("tool_calls"),
    "tools.nested_arguments": _arguments(lambda text: text.replace("7", '"7"')),
    "tools.no_arguments": _arguments(lambda text: "" if text == "{}" else text),
    "tools.ids_differ": whole(_same_id),
    "tools.odd_schema": status(_has(b'"not":'), 400),
    "tools.content_missing": request(_drop_missing),
    "tools.content_parts": request(_parts_as_lists),
    "tools.cut_arguments": status(_has(b'"arguments":""'), 500),
    "tools.unpaired": status(lambda call: len(_body(call).get("messages", ())) == 2 and b'"tool"' in call.raw, 500),
    "tools.repeated_ids": status(lambda call: len(_body(call).get("messages", ())) == 5, 500),
    "tools.result_parts": request(_first_part),
    "tools.image_result": status(_has(b"image_url"), 500),
    "tools.empty_result": status(_has(b'"tool_call_id":"call_1","content":""'), 400),
    "structured.fits": _value(lambda value: value | {"crew": "1"}),
    "structured.stream": _stream_text("x"),
    "structured.choices": _held(lambda text: "a ship", 2),
    "structured.pattern": _value(lambda value: {"a": "aaa-00"}),
    "structured.range": _value(lambda value: {"a": 105}),
    "structured.references": _value(lambda value: value | {"b": 1}),
    "structured.unusual_texts": _held(lambda text: text.replace("🚀", "\ufffd")),
    "structured.order": _value(lambda value: dict(sorted(value.items()))),
    "structured.length": _finish("stop"),
    "structured.stop_string": request(lambda body: body.pop("stop", None)),
    "structured.held_or_refused": _value(lambda value: {"a": 3 * ["jib"]}),
    "structured.no_schema": status(_has(b"no_such_type")),
    "structured.few_blanks": _held(lambda text: 99 * " " + text),
    "structured.json_object_stream": _stream_text("x"),
    "structured.with_tools": request(lambda body: body.pop("response_format", None) if "tools" in body else None),
    "structured.choice": _held(lambda text: "Ebb."),
    "structured.regex": _held(lambda text: text + "0"),
    "structured.request_alone": _wrong_beside_held(),
    "reasoning.stream": chunks(_reasoning_as_content),
    "reasoning.tokens": whole(
        lambda body: body["usage"].get("completion_tokens_details", {}).update(reasoning_tokens=10_000)
    ),
    "reasoning.history": status(_has(b'"reasoning":"The'), 400),
}
