"""The Responses and Messages APIs of a scripted server: requests as chats, answers in their shapes."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import Any

from scripted_answers import Call, Reply, error

Chat = Callable[[Call], Reply]  # answers a chat, also a wrong one
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
PATHS = (RESPONSES, MESSAGES)


def _texts(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _chat(call: Call, chat: Chat, body: dict[str, Any]) -> Reply:
    fields = {name: value for name, value in body.items() if value is not None}
    return chat(Call("POST", "/v1/chat/completions", call.headers, b"", {"model": call.body.get("model"), **fields}))


def _function(tool: dict[str, Any], schema: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool["name"], "parameters": tool[schema]}}


# ---- Responses -------------------------------------------------------------------------------------------------------


def _as_messages(items: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        if item.get("type") == "function_call":
            called = {"name": item["name"], "arguments": item["arguments"]}
            messages.append({"role": "assistant", "tool_calls": [{"function": called}]})
        elif item.get("type") == "function_call_output":
            messages.append({"role": "tool", "content": _texts(item["output"])})
        else:
            messages.append({"role": item["role"], "content": _texts(item["content"])})
    return messages


def answer_response(call: Call, chat: Chat, stored: dict[str, Any]) -> Reply:
    """`stored` has the responses by id, each with the items up to its own."""
    id = call.path.removeprefix(RESPONSES).strip("/")
    if call.method in ("GET", "DELETE"):
        if id not in stored:
            return error(404, "no such response")
        told = stored[id][0]
        if call.method == "DELETE":
            del stored[id]
        return Reply(told)
    body = call.body
    before = stored.get(body.get("previous_response_id"))
    if body.get("previous_response_id") and before is None:
        return error(400, "no such response")
    items = [{"role": "user", "content": body["input"]}] if isinstance(body["input"], str) else body["input"]
    items = [*(before[1] if before else ()), *items]
    system = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    choice = body.get("tool_choice")
    wanted = (body.get("text") or {}).get("format")
    reply = _chat(
        call,
        chat,
        {
            "messages": system + _as_messages(items),
            "max_tokens": body.get("max_output_tokens"),
            "temperature": body.get("temperature"),
            "tools": [_function(tool, "parameters") for tool in body.get("tools") or []],
            "tool_choice": {"function": choice} if isinstance(choice, dict) else choice,
            "response_format": {"type": wanted["type"], "json_schema": wanted} if wanted else None,
        },
    )
    if reply.status != 200:
        return reply
    if id == "input_tokens":
        return Reply({"object": "response.input_tokens", "input_tokens": reply.body["usage"]["prompt_tokens"]})
    told = _response(body, reply.body)
    if body.get("store") is not False:
        stored[told["id"]] = (told, [*items, *told["output"]])
    return Reply(chunks=_response_events(told), num_done=0) if body.get("stream") else Reply(told)


def _response(body: dict[str, Any], chat: dict[str, Any]) -> dict[str, Any]:
    choice, usage = chat["choices"][0], chat["usage"]
    is_cut = choice["finish_reason"] == "length"
    status = "incomplete" if is_cut else "completed"
    output: list[dict[str, Any]] = []
    if choice["message"]["content"] is not None:
        part = {"type": "output_text", "text": choice["message"]["content"], "annotations": []}
        output.append({"type": "message", "role": "assistant", "content": [part]})
    calls = choice["message"].get("tool_calls", ())
    output += [{"type": "function_call", "call_id": called["id"], **called["function"]} for called in calls]
    output = [{"id": f"item_{uuid.uuid4().hex}", "status": status, **item} for item in output]
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "error": None,
        "metadata": {},
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        **{name: body.get(name) for name in ("model", "instructions", "temperature", "top_p")},
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "total_tokens": usage["total_tokens"],
        },
    }


def _response_events(told: dict[str, Any]) -> list[dict[str, Any]]:
    begun = {**told, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")
    ]
    for place, item in enumerate(told["output"]):
        where = {"output_index": place, "item_id": item["id"]}
        is_call = item["type"] == "function_call"
        kind = "function_call_arguments" if is_call else "output_text"
        text = item["arguments"] if is_call else item["content"][0]["text"]
        empty = {"arguments": ""} if is_call else {"content": []}
        events.append({"type": "response.output_item.added", "output_index": place, "item": {**item, **empty}})
        events += [
            {"type": f"response.{kind}.delta", **where, "delta": text[at : at + 5]} for at in range(0, len(text), 5)
        ]
        events.append({"type": f"response.{kind}.done", **where, ("arguments" if is_call else "text"): text})
        events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    events.append({"type": f"response.{told['status']}", "response": told})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


# ---- Messages --------------------------------------------------------------------------------------------------------


def _anthropic_error(reply: Reply) -> Reply:
    told = reply.body["error"]
    return Reply({"type": "error", "error": {"type": told["type"], "message": told["message"]}}, reply.status)


def _turns(message: dict[str, Any]) -> list[dict[str, Any]]:
    if isinstance(message["content"], str):
        return [message]
    turns: list[dict[str, Any]] = []
    for block in message["content"]:
        if block["type"] == "text":
            turns.append({"role": message["role"], "content": block["text"]})
        elif block["type"] == "tool_use":
            turns.append({"role": "assistant", "tool_calls": [{"name": block["name"], "arguments": block["input"]}]})
        elif block["type"] == "tool_result":
            turns.append({"role": "tool", "content": _texts(block["content"])})
    return turns


_MODES = {"none": "none", "auto": "auto", "any": "required"}


def answer_message(call: Call, chat: Chat) -> Reply:
    body, counts = call.body, call.path.endswith("count_tokens")
    if not counts and not body.get("max_tokens"):
        return _anthropic_error(error(400, "max_tokens is needed"))
    choice = body.get("tool_choice") or {"type": "auto"}
    system = [{"role": "system", "content": _texts(body["system"])}] if body.get("system") else []
    fields = {
        "messages": system + [turn for message in body["messages"] for turn in _turns(message)],
        "max_tokens": 1 if counts else body["max_tokens"],
        "temperature": body.get("temperature"),
        "stop": body.get("stop_sequences"),
        "tools": [_function(tool, "input_schema") for tool in body.get("tools") or []],
        "tool_choice": {"function": choice} if choice["type"] == "tool" else _MODES[choice["type"]],
    }
    reply = _chat(call, chat, fields if body["messages"] else {"messages": []})
    if reply.status != 200:
        return _anthropic_error(reply)
    usage = reply.body["usage"]
    if counts:
        return Reply({"input_tokens": usage["prompt_tokens"]})
    told = _message(body, reply.body)
    if told["stop_reason"] == "end_turn" and body.get("stop_sequences"):
        full = _chat(call, chat, {**fields, "stop": None}).body["choices"][0]["message"]["content"]
        rest = full.removeprefix(told["content"][0]["text"])
        told["stop_sequence"] = next(stop for stop in body["stop_sequences"] if rest.startswith(stop))
        told["stop_reason"] = "stop_sequence"
    return Reply(chunks=_message_events(told), num_done=0) if body.get("stream") else Reply(told)


def _message(body: dict[str, Any], chat: dict[str, Any]) -> dict[str, Any]:
    choice, usage = chat["choices"][0], chat["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    content: list[dict[str, Any]] = []
    if choice["message"]["content"] is not None:
        content.append({"type": "text", "text": choice["message"]["content"]})
    for called in choice["message"].get("tool_calls", ()):
        is_cut = choice["finish_reason"] == "length"
        value = {} if is_cut else json.loads(called["function"]["arguments"])
        content.append({"type": "tool_use", "id": called["id"], "name": called["function"]["name"], "input": value})
    reasons = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": reasons[choice["finish_reason"]],
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": usage["completion_tokens"],
        },
    }


def _message_events(told: dict[str, Any]) -> list[dict[str, Any]]:
    begun = {**told, "content": [], "stop_reason": None, "stop_sequence": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
    for index, block in enumerate(told["content"]):
        is_call = block["type"] == "tool_use"
        text = json.dumps(block["input"]) if is_call else block["text"]
        empty = {"input": {}} if is_call else {"text": ""}
        events.append({"type": "content_block_start", "index": index, "content_block": {**block, **empty}})
        for at in range(0, len(text), 5):
            piece = text[at : at + 5]
            delta = (
                {"type": "input_json_delta", "partial_json": piece}
                if is_call
                else {"type": "text_delta", "text": piece}
            )
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    ended = {name: told[name] for name in ("stop_reason", "stop_sequence")}
    events.append({"type": "message_delta", "delta": ended, "usage": told["usage"]})
    return [*events, {"type": "message_stop"}]
