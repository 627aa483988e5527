"""The type of an argument that a model wrote as bare text: read from the schema of its tool, never from its looks.

Families that write arguments between tags leave no quotes, so that only the schema tells the postcode 02134 from a
number. What cannot be of a declared type stays the text itself, since a tool answers better than a lost call does.
Source: JSON Schema 2020-12 (and `nullable`, as OpenAPI 3.0 has it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import unquote

MAX_DEPTH = 64  # of references and alternatives within each other; arbitrary
KINDS = ("null", "boolean", "integer", "number", "object", "array", "string")
INTEGER = re.compile(r"([+-]?)0*(\d+)(?:\.0*)?")
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
LOOSE_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
MAX_DIGITS = 400  # of an integer: beyond, parsers of JSON read infinity or refuse; arbitrary

Kinds = frozenset[str]
TEXT: Kinds = frozenset({"string"})


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """The kinds of JSON values that an argument may have."""

    kinds: Kinds
    is_declared: bool = True  # False: the schema leaves it open, and it is taken for text

    @property
    def is_text(self) -> bool:
        """It can only be a string: it may be told before it is known whole."""
        return self.kinds == TEXT

    def json_of(self, written: str) -> str:
        """The JSON text of what was written, of the first kind that it can be read as."""
        for kind in KINDS:
            if kind in self.kinds and (found := read_as(kind, written, is_exact="string" in self.kinds)) is not None:
                return found
        return json_text(written)


UNDECLARED = ArgumentType(TEXT, is_declared=False)


class ArgumentTypes:
    """Of the tools of one request."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._schemas = {
            function["name"]: ToolSchema(function.get("parameters"))
            for tool in tools
            if isinstance(function := tool.get("function"), Mapping) and isinstance(function.get("name"), str)
        }
        self._known: dict[tuple[str, str], ArgumentType] = {}

    def has(self, tool: str) -> bool:
        return tool in self._schemas

    def names(self, tool: str) -> list[str]:
        """Of its parameters, in the order of its schema."""
        schema = self._schemas.get(tool)
        return [] if schema is None else schema.names

    def of(self, tool: str, parameter: str) -> ArgumentType:
        """Of one that no schema declares: text."""
        found = self._known.get((tool, parameter))
        if found is None:
            schema = self._schemas.get(tool)
            found = self._known[tool, parameter] = UNDECLARED if schema is None else schema.type_of(parameter)
        return found


def json_text(text: str) -> str:
    """As a JSON string, whole characters kept as they are."""
    return json.dumps(text, ensure_ascii=False)


def read_as(kind: str, written: str, *, is_exact: bool) -> str | None:
    """The JSON text, or None. Exact: it might be meant as text too, so only what JSON itself would write counts."""
    stripped = written.strip()
    if kind == "string":
        return json_text(written)
    if is_exact and stripped != written and kind not in ("object", "array"):
        return None
    if kind == "null":
        return "null" if stripped == "null" or (not is_exact and stripped in ("None", "NULL", "Null")) else None
    if kind == "boolean":
        word = stripped if is_exact else stripped.lower()
        return word if word in ("true", "false") else None
    if kind == "integer":
        return integer_of(stripped, is_exact=is_exact)
    if kind == "number":
        return number_of(stripped, is_exact=is_exact)
    return nested_of(kind, stripped)


def integer_of(stripped: str, *, is_exact: bool) -> str | None:
    found = INTEGER.fullmatch(stripped)
    if found is None or len(stripped) > MAX_DIGITS:
        return None
    sign, digits = found.groups()
    canonical = ("-" if sign == "-" and digits != "0" else "") + digits
    return canonical if canonical == stripped or not is_exact else None


def number_of(stripped: str, *, is_exact: bool) -> str | None:
    if len(stripped) > MAX_DIGITS or (NUMBER if is_exact else LOOSE_NUMBER).fullmatch(stripped) is None:
        return None
    value = float(stripped)
    if value in (float("inf"), float("-inf")):
        return None
    if NUMBER.fullmatch(stripped) is not None:
        return stripped  # with the digits that were written: a float would round them
    return integer_of(stripped, is_exact=False) or json.dumps(value)


def nested_of(kind: str, stripped: str) -> str | None:
    if not stripped.startswith("{" if kind == "object" else "["):
        return None
    try:
        value = json.loads(stripped, parse_constant=_refuse)
    except (ValueError, RecursionError):
        pass
    else:
        return stripped if isinstance(value, dict if kind == "object" else list) else None
    try:
        value = json.loads(stripped, parse_constant=_refuse, strict=False)  # raw line ends within strings
    except (ValueError, RecursionError):
        return None
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict if kind == "object" else list) else None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


# ---- schemas ---------------------------------------------------------------------------------------------------------


class ToolSchema:
    """One tool's parameters. Each reference is followed once: no schema takes long, however it refers to itself."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[str, Kinds] = {}  # by reference; empty while it is followed

    @property
    def names(self) -> list[str]:
        properties = self._root.get("properties") if isinstance(self._root, Mapping) else None
        return list(properties) if isinstance(properties, Mapping) else []

    def type_of(self, parameter: str) -> ArgumentType:
        schema = self._declared(self._root, parameter, set(), MAX_DEPTH)
        kinds = self._kinds(schema, MAX_DEPTH)
        return ArgumentType(kinds) if kinds else UNDECLARED

    def _declared(self, schema: Any, name: str, followed: set[str], depth: int) -> Any:
        """The schema of a property, wherever an object's schema may declare it; None: it does not."""
        if not isinstance(schema, Mapping) or depth == 0:
            return None
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return properties[name]
        members = [member for word in ("allOf", "anyOf", "oneOf") for member in _list(schema.get(word))]
        if isinstance(reference := schema.get("$ref"), str) and reference not in followed:
            followed.add(reference)
            members.append(self._target(reference))
        for member in members:
            if (found := self._declared(member, name, followed, depth - 1)) is not None:
                return found
        others = schema.get("additionalProperties")
        return others if isinstance(others, Mapping) and others else None

    def _kinds(self, schema: Any, depth: int) -> Kinds:
        """What values a schema admits, by kind; empty: it does not say."""
        if not isinstance(schema, Mapping) or depth == 0:
            return frozenset()
        said = [_named(schema.get("type")), _of_values(schema)]
        if isinstance(reference := schema.get("$ref"), str):
            said.append(self._referenced(reference, depth))
        for word in ("anyOf", "oneOf"):
            members = [self._kinds(member, depth - 1) for member in _list(schema.get(word))]
            said.append(frozenset().union(*(kinds or TEXT for kinds in members)))
        said += [self._kinds(member, depth - 1) for member in _list(schema.get("allOf"))]
        kinds: Kinds = frozenset()
        for each in said:
            kinds = (_narrowed(kinds, each) or kinds) if kinds and each else kinds | each
        kinds = kinds or _implied(schema)
        return kinds | {"null"} if kinds and schema.get("nullable") is True else kinds

    def _referenced(self, reference: str, depth: int) -> Kinds:
        if reference not in self._known:
            self._known[reference] = frozenset()
            self._known[reference] = self._kinds(self._target(reference), depth - 1)
        return self._known[reference]

    def _target(self, reference: str) -> Any:
        """What a `$ref` within the same schema leads to; None: nothing."""
        at = self._root
        for step in reference.removeprefix("#").split("/")[1:] if reference.startswith("#") else ["#"]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(at, Mapping):
                at = at.get(key)
            elif isinstance(at, list) and key.isdecimal() and int(key) < len(at):
                at = at[int(key)]
            else:
                return None
        return at


def _narrowed(one: Kinds, other: Kinds) -> Kinds:
    both = one & other
    return both | {"integer"} if "integer" in one | other and "number" in one | other else both


def _named(word: Any) -> Kinds:
    words = [each.lower() for each in ([word] if isinstance(word, str) else _list(word)) if isinstance(each, str)]
    return frozenset(ALIASES.get(each, each) for each in words) & frozenset(KINDS)


def _of_values(schema: Mapping[str, Any]) -> Kinds:
    values = _list(schema.get("enum")) + ([schema["const"]] if "const" in schema else [])
    return frozenset(_kind_of_value(value) for value in values)


def _kind_of_value(value: Any) -> str:
    if value is None:
        return "null"
    for kind, of in (("boolean", bool), ("integer", int), ("number", float), ("string", str), ("object", Mapping)):
        if isinstance(value, of):
            return kind
    return "array"


def _implied(schema: Mapping[str, Any]) -> Kinds:
    """By keywords that have a meaning for one kind alone."""
    if "properties" in schema or "additionalProperties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema or "prefixItems" in schema else frozenset()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


ALIASES = {  # that schemas written by hand have for the kinds
    "str": "string",
    "text": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
    "none": "null",
}
