"""The tools and the choice of tools of a chat request. Source: OpenAI API reference, "Chat"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relevo.core.errors import InvalidRequest
from relevo.core.told_values import as_sent
from relevo.gateway.generation.spec import ToolChoice
from relevo.gateway.generation.tools import function_tool

_MODES = ("auto", "none", "required")


def function_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """In the form of chat templates. Raises InvalidRequest."""
    return [_function_tool(tool, f"tools[{place}]") for place, tool in enumerate(tools)]


def _function_tool(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Some clients leave the type out, or write a function's members beside it, as /v1/responses has them."""
    kind = tool.get("type") or "function"
    if kind != "function":
        raise InvalidRequest(
            f"'{place}.type' is {as_sent(kind)}; only tools of type 'function' can be called here. "
            "/v1/responses takes more.",
            param=f"{place}.type",
        )
    function = tool.get("function")
    if function is None:
        function = tool
    else:
        place = f"{place}.function"
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"'{place}' must be an object.", param=place)
    members = (function.get(name) for name in ("name", "description", "parameters", "strict"))
    return function_tool(*members, place=place)


def tool_choice(choice: str | Mapping[str, Any] | None, *, is_parallel: bool) -> ToolChoice:
    """Raises InvalidRequest for what is none of OpenAI's forms."""
    if choice is None:
        return ToolChoice(is_parallel=is_parallel)
    if isinstance(choice, str):
        return ToolChoice(mode=_mode(choice), is_parallel=is_parallel)
    if choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        if isinstance(allowed, Mapping) and isinstance(tools := allowed.get("tools"), list) and tools:
            names = tuple(_name(tool) for tool in tools)
            return ToolChoice(mode=_mode(allowed.get("mode", "auto")), names=names, is_parallel=is_parallel)
        raise InvalidRequest("'tool_choice.allowed_tools' must have a 'mode' and 'tools'.", param="tool_choice")
    if choice.get("type", "function") in _MODES:  # as some clients write a mode
        return ToolChoice(mode=_mode(choice["type"]), is_parallel=is_parallel)
    return ToolChoice(
        mode="required", names=(_name(choice),), is_parallel=False
    )  # "call exactly one specific function"


def _mode(mode: Any) -> Any:
    if mode not in _MODES:
        raise InvalidRequest(
            f"'tool_choice' must be one of {', '.join(map(repr, _MODES))}, or name a function, got {as_sent(mode)}.",
            param="tool_choice",
        )
    return mode


def _name(choice: Any) -> str:
    """Of the function that is named."""
    if isinstance(choice, Mapping) and choice.get("type", "function") == "function":
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str) and name:
            return name
    raise InvalidRequest(
        '\'tool_choice\' must name a function: {"type": "function", "function": {"name": ...}}.', param="tool_choice"
    )
