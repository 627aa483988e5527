"""Keywords of one schema, read with their types: a wrong type is an error with its place.

`null` stands for a keyword that was left out, as some writers of schemas do it; a strict schema has none.
"""

from __future__ import annotations

from typing import Any

from relevo.gateway.held.problems import Leniency, NotASchema, below
from relevo.gateway.held.schema.shapes import Sub, number_of

_NULL_IS_A_VALUE = frozenset(("const", "default", "example"))


class Keywords:
    """Of one schema that is an object."""

    def __init__(self, schema: dict[str, Any], place: str, leniency: Leniency) -> None:
        self.place = place
        self._members = schema
        self._leniency = leniency
        for name, value in schema.items():
            if value is None and name not in _NULL_IS_A_VALUE:
                leniency.not_held(place, name, "is null; leave it out")

    def has(self, name: str) -> bool:
        return name in self._members and (self._members[name] is not None or name in _NULL_IS_A_VALUE)

    def has_any(self, *names: str) -> bool:
        return any(map(self.has, names))

    def value(self, name: str) -> Any:
        return self._members[name]

    def count(self, name: str) -> int | None:
        if not self.has(name):
            return None
        value = number_of(self._members[name])
        if value is None or value < 0 or value != value.to_integral_value():
            raise NotASchema(self.place, name, "must be an integer that is not negative")
        return int(value)

    def texts(self, name: str) -> list[str]:
        value = self._members[name] if self.has(name) else []
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise NotASchema(self.place, name, "must be a list of texts")
        return value

    def sub(self, name: str) -> Sub | None:
        return self._as_sub(self._members[name], name) if self.has(name) else None

    def subs(self, name: str) -> list[Sub]:
        value = self._members[name]
        if not isinstance(value, list) or not value:
            raise NotASchema(self.place, name, "must be a list of schemas, and not empty")
        return [self._as_sub(item, name, index) for index, item in enumerate(value)]

    def named_subs(self, name: str) -> dict[str, Sub]:
        if not self.has(name):
            return {}
        value = self._members[name]
        if not isinstance(value, dict):
            raise NotASchema(self.place, name, "must be an object of schemas")
        return {key: self._as_sub(member, name, key) for key, member in value.items()}

    def _as_sub(self, value: Any, *path: str | int) -> Sub:
        place = below(self.place, *path)
        if value is None:
            self._leniency.not_held(place, str(path[-1]), "is null; write {} for anything")
            value = True
        if not isinstance(value, dict | bool):
            raise NotASchema(place, str(path[-1]), "must be a schema: an object, true or false")
        return Sub(True if value == {} else value, place)
