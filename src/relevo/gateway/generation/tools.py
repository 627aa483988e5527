"""The tools of a request: whether the model can be told of them, and whether what is asked of them can be done.

Of no API: each brings its tools to the form of chat templates first. Does not know how calls are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relevo.core.errors import InvalidRequest
from relevo.gateway.generation.spec import ChatPrompt
from relevo.gateway.text.served_models import ServedModel

MAX_TOOLS = 1024  # arbitrary; more than any client declares
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


def check_tools(served: ServedModel, prompt: ChatPrompt) -> None:
    """Raises InvalidRequest before anything is generated."""
    choice, names = prompt.tool_choice, [tool["function"]["name"] for tool in prompt.tools]
    check_num_tools(len(names))
    if choice.mode == "required" and not names:
        raise InvalidRequest("'tool_choice' demands a call, and 'tools' declares none to make.", param="tool_choice")
    declared = frozenset(names)
    for name in choice.names if choice.mode != "none" else ():
        if name not in declared:
            known = ", ".join(names) or "none"
            raise InvalidRequest(
                f"'tool_choice' names {name!r}, which is not among the tools of this request: {known}.",
                param="tool_choice",
            )
    template = served.chat_template
    if prompt.shown_tools and template is not None and not (template.knows_tools or template.emulates_tools):
        raise InvalidRequest(
            "This model's chat template has no place for tools, so the model would not know of them; leave 'tools' "
            "out, send 'tool_choice': 'none', or start the server without --tool-emulation off.",
            param="tools",
        )


def check_num_tools(num_tools: int) -> None:
    """Raises InvalidRequest."""
    if num_tools > MAX_TOOLS:
        raise InvalidRequest(f"'tools' has {num_tools} tools; at most {MAX_TOOLS} are allowed.", param="tools")


def function_tool(
    name: Any, description: Any = None, parameters: Any = None, strict: Any = None, *, place: str
) -> dict[str, Any]:
    """One tool in the form of chat templates. Raises InvalidRequest, naming the `place` of what is wrong."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidRequest(f"'{place}.name' must be a string that names the tool.", param=f"{place}.name")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidRequest(f"'{place}.parameters' must be a JSON schema, an object.", param=f"{place}.parameters")
    function: dict[str, Any] = {"name": name.strip()}
    if isinstance(description, str):
        function["description"] = description
    function["parameters"] = _with_properties(parameters or {})
    if strict is True:
        function["strict"] = True  # for what holds the model to it: not shown to the model
    return {"type": "function", "function": function}


def _with_properties(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Templates list the properties of every tool, those of a tool without any too."""
    return {**_NO_ARGUMENTS, **{key: value for key, value in parameters.items() if value is not None}}


def shown_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """What the model is to see of it."""
    function = {key: value for key, value in tool["function"].items() if key != "strict"}
    return {**tool, "function": function}
