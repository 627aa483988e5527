"""What a schema admits, as alternatives of one kind each, and what two of them have in common.

An alternative is a few literals (null and booleans too), or numbers, strings, arrays or objects of one shape. Schemas
of members are not read here: a `Members` is the list of all the schemas that a member has to match.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from relevo.gateway.held.numbers import Numbers, decimal_of
from relevo.gateway.held.patterns.matching import matches
from relevo.gateway.held.patterns.nodes import Node


@dataclass(frozen=True, slots=True, eq=False)
class Sub:
    """A schema in its place."""

    schema: Any  # a dict or a bool
    place: str


Members = tuple[Sub, ...]  # all of them; none: anything


def joined(first: Members, second: Members) -> Members:
    known = {id(sub.schema) for sub in first if isinstance(sub.schema, dict)}
    return (*first, *(sub for sub in second if sub.schema is not True and id(sub.schema) not in known))


@dataclass(frozen=True, slots=True)
class Literals:
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Strings:
    low: int = 0
    high: int | None = None
    nodes: tuple[Node, ...] = ()  # of the whole text

    def both(self, other: Strings) -> Strings:
        return Strings(
            max(self.low, other.low), _least(self.high, other.high), tuple(dict.fromkeys(self.nodes + other.nodes))
        )

    def admits(self, text: str) -> bool:
        if len(text) < self.low or (self.high is not None and len(text) > self.high):
            return False
        return all(matches(node, text) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Arrays:
    prefix: tuple[Members, ...] = ()
    rest: Members = ()
    low: int = 0
    high: int | None = None

    def item(self, index: int) -> Members:
        return self.prefix[index] if index < len(self.prefix) else self.rest

    def both(self, other: Arrays) -> Arrays:
        num_prefix = max(len(self.prefix), len(other.prefix))
        return Arrays(
            tuple(joined(self.item(index), other.item(index)) for index in range(num_prefix)),
            joined(self.rest, other.rest),
            max(self.low, other.low),
            _least(self.high, other.high),
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """One schema's say in which members an object has."""

    properties: dict[str, Sub]
    patterns: tuple[tuple[Node, Sub], ...] = ()
    rest: Sub | None = None  # None: anything

    def of_name(self, name: str) -> Members:
        found = [self.properties[name]] if name in self.properties else []
        found += [sub for node, sub in self.patterns if matches(node, name)]
        return tuple(found) if found or self.rest is None else (self.rest,)

    def of_class(self, matching: frozenset[Node]) -> Members:
        """Of names that are not declared and match those patterns alone."""
        found = tuple(sub for node, sub in self.patterns if node in matching)
        return found if found or self.rest is None else (self.rest,)


@dataclass(frozen=True, slots=True)
class Objects:
    layers: tuple[Layer, ...] = ()
    required: tuple[str, ...] = ()
    names: tuple[Sub, ...] = ()  # that every name has to match
    low: int = 0
    high: int | None = None

    def both(self, other: Objects) -> Objects:
        return Objects(
            self.layers + other.layers,
            tuple(dict.fromkeys(self.required + other.required)),
            joined(self.names, other.names),
            max(self.low, other.low),
            _least(self.high, other.high),
        )

    def of_name(self, name: str) -> Members:
        found: Members = ()
        for layer in self.layers:
            found = joined(found, layer.of_name(name))
        return found

    def of_class(self, matching: frozenset[Node]) -> Members:
        found: Members = ()
        for layer in self.layers:
            found = joined(found, layer.of_class(matching))
        return found

    @property
    def declared(self) -> list[str]:
        """In the order in which they are written."""
        names = dict.fromkeys(name for layer in self.layers for name in layer.properties)
        return list(names | dict.fromkeys(self.required))

    @property
    def patterns(self) -> list[Node]:
        return list(dict.fromkeys(node for layer in self.layers for node, _ in layer.patterns))


Alternative = Literals | Numbers | Strings | Arrays | Objects
ANYTHING: tuple[Alternative, ...] = (Literals((None, True, False)), Numbers(), Strings(), Arrays(), Objects())
OF_TYPE: dict[str, Alternative] = {
    "null": Literals((None,)),
    "boolean": Literals((True, False)),
    "integer": Numbers(is_integer=True),
    "number": Numbers(),
    "string": Strings(),
    "array": Arrays(),
    "object": Objects(),
}


def canonical(value: Any) -> str:
    """Equal for what JSON Schema calls equal: 1 and 1.0, and objects whatever their order."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = decimal_of(value)
        return str(int(number)) if number == number.to_integral_value() and abs(number) < 10**400 else str(number)
    if isinstance(value, list):
        return f"[{','.join(map(canonical, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(sorted(json.dumps(name) + ':' + canonical(member) for name, member in value.items()))}}}"
    return json.dumps(value)


def distinct(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple({canonical(value): value for value in reversed(values)}.values())[::-1]


def number_of(value: Any) -> Decimal | None:
    return decimal_of(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _least(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else min(first, second)
