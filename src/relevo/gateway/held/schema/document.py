"""A schema as a document: within bounds, and what its references name.

Owns the bounds and the reading of JSON pointers. Does not know what keywords mean.
"""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import unquote

from relevo.gateway.held.problems import NotASchema, NotHeld, below
from relevo.gateway.held.schema.shapes import Sub

MAX_DEPTH = 128  # of lists and objects in each other: about 60 levels of `properties`
MAX_NODES = 150_000  # arbitrary
MAX_TEXT_CHARS = 2 * 2**20  # arbitrary; of all names and texts


class Document:
    """Raises NotASchema if it is out of bounds."""

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._found: dict[str, Sub] = {}
        _check_bounds(schema)

    @property
    def root(self) -> Sub:
        return Sub(self._root, "")

    def named(self, reference: Any, place: str) -> Sub:
        """What a `$ref` names. Raises NotHeld for what is not in this document."""
        if not isinstance(reference, str):
            raise NotASchema(place, "$ref", "must be a text")
        own = self._root.get("$id") if isinstance(self._root, dict) else None
        pointer = reference.removeprefix(own.removesuffix("#")) if isinstance(own, str) and own else reference
        if pointer in ("", "#"):
            return self.root
        if not pointer.startswith("#/"):
            raise NotHeld(place, "$ref", f"{reference!r} is not in this schema; only '#/...' can be followed")
        if pointer not in self._found:
            self._found[pointer] = self._at(unquote(pointer[1:]), reference, place)
        return self._found[pointer]

    def _at(self, pointer: str, reference: str, place: str) -> Sub:
        value = self._root
        for token in pointer[1:].split("/"):
            name = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
                value = value[int(name)]
            else:
                raise NotASchema(place, "$ref", f"{reference!r} names nothing in this schema")
        if not isinstance(value, dict | bool):
            raise NotASchema(place, "$ref", f"{reference!r} names no schema")
        return Sub(value, pointer)


def _check_bounds(schema: Any) -> None:
    num_nodes = num_chars = 0
    waiting: list[tuple[Any, str, int]] = [(schema, "", 0)]
    while waiting:
        value, place, depth = waiting.pop()
        num_nodes += 1
        if depth > MAX_DEPTH:
            raise NotASchema(place, "$schema", f"nested deeper than {MAX_DEPTH} levels of JSON; use '$ref'")
        if isinstance(value, dict):
            num_chars += sum(map(len, value))
            waiting += [(member, below(place, name), depth + 1) for name, member in value.items()]
        elif isinstance(value, list):
            if all(isinstance(item, str) for item in value):
                num_nodes, num_chars = num_nodes + len(value), num_chars + sum(map(len, value))
            else:
                waiting += [(item, below(place, index), depth + 1) for index, item in enumerate(value)]
        elif isinstance(value, str):
            num_chars += len(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise NotASchema(place, "$schema", "a number is too large")
        if num_nodes > MAX_NODES or num_chars > MAX_TEXT_CHARS:
            raise NotASchema(
                place, "$schema", f"more than {MAX_NODES} values, or {MAX_TEXT_CHARS} characters; make it smaller"
            )
