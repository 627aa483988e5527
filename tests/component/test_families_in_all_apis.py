"""What every family writes reaches the clients of all three APIs as what it means, streamed and whole alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from anthropic_client import events as message_events
from anthropic_client import joined
from family_outputs import TOOLS, Family, Output
from scripted_gateway import MODEL, Rig, events, rig, says
from test_dialects import ROWS

from relevo.gateway.dialects.composed import ComposedParsers
from relevo.gateway.dialects.registry import REASONING_FORMATS, TOOL_FORMATS

Told = tuple[str, str, list[tuple[str, Any]]]  # reasoning, content, calls


def family_rig(family: Family, output: Output, tokens_per_step: int) -> Rig:
    parser = ComposedParsers(REASONING_FORMATS.get(family.reasoning), TOOL_FORMATS[family.tools])
    return rig(says(output.written, tokens_per_step=tokens_per_step), make_parser=parser, max_model_len=10_000)


def meant(output: Output) -> Told:
    return output.reasoning, output.content, [(name, json.loads(text)) for name, text in output.calls]


async def post(family: Family, output: Output, path: str, **body: Any) -> httpx.Response:
    r = family_rig(family, output, 3 if body.get("stream") else 10_000)
    answer = await r.post(path, {"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    return answer


def of_chat(messages: Sequence[dict[str, Any]]) -> Told:
    """Of a message, or of the deltas of one."""
    calls: list[list[str]] = []
    for place, call in enumerate(call for message in messages for call in message.get("tool_calls") or ()):
        if call.get("index", place) == len(calls):
            calls.append([call["function"]["name"], ""])
        calls[-1][1] += call["function"]["arguments"]
    reasoning, content = ("".join(each.get(key) or "" for each in messages) for key in ("reasoning_content", "content"))
    return reasoning, content, [(name, json.loads(text)) for name, text in calls]


def of_items(items: Sequence[dict[str, Any]]) -> Told:
    texts = {"reasoning": "", "message": ""}
    for item in items:
        if item["type"] in texts:
            texts[item["type"]] += "".join(part["text"] for part in item["content"])
    calls = [(item["name"], json.loads(item["arguments"])) for item in items if item["type"] == "function_call"]
    return texts["reasoning"], texts["message"], calls


def of_blocks(blocks: Sequence[dict[str, Any]]) -> Told:
    reasoning = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    content = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [
        (block["name"], json.loads(block["json"]) if block.get("json") else block["input"])
        for block in blocks
        if block["type"] == "tool_use"
    ]
    return reasoning, content, calls


@pytest.mark.parametrize(("family", "output"), ROWS)
async def test_a_chat_shows_what_was_meant(family: Family, output: Output) -> None:
    body = {"messages": [{"role": "user", "content": "q"}], "tools": TOOLS}
    whole = (await post(family, output, "/v1/chat/completions", **body)).json()["choices"][0]["message"]
    chunks = events(await post(family, output, "/v1/chat/completions", stream=True, **body))
    streamed = [chunk["choices"][0]["delta"] for chunk in chunks if isinstance(chunk, dict) and chunk["choices"]]
    assert of_chat([whole]) == of_chat(streamed) == meant(output)


@pytest.mark.parametrize(("family", "output"), ROWS)
async def test_a_response_shows_what_was_meant(family: Family, output: Output) -> None:
    functions = [{"type": "function", "strict": False, **tool["function"]} for tool in TOOLS]
    body = {"input": "q", "tools": functions}
    whole = (await post(family, output, "/v1/responses", **body)).json()["output"]
    streamed = message_events((await post(family, output, "/v1/responses", stream=True, **body)).text)
    done = [payload["item"] for name, payload in streamed if name == "response.output_item.done"]
    last_name, last = streamed[-1]
    assert last_name == "response.completed" and last["response"]["output"] == done
    assert of_items(whole) == of_items(done) == meant(output)
    told = {"reasoning_text": "", "output_text": ""}
    for name, payload in streamed:
        kind = name.removeprefix("response.").removesuffix(".delta")
        if kind in told and name.endswith(".delta"):
            told[kind] += payload["delta"]
    assert (told["reasoning_text"], told["output_text"]) == meant(output)[:2]


@pytest.mark.parametrize(("family", "output"), ROWS)
async def test_a_message_shows_what_was_meant(family: Family, output: Output) -> None:
    functions = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS]
    body = {"messages": [{"role": "user", "content": "q"}], "tools": functions, "max_tokens": 5000}
    whole = (await post(family, output, "/v1/messages", **body)).json()["content"]
    streamed = joined(message_events((await post(family, output, "/v1/messages", stream=True, **body)).text))
    assert of_blocks(whole) == of_blocks(streamed) == meant(output)
