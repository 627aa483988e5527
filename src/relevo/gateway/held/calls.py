"""Calls of tools, in the form in which a family of models writes them, each held to its tool's schema.

Arguments are JSON, or code (NAME=VALUE), or a tag per parameter: then a text is free up to its closing tag, and other
values are JSON. Code and tags have declared parameters only. Does not know which call is wanted, see `output`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relevo.gateway.dialects.formats import CallShape
from relevo.gateway.held.json_text import Blanks
from relevo.gateway.held.lark import Items, Ref, Rules, Times, term
from relevo.gateway.held.patterns.nodes import lexer_text, written
from relevo.gateway.held.problems import Leniency, NotHeld
from relevo.gateway.held.schema.grammar import SchemaGrammar
from relevo.gateway.held.schema.literals import JSON_WORDS, PYTHON_WORDS
from relevo.gateway.held.schema.shapes import Literals, Members, Objects, Strings
from relevo.gateway.held.texts import FREE, Specials, marked, matched_up_to, text_up_to

MAX_CALLS = 64  # of one answer; arbitrary
_TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")
_INDEX = "{index}"
_FREE_NAME = "[A-Za-z0-9_.-]{1,64}"


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    parameters: Any
    is_strict: bool


HELD_FORMS = ("json", "parameters", "python")


class UnheldTool(Exception):
    """A strict tool's schema has what cannot be held."""

    def __init__(self, tool: Tool, problem: NotHeld) -> None:
        super().__init__(f"the parameters of {tool.name!r} cannot be held: {problem}")
        self.tool = tool


class CallRules:
    """Of one answer."""

    def __init__(
        self,
        rules: Rules,
        shape: CallShape,
        tools: Sequence[Tool],
        specials: Specials,
        blanks: Blanks,
        notes: list[str],
    ) -> None:
        """Raises UnheldTool."""
        self._rules, self._shape, self._specials, self._blanks = rules, shape, specials, blanks
        self._notes = notes
        self._began_s = time.thread_time()  # the bound of one schema is that of all tools together
        first = shape.begin or shape.before_name.partition("{name}")[0]
        tag = _TAG.match(first)
        self.trigger = shape.trigger or (tag[0] if tag is not None else first)
        self._calls = [self._call(tool) for tool in tools]

    def held(self, *, is_parallel: bool, is_triggered: bool = False) -> Items:
        """One call, or some. `is_triggered`: the trigger was written already."""
        shape = self._shape
        opening = self._opened(shape.begin, is_triggered=is_triggered)
        more: list[Items] = []
        if is_parallel:
            later = self._rules.define([row for _, row in self._calls], "c")
            more = [[Times([*self._marks(shape.between), later], 0, MAX_CALLS - 1)]]
        return [opening, *(item for row in more for item in row), *self._marks(shape.end)]

    def _opened(self, begin: str, *, is_triggered: bool) -> Ref:
        """The first call, with what stands before it."""
        rows: list[Items] = []
        for head, row in self._calls:
            text = begin + head
            if is_triggered:
                assert text.startswith(self.trigger), "a call begins with its trigger"
                text = text[len(self.trigger) :]
            rows.append([*self._marks(text), *row[len(self._marks(head)) :]])
        return self._rules.define(rows, "c")

    def _call(self, tool: Tool) -> tuple[str, Items]:
        """Its text up to the arguments, and the whole."""
        shape = self._shape
        head = f"{shape.before_name}{tool.name}{shape.before_arguments}".replace("{name}", tool.name)
        arguments = self._arguments(tool)
        return head, [*self._marks(head), *arguments, *self._marks(shape.after_arguments.replace("{name}", tool.name))]

    def _marks(self, text: str) -> Items:
        parts = text.split(_INDEX)
        items = list(marked(parts[0], self._specials))
        for part in parts[1:]:
            items += [term("[0-9]{1,3}"), *marked(part, self._specials)]
        return items

    def _arguments(self, tool: Tool) -> Items:
        leniency = Leniency(tool.is_strict, began_s=self._began_s)
        try:
            items = self._held_arguments(tool.parameters, leniency)
        except NotHeld as problem:
            if tool.is_strict:
                raise UnheldTool(tool, problem) from None
            self._notes.append(f"tool {tool.name!r} is not held: {problem}")
            return self._held_arguments({"type": "object"}, Leniency(False))
        self._notes.extend(f"tool {tool.name!r}: {note} (not held)" for note in leniency.notes)
        return items

    def _held_arguments(self, parameters: Any, leniency: Leniency) -> Items:
        form = self._shape.arguments
        words = PYTHON_WORDS if form == "python" else JSON_WORDS
        schema = SchemaGrammar(self._rules, parameters, leniency, self._blanks, words)
        if form != "parameters":
            return [schema.of_object() if form == "json" else schema.of_arguments()]
        objects = schema.object_shape()
        if objects is None:
            raise NotHeld("", "type", "in this family's form arguments are an object of one shape")
        if objects.declared:
            return [item for name in objects.declared for item in self._parameter(schema, objects, name)]
        if any(sub.schema is False for sub in objects.of_class(frozenset())):
            return []
        before, _, after = self._shape.before_parameter.partition("{name}")
        named: Items = [*self._marks(before), term(_FREE_NAME), *self._marks(after)]
        return [Times([*named, *text_up_to(self._shape.after_parameter, self._specials)], 0, MAX_CALLS)]

    def _parameter(self, schema: SchemaGrammar, objects: Objects, name: str) -> Items:
        before = self._shape.before_parameter.replace("{name}", name)
        value = self._value(schema, objects.of_name(name))
        return [Times([*self._marks(before), *value], 1 if name in objects.required else 0, 1)]

    def _value(self, schema: SchemaGrammar, members: Members) -> Items:
        """With what closes it. A text is free, within what its schema says of it, wherever there may be one."""
        after = self._shape.after_parameter
        alternatives = schema.alternatives(members)
        listed = [value for one in alternatives if isinstance(one, Literals) for value in one.values]
        texts = [one for one in alternatives if isinstance(one, Strings)]
        if texts:
            matches = _plain(texts[0]) if len(texts) == 1 and not listed else [FREE]
            return matched_up_to(matches, after, self._specials)
        if listed and len(alternatives) == 1 and all(isinstance(value, str) for value in listed):
            return [term("|".join(map(lexer_text, listed))), *self._marks(after)]
        return [schema.of_members(members, ""), *self._marks(after)]


def _plain(strings: Strings) -> list[str]:
    matches = [written(node, in_json=False) for node in strings.nodes]
    if not matches or strings.low or strings.high is not None:
        matches.append(f"(?s:.){{{strings.low},{'' if strings.high is None else strings.high}}}")
    return matches


def tool_of(tool: Mapping[str, Any]) -> Tool:
    """From the form of chat templates."""
    function = tool["function"]
    return Tool(function["name"], function.get("parameters") or {"type": "object"}, function.get("strict") is True)
