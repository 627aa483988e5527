"""The tools of a request: what the model is shown of them, which may be called, and how a call of each is told.

A model knows functions only. A `custom` tool is shown as a function with one text, its grammar told in words; the
functions of a `namespace` are shown by their own names, and by both where two would be called alike. What a server
would run itself (searches, images, code) is left out: nothing is run here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from relevo.core.errors import InvalidRequest
from relevo.core.told_values import as_sent
from relevo.gateway.generation.spec import ToolChoice
from relevo.gateway.generation.tools import check_num_tools, function_tool

INPUT = "input"  # the one parameter that a custom tool is shown with
_ONE_TEXT = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}
_MODES = ("auto", "none", "required")
_CALLABLE = ("function", "custom")


@dataclass(frozen=True, slots=True)
class Tool:
    """One that may be called. `namespace`: empty if it is in none."""

    name: str
    namespace: str = ""
    is_custom: bool = False


@dataclass(frozen=True)
class DeclaredTools:
    by_shown_name: Mapping[str, Tool] = field(default_factory=dict)
    shown: Sequence[Mapping[str, Any]] = ()  # in the form of chat templates
    assumed_strict: frozenset[str] = frozenset()  # shown names of functions that do not say whether they are strict

    def called(self, shown_name: str) -> Tool:
        """What the model means by a name; one that was not declared is the client's to answer."""
        return self.by_shown_name.get(shown_name) or Tool(shown_name)

    def loosened(self) -> Sequence[Mapping[str, Any]]:
        """Those shown, strict only where they say so."""
        return [
            {**tool, "function": {**tool["function"], "strict": False}}
            if tool["function"]["name"] in self.assumed_strict
            else tool
            for tool in self.shown
        ]

    def shown_name(self, name: str, namespace: str = "") -> str:
        """By which the model knows, or knew, a tool."""
        return self._shown_names.get((name, namespace), name)

    @cached_property
    def _shown_names(self) -> Mapping[tuple[str, str | None], str]:
        """By name and namespace; by None: the first of that name in any."""
        found: dict[tuple[str, str | None], str] = {}
        for shown, tool in self.by_shown_name.items():
            found.setdefault((tool.name, tool.namespace), shown)
            found.setdefault((tool.name, None), shown)
        return found

    def meant(self, name: Any, namespace: Any) -> str | None:
        """The shown name of what a client names, in some namespace or in any. None: there is no such tool."""
        is_name = isinstance(name, str) and isinstance(namespace, str | None)
        return self._shown_names.get((name, namespace)) if is_name else None


def declared_tools(tools: Sequence[Mapping[str, Any]], note: Callable[[Iterable[str]], None]) -> DeclaredTools:
    """`note` is told what is left out. Raises InvalidRequest, naming the place."""
    found: list[tuple[Tool, Mapping[str, Any], str]] = []
    for index, declared in enumerate(tools):
        place = f"tools[{index}]"
        kind = declared.get("type")
        if kind == "namespace":
            found += _namespaced(declared, place)
        elif kind in _CALLABLE:
            found.append(_tool(declared, place))
        elif isinstance(kind, str) and kind:
            note([f"tools.{kind}"])
        else:
            raise InvalidRequest(f"'{place}' must have a 'type', for example 'function'.", param=f"{place}.type")
    check_num_tools(len(found))
    by_shown_name: dict[str, Tool] = {}
    shown, assumed = [], []
    num_called = Counter(tool.name for tool, _, _ in found)
    for tool, declared, place in found:
        is_shared = bool(tool.namespace) and num_called[tool.name] > 1
        name = f"{tool.namespace}__{tool.name}" if is_shared else tool.name
        if name in by_shown_name:
            raise InvalidRequest(f"'{place}.name': two tools are called {name!r}.", param=f"{place}.name")
        by_shown_name[name] = tool
        shown.append(_function(name, tool, declared, place))
        assumed += [name] if declared.get("strict") is None and not tool.is_custom else []
    return DeclaredTools(by_shown_name, shown, frozenset(assumed))


def tool_choice(asked: str | Mapping[str, Any] | None, tools: DeclaredTools, *, is_parallel: bool) -> ToolChoice:
    """Raises InvalidRequest for one that no answer could keep."""
    if asked is None or isinstance(asked, str):
        mode = asked or "auto"
        if mode not in _MODES:
            raise InvalidRequest(
                f"'tool_choice' must be 'auto', 'none', 'required' or an object, got {mode!r}.", param="tool_choice"
            )
        names: tuple[str, ...] = ()
    elif asked.get("type") == "allowed_tools":
        mode, names = _allowed(asked, tools)
    else:
        mode, names = "required", (_chosen(asked, tools, "tool_choice"),)
        is_parallel = False  # "call exactly one specific function"
    if mode == "required" and not tools.shown:
        raise InvalidRequest(
            "'tool_choice' asks for a call, and 'tools' holds none that can be called here.", param="tool_choice"
        )
    return ToolChoice(mode=mode, names=names, is_parallel=is_parallel)  # type: ignore[arg-type]  # one of _MODES


def echoed(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """As the response repeats them: functions with every member that its schema requires."""
    required = {"description": None, "parameters": None, "strict": True}
    return [{**required, **tool} if tool.get("type") == "function" else dict(tool) for tool in tools]


def _namespaced(declared: Mapping[str, Any], place: str) -> list[tuple[Tool, Mapping[str, Any], str]]:
    namespace, inner = _name(declared, place), declared.get("tools")
    if not isinstance(inner, list) or not all(isinstance(tool, dict) for tool in inner):
        raise InvalidRequest(f"'{place}.tools' must be a list of tools.", param=f"{place}.tools")
    places = [f"{place}.tools[{index}]" for index in range(len(inner))]
    return [_tool(tool, where, namespace) for tool, where in zip(inner, places, strict=True)]


def _tool(declared: Mapping[str, Any], place: str, namespace: str = "") -> tuple[Tool, Mapping[str, Any], str]:
    kind = declared.get("type")
    if kind not in _CALLABLE:
        raise InvalidRequest(
            f"'{place}.type' must be 'function' or 'custom', got {as_sent(kind)}.", param=f"{place}.type"
        )
    return Tool(_name(declared, place), namespace, kind == "custom"), declared, place


def _name(declared: Mapping[str, Any], place: str) -> str:
    name = declared.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"'{place}.name' must be a non-empty string.", param=f"{place}.name")
    return name


def _function(name: str, tool: Tool, declared: Mapping[str, Any], place: str) -> dict[str, Any]:
    """In the form of chat templates. Here a function is strict unless it says otherwise."""
    description = declared.get("description") or ""
    if not isinstance(description, str):
        raise InvalidRequest(f"'{place}.description' must be a string.", param=f"{place}.description")
    if tool.is_custom:
        told = f"{description}\n{_grammar(declared, place)}".strip()
        return function_tool(name, told, _ONE_TEXT, strict=True, place=place)
    strict = declared.get("strict")
    is_strict = strict is None or bool(strict)
    return function_tool(name, description, declared.get("parameters"), is_strict, place=place)


def _grammar(declared: Mapping[str, Any], place: str) -> str:
    form = declared.get("format") or {"type": "text"}
    if not isinstance(form, dict) or form.get("type") not in ("text", "grammar"):
        raise InvalidRequest(f"'{place}.format' must be of type 'text' or 'grammar'.", param=f"{place}.format")
    if form["type"] == "text":
        return f"Put the whole text into '{INPUT}', as it is."
    definition, syntax = form.get("definition"), form.get("syntax")
    if not isinstance(definition, str) or syntax not in ("lark", "regex"):
        raise InvalidRequest(
            f"'{place}.format' must have a 'definition' and the 'syntax' 'lark' or 'regex'.", param=f"{place}.format"
        )
    kind = "Lark grammar" if syntax == "lark" else "regular expression"
    return f"Put the whole text into '{INPUT}', as it is. It must follow this {kind}:\n{definition}"


def _allowed(asked: Mapping[str, Any], tools: DeclaredTools) -> tuple[str, tuple[str, ...]]:
    mode, listed = asked.get("mode", "auto"), asked.get("tools")
    if mode not in ("auto", "required"):
        raise InvalidRequest(
            f"'tool_choice.mode' must be 'auto' or 'required', got {as_sent(mode)}.", param="tool_choice.mode"
        )
    if not isinstance(listed, list) or not listed or not all(isinstance(tool, dict) for tool in listed):
        raise InvalidRequest("'tool_choice.tools' must be a list of tools.", param="tool_choice.tools")
    names = tuple(
        _chosen(tool, tools, f"tool_choice.tools[{index}]")
        for index, tool in enumerate(listed)
        if tool.get("type") in _CALLABLE
    )
    if not names and mode == "required":
        raise InvalidRequest("'tool_choice.tools' names no tool that can be called here.", param="tool_choice.tools")
    return (mode if names else "none"), names


def _chosen(asked: Mapping[str, Any], tools: DeclaredTools, place: str) -> str:
    """The shown name. Some clients name a function as in chat completions, one level deeper."""
    if asked.get("type") not in _CALLABLE:
        raise InvalidRequest(
            f"'{place}' forces a tool of type {as_sent(asked.get('type'))}; only 'function' and 'custom' can be "
            "called here.",
            param=place,
        )
    inner = asked.get("function")
    named = inner if isinstance(inner, dict) else asked
    name, namespace = named.get("name"), named.get("namespace")
    shown = tools.meant(name, namespace)
    if shown is not None:
        return shown
    raise InvalidRequest(f"'{place}' names the tool {as_sent(name)}, which 'tools' does not declare.", param=place)
