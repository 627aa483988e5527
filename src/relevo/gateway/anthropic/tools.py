"""Anthropic's tools and choices of tools, in the form of chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from relevo.core.errors import InvalidRequest
from relevo.gateway.anthropic.blocks import Skipped
from relevo.gateway.generation.spec import ToolChoice
from relevo.gateway.generation.tools import function_tool

_PLAIN_TYPES = (None, "custom", "function")
_MODES: Mapping[str, Literal["auto", "required", "none"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}


def tools_of(tools: Sequence[Mapping[str, Any]], skipped: Skipped) -> list[dict[str, Any]]:
    """Without those whose schema only Anthropic's models know, or that only its servers run. Raises InvalidRequest."""
    shown: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        place, schema = f"tools[{index}]", tool.get("input_schema")
        if "input_schema" not in tool and tool.get("type") not in _PLAIN_TYPES:
            skipped.note("tools", tool.get("type"))
            continue
        if not isinstance(schema, dict):
            raise InvalidRequest(
                f"'{place}.input_schema' must be a JSON schema, an object.", param=f"{place}.input_schema"
            )
        shown.append(function_tool(tool.get("name"), tool.get("description"), schema, tool.get("strict"), place=place))
    return shown


def tool_choice_of(choice: Mapping[str, Any] | None) -> ToolChoice:
    """Raises InvalidRequest. Whether there are such tools is `generation.tools`'s to check."""
    choice = choice or {"type": "auto"}
    kind = choice.get("type")
    if not isinstance(kind, str) or kind not in _MODES:
        raise InvalidRequest(
            f"'tool_choice.type' must be 'auto', 'any', 'tool' or 'none', got {kind!r}.", param="tool_choice.type"
        )
    names: tuple[str, ...] = ()
    if kind == "tool":
        name = choice.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidRequest("'tool_choice.name' must name a tool.", param="tool_choice.name")
        names = (name,)
    is_parallel = choice.get("disable_parallel_tool_use") is not True
    return ToolChoice(mode=_MODES[kind], names=names, is_parallel=is_parallel)
