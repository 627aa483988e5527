"""Tools for a template that has no place for them: declared in the system message, calls and results told as text.

The block is the one that models of the Hermes and Qwen families were trained on, so a model reads it at least as well
as any other, and the calls that it writes are read by the `hermes` parser. Pure; parsing and holding a model to a form
belong to others. Source: the function-calling convention of NousResearch's Hermes models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from relevo.gateway.text.chat_messages import argument_object

_DECLARATION = """\
You may call tools. These are the tools, one JSON object per line:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as JSON between these tags, and nothing after them:
<tool_call>
{{"name": "NAME", "arguments": {{...}}}}
</tool_call>
You will be told what it returned between <tool_response> and </tool_response>."""


def with_emulated_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Messages that tell of `tools` (none: only of earlier calls), in which every role is one that any template has.

    Results that follow each other become one message of the user's.
    """
    told: list[dict[str, Any]] = []
    num_results = 0  # in the last message
    for message in messages:
        if message.get("role") == "tool" or message.get("role") == "function":
            result = {"type": "text", "text": _result(message)}
            if num_results:
                told[-1]["content"].append(result)
            else:
                told.append({"role": "user", "content": [result]})
            num_results += 1
            continue
        told.append(_with_told_calls(message))
        num_results = 0
    return _declared(told, tools) if tools else told


def needs_emulation(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an earlier turn called a tool."""
    return any(message.get("role") in ("tool", "function") or message.get("tool_calls") for message in messages)


def _declared(told: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    block = _DECLARATION.format(tools=lines)
    if told and told[0].get("role") in ("system", "developer"):
        return [{**told[0], "content": _appended(told[0].get("content"), "\n\n" + block)}, *told[1:]]
    return [{"role": "system", "content": block}, *told]


def _with_told_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    told = {key: value for key, value in message.items() if key not in ("tool_calls", "function_call")}
    if isinstance(calls, list) and calls:
        content = told.get("content")
        told["content"] = _appended(content, ("\n" if content else "") + "\n".join(map(_call, calls)))
    return told


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    shown = function if isinstance(function, Mapping) else {}
    told = {"name": shown.get("name"), "arguments": argument_object(shown.get("arguments"))}
    return f"<tool_call>\n{json.dumps(told, ensure_ascii=False)}\n</tool_call>"


def _result(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(
            part
            if isinstance(part, str)
            else str(part.get("text", f"[{part.get('type')} that this model cannot read]"))
            for part in content
            if isinstance(part, str | Mapping)
        )
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    return f"<tool_response>\n{text}\n</tool_response>"


def _appended(content: Any, text: str) -> Any:
    if isinstance(content, list):
        return [*content, {"type": "text", "text": text.lstrip("\n")}]
    return (content or "") + text
