"""What a scripted OpenAI-compatible server says: its words, which requests are wrong, and the JSON of its answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scripted_held import why_no_call

MODEL = "scripted"


@dataclass
class Call:
    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    body: Any = None


@dataclass
class Reply:
    body: Any = None  # JSON; bytes are sent as they are
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[Any] | None = None  # of a stream; bytes are sent as they are
    num_done: int = 1
    cut: bool = False  # the connection breaks instead of ending
    burst: bool = False  # all chunks at the end
    num_held: int = 0  # tokens in the KV cache meanwhile


@dataclass
class Generation:
    tokens: list[str] = field(default_factory=list)
    tops: list[list[tuple[str, float]]] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    full: str = ""
    text: str = ""  # up to a stop string
    finish_reason: str = "length"
    reasoning: str = ""
    calls: list[tuple[str, str, list[str]]] = field(default_factory=list)  # id, name, pieces of the arguments


def error(status: int, message: str, code: str | None = None) -> Reply:
    return Reply({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}, status)


def said(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
    return calls + (content if isinstance(content, str) else "".join(part["text"] for part in content))


def why_wrong(call: Call) -> Reply | None:
    body = call.body
    if body.get("model") != MODEL:
        return error(404, "no such model")
    rules: list[tuple[str, Callable[[Any], bool]]] = [
        ("temperature", lambda value: isinstance(value, int | float) and value >= 0),
        ("max_tokens", lambda value: isinstance(value, int) and value > 0),
        ("n", lambda value: isinstance(value, int) and 1 <= value <= 128),
        ("top_logprobs", lambda value: 0 <= value <= 20),
        ("stop", lambda value: isinstance(value, str) or len(value) <= 64),
        ("tool_choice", lambda value: isinstance(value, dict) or value in ("none", "auto", "required")),
        ("response_format", lambda value: value["type"] in ("text", "json_object", "json_schema")),
    ]
    if any(isinstance(value, int) and value > 2**63 for value in body.values()):
        return error(400, "a number is too large")
    for name, is_right in rules:
        if body.get(name) is not None and not is_right(body[name]):
            return error(400, f"{name} is wrong")
    if (wrong := why_no_call(body)) is not None:
        return error(400, wrong)
    if "chat" not in call.path:
        return None if body.get("prompt") else error(400, "no prompt")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return error(400, "messages is wrong")
    for message in messages:
        if not message.get("role") or not (isinstance(message.get("content"), str | list) or "tool_calls" in message):
            return error(400, "a message is wrong")
        if isinstance(message.get("content"), list) and any(part["type"] != "text" for part in message["content"]):
            return error(400, "only text")
        if any(0xD800 <= ord(letter) < 0xE000 for letter in said(message)):
            return error(400, "half a surrogate pair")
    return None


def common(a: list[str], b: list[str]) -> int:
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def whole_choice(index: int, one: Generation, body: dict[str, Any], chat: bool, echo: str) -> dict[str, Any]:
    logprobs = told_logprobs(one, body, chat, 0, len(one.tokens), 0)
    choice = {"index": index, "finish_reason": one.finish_reason, "logprobs": logprobs}
    if chat:
        message: dict[str, Any] = {"role": "assistant", "content": one.text, "refusal": None}
        if one.calls:
            message |= {"content": None, "tool_calls": [told_call(*called) for called in one.calls]}
        if one.reasoning:
            message["reasoning_content"] = one.reasoning
        return choice | {"message": message}
    return choice | {"text": echo + one.text}


def told_call(id: str, name: str, arguments: list[str]) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": "".join(arguments)}}


def told_logprobs(one: Generation, body: dict[str, Any], chat: bool, start: int, end: int, offset: int) -> Any:
    asked = body.get("logprobs")
    if asked is None or asked is False:
        return None
    rows = list(zip(one.tokens, one.logprobs, one.tops, strict=True))[start:end]
    if chat:
        entry = lambda token, value: {"token": token, "logprob": value, "bytes": list(token.encode())}  # noqa: E731
        num_top = body.get("top_logprobs") or 0
        content = [
            entry(token, value) | {"top_logprobs": [entry(*t) for t in top[:num_top]]} for token, value, top in rows
        ]
        return {"content": content}
    offsets = []
    for token, _, _ in rows:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": [token for token, _, _ in rows],
        "token_logprobs": [value for _, value, _ in rows],
        "top_logprobs": [dict(top[:asked]) for _, _, top in rows],
        "text_offset": offsets,
    }


def stream_chunks(
    envelope: dict[str, Any], made: list[Generation], body: dict[str, Any], chat: bool, usage: Any
) -> list[dict[str, Any]]:
    def chunk(index: int, **choice: Any) -> dict[str, Any]:
        return {**envelope, "choices": [{"index": index, "finish_reason": None, "logprobs": None, **choice}]}

    text = (lambda piece: {"delta": {"content": piece}}) if chat else (lambda piece: {"text": piece})
    chunks = [chunk(i, delta={"role": "assistant", "content": ""}) for i in range(len(made))] if chat else []
    for index, one in enumerate(made):
        if one.calls:
            chunks += [chunk(index, delta={"tool_calls": [delta]}) for delta in call_deltas(one)]
            continue
        if one.reasoning:
            chunks.append(chunk(index, delta={"reasoning_content": one.reasoning}))
        shown = 0
        for number, token in enumerate(one.tokens):
            piece = one.text[shown : shown + len(token)]
            logprobs = told_logprobs(one, body, chat, number, number + 1, shown)
            shown += len(token)
            chunks.append(chunk(index, **text(piece), logprobs=logprobs))
    for index, one in enumerate(made):
        chunks.append(chunk(index, **({"delta": {}} if chat else {"text": ""}), finish_reason=one.finish_reason))
    if usage is not None:
        chunks.append({**envelope, "choices": [], "usage": usage})
    return chunks


def call_deltas(one: Generation) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    for number, (id, name, arguments) in enumerate(one.calls):
        deltas.append({"index": number, **told_call(id, name, [])})
        deltas += [{"index": number, "function": {"arguments": piece}} for piece in arguments]
    return deltas


def framed(chunk: Any) -> bytes:
    if isinstance(chunk, bytes):
        return chunk
    name = f"event: {chunk['type']}\n".encode() if "type" in chunk else b""
    return name + b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"
