"""Calls of tools, in the form in which a family of models writes them, each held to its tool's schema.

Arguments are JSON, or code (NAME=VALUE), or a tag per parameter: then a text is free up to its closing tag, and other
values are JSON. Code and tags have declared parameters only. Does not know which call is wanted, see `output`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relevo.gateway.dialects.formats import CallShape
from relevo.gateway.held.json_text import NO_BLANKS, Blanks
from relevo.gateway.held.lark import Items, Ref, Rules, Times, term
from relevo.gateway.held.patterns.nodes import lexer_text
from relevo.gateway.held.problems import Leniency, NotHeld
from relevo.gateway.held.schema.grammar import SchemaGrammar
from relevo.gateway.held.schema.literals import JSON_WORDS, PYTHON_WORDS
from relevo.gateway.held.schema.notation import GemmaNotation, JsonNotation, bare_matches
from relevo.gateway.held.schema.shapes import Alternative, Literals, Members, Objects, Strings, Sub
from relevo.gateway.held.texts import Specials, marked, matched_up_to, text_up_to

MAX_CALLS = 16  # of one answer: small models repeat a call to their limit of tokens; arbitrary
MAX_PARAMETERS = 64  # of a call whose tool declares none; arbitrary
_TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")
_INDEX = "{index}"
_FREE_NAME = "[A-Za-z0-9_.-]{1,64}"


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    parameters: Any
    is_strict: bool


_NO_TEXT = Sub({"type": ["null", "boolean", "number", "array", "object"]}, "")


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
        self.is_framed = bool(shape.begin)  # one mark stands before all calls of an answer
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
        if form == "gemma":
            notation = GemmaNotation(self._shape.quote, self._specials)
            return [SchemaGrammar(self._rules, parameters, leniency, NO_BLANKS, notation).of_object()]
        words = PYTHON_WORDS if form == "python" else JSON_WORDS
        schema = SchemaGrammar(self._rules, parameters, leniency, self._blanks, JsonNotation(words))
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
        return [Times([*named, *text_up_to(self._shape.after_parameter, self._specials)], 0, MAX_PARAMETERS)]

    def _parameter(self, schema: SchemaGrammar, objects: Objects, name: str) -> Items:
        members = objects.of_name(name)
        before = self._marks(self._shape.before_parameter.replace("{name}", name))
        if self._shape.before_other:
            before_other = self._marks(self._shape.before_other.replace("{name}", name))
            items: Items = [self._rules.define(self._told_apart(schema, members, before, before_other), "p")]
        else:
            items = [*before, *self._value(schema, members)]
        return [Times(items, 1 if name in objects.required else 0, 1)]

    def _told_apart(
        self, schema: SchemaGrammar, members: Members, before: Items, before_other: Items
    ) -> Iterator[Items]:
        """The ways to write a parameter whose tag says whether its value is a text."""
        closing = self._marks(self._shape.after_parameter)
        for one in schema.alternatives(members):
            if isinstance(one, Strings):
                yield [*before, *self._free([one])]
            elif isinstance(one, Literals) and (words := [value for value in one.values if isinstance(value, str)]):
                yield [*before, term("|".join(map(lexer_text, words))), *closing]
        if schema.alternatives((*members, _NO_TEXT)):
            yield [*before_other, schema.of_members((*members, _NO_TEXT), ""), *closing]

    def _value(self, schema: SchemaGrammar, members: Members) -> Items:
        """With what closes it. A text is free, within what its schema says of it, wherever there may be one."""
        alternatives = schema.alternatives(members)
        if any(isinstance(one, Strings) for one in alternatives):
            return self._free(alternatives)
        closing = self._marks(self._shape.after_parameter)
        match alternatives:
            case [Literals(values)] if all(isinstance(value, str) for value in values):
                return [term("|".join(map(lexer_text, values))), *closing]
        return [schema.of_members(members, ""), *closing]

    def _free(self, alternatives: Sequence[Alternative]) -> Items:
        may_be_empty = any(isinstance(one, Strings) and one.admits("") for one in alternatives)
        return matched_up_to(
            bare_matches(alternatives), self._shape.after_parameter, self._specials, may_be_empty=may_be_empty
        )


def tool_of(tool: Mapping[str, Any]) -> Tool:
    """From the form of chat templates."""
    function = tool["function"]
    return Tool(function["name"], function.get("parameters") or {"type": "object"}, function.get("strict") is True)
