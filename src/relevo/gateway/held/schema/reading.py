"""From schemas to what they admit: alternatives of one kind each.

Combining keywords are worked out here, schemas of members are left for later, so recursion through members is no
recursion here; through a `$ref` alone it never ends, and is refused. Does not know how grammars are written.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from relevo.core.told_values import as_sent
from relevo.gateway.held.numbers import Numbers
from relevo.gateway.held.problems import Leniency, NotASchema, NotHeld
from relevo.gateway.held.schema import assertions
from relevo.gateway.held.schema.document import Document
from relevo.gateway.held.schema.keywords import BY_NAME, is_without_effect, why_not_held
from relevo.gateway.held.schema.members import Keywords
from relevo.gateway.held.schema.shapes import (
    ANYTHING,
    OF_TYPE,
    Alternative,
    Arrays,
    Literals,
    Members,
    Objects,
    Strings,
    Sub,
    canonical,
    distinct,
    number_of,
)

MAX_IN_PLACE_DEPTH = 60  # of combining keywords and references in each other
MAX_COMPARED_DEPTH = 4  # of members, to tell the branches of a `oneOf` apart

Alternatives = tuple[Alternative, ...]


class SchemaReader:
    """Of one document."""

    def __init__(self, document: Document, leniency: Leniency) -> None:
        self._document, self._leniency = document, leniency
        self._known: dict[int, Alternatives] = {}
        self._reading: list[int] = []
        self._kept: list[Any] = []  # keeps identities unique

    def alternatives(self, members: Members) -> Alternatives:
        """What matches all of `members`. Raises NotHeld."""
        found: Alternatives = ANYTHING
        for sub in members:
            found = self._both(found, self._of(sub), sub.place)
        return found

    def admits(self, members: Members, value: Any) -> bool:
        return any(self._admits(alternative, value) for alternative in self.alternatives(members))

    def _of(self, sub: Sub) -> Alternatives:
        schema = sub.schema
        if schema is True or schema == {}:
            return ANYTHING
        if schema is False:
            return ()
        key = id(schema)
        if key in self._known:
            return self._known[key]
        if key in self._reading:
            raise NotASchema(sub.place, "$ref", "refers to itself without anything between, so no value is of it")
        if len(self._reading) > MAX_IN_PLACE_DEPTH:
            raise NotASchema(sub.place, "$ref", f"more than {MAX_IN_PLACE_DEPTH} references and branches in each other")
        self._reading.append(key)
        try:
            found = self._read(schema, sub.place)
        finally:
            self._reading.pop()
        self._known[key] = found
        self._kept.append(schema)
        return found

    def _read(self, schema: dict[str, Any], place: str) -> Alternatives:
        keywords = Keywords(schema, place, self._leniency)
        self._leniency.spend(1 + len(schema), place)
        self._check_unheld(schema, keywords)
        found = self._of_types(keywords)
        if keywords.has("const"):
            found = self._both((Literals((keywords.value("const"),)),), found, place)
        if keywords.has("enum"):
            found = self._both((self._enum(keywords),), found, place)
        for name in ("$ref", "allOf"):
            if keywords.has(name):
                parts = (
                    [self._document.named(keywords.value(name), place)] if name == "$ref" else keywords.subs("allOf")
                )
                for part in parts:
                    found = self._both(found, self._of(part), place)
        for name in ("anyOf", "oneOf"):
            if keywords.has(name):
                found = self._both(found, self._branches(keywords, name), place)
        return found

    def _check_unheld(self, schema: dict[str, Any], keywords: Keywords) -> None:
        for name in schema:
            keyword = BY_NAME.get(name)
            if is_without_effect(name) or not keywords.has(name):
                continue
            if keyword is None or (keyword.rule == "not held" and name not in ("uniqueItems", "not")):
                self._leniency.not_held(keywords.place, name, why_not_held(name))
        if keywords.has("not") and self._excluded_types(keywords) is None:
            self._leniency.not_held(keywords.place, "not", why_not_held("not"))

    @staticmethod
    def _excluded_types(keywords: Keywords) -> frozenset[str] | None:
        """Of a `not` that names types alone; None: it says more."""
        excluded = keywords.value("not")
        if excluded in ({}, True):
            return frozenset(OF_TYPE)
        if excluded is False:
            return frozenset()
        if isinstance(excluded, dict) and set(excluded) == {"type"}:
            types = excluded["type"] if isinstance(excluded["type"], list) else [excluded["type"]]
            if all(isinstance(name, str) and name in OF_TYPE and name != "integer" for name in types):
                return frozenset((*types, "integer") if "number" in types else types)
        return None

    def _of_types(self, keywords: Keywords) -> Alternatives:
        types = self._types(keywords)
        if keywords.has("not"):
            excluded = self._excluded_types(keywords) or frozenset()
            types = [name for name in types if name not in excluded]
        found: list[Alternative] = []
        for name in types:
            match name:
                case "integer" | "number":
                    found.append(assertions.read_numbers(keywords, self._leniency, is_integer=name == "integer"))
                case "string":
                    found.append(assertions.read_strings(keywords, self._leniency))
                case "array":
                    found.append(assertions.read_arrays(keywords, self._leniency))
                case "object":
                    found.append(assertions.read_objects(keywords, self._leniency))
                case _:
                    found.append(OF_TYPE[name])
        return tuple(one for one in found if not (isinstance(one, Numbers) and one.is_empty))

    @staticmethod
    def _types(keywords: Keywords) -> list[str]:
        everything = [name for name in OF_TYPE if name != "integer"]
        if not keywords.has("type"):
            return everything
        types = keywords.value("type")
        types = types if isinstance(types, list) else [types]
        for name in types:
            if not isinstance(name, str) or name not in OF_TYPE:
                raise NotASchema(keywords.place, "type", f"{as_sent(name)} is no type; types are {', '.join(OF_TYPE)}")
        if keywords.has("nullable") and keywords.value("nullable") is True:
            types = [*types, "null"]
        if "number" in types:
            types = [name for name in types if name != "integer"]
        return list(dict.fromkeys(types))

    def _enum(self, keywords: Keywords) -> Literals:
        values = keywords.value("enum")
        if not isinstance(values, list) or not values:
            raise NotASchema(keywords.place, "enum", "must be a list of values, and not empty")
        return Literals(distinct(values))

    def _branches(self, keywords: Keywords, name: str) -> Alternatives:
        branches = [self._of(sub) for sub in keywords.subs(name)]
        if name == "oneOf":
            branches = _without_common_literals(branches)
            self._leniency.spend(len(branches) ** 2, keywords.place)
            for (first, left), (second, right) in itertools.combinations(enumerate(branches), 2):
                if not self._are_apart(left, right, MAX_COMPARED_DEPTH):
                    self._leniency.not_held(
                        keywords.place, name, f"a value may be of branches {first} and {second}; use 'anyOf'"
                    )
                    break
        return merged(itertools.chain.from_iterable(branches))

    def _both(self, first: Alternatives, second: Alternatives, place: str) -> Alternatives:
        if first is ANYTHING:
            return second
        if second is ANYTHING:
            return first
        found: list[Alternative] = []
        for left, right in itertools.product(first, second):
            self._leniency.spend(_num_parts(left) + _num_parts(right), place)
            found += self._common(left, right)
        return merged(found)

    def _common(self, left: Alternative, right: Alternative) -> Iterable[Alternative]:
        match left, right:
            case (Literals(values), Literals(others)):
                known = set(map(canonical, others))
                kept = tuple(value for value in values if canonical(value) in known)
                return [Literals(kept)] if kept else []
            case (Literals(values), other) | (other, Literals(values)):
                kept = tuple(value for value in values if self._admits(other, value))
                return [Literals(kept)] if kept else []
            case (Numbers(), Numbers()):
                both = left.both(right)
                return [] if both.is_empty else [both]
            case (Strings(), Strings()):
                return [left.both(right)]
            case (Arrays(), Arrays()):
                return [left.both(right)]
            case (Objects(), Objects()):
                return [left.both(right)]
        return []

    def _admits(self, alternative: Alternative, value: Any) -> bool:
        number = number_of(value)
        match alternative:
            case Literals(values):
                return canonical(value) in set(map(canonical, values))
            case Numbers():
                return number is not None and alternative.admits(number)
            case Strings():
                return isinstance(value, str) and alternative.admits(value)
            case Arrays(low=low, high=high):
                if not isinstance(value, list) or len(value) < low or (high is not None and len(value) > high):
                    return False
                return all(self.admits(alternative.item(index), item) for index, item in enumerate(value))
            case Objects(required=required, low=low, high=high, names=names):
                if not isinstance(value, dict) or len(value) < low or (high is not None and len(value) > high):
                    return False
                return all(name in value for name in required) and all(
                    self.admits(names, name) and self.admits(alternative.of_name(name), member)
                    for name, member in value.items()
                )

    def _are_apart(self, first: Sequence[Alternative], second: Sequence[Alternative], depth: int) -> bool:
        """Certain that no value is of both."""
        return all(self._have_none(left, right, depth) for left, right in itertools.product(first, second))

    def _have_none(self, left: Alternative, right: Alternative, depth: int) -> bool:
        self._leniency.spend(1, "")
        common = list(self._common(left, right))
        if not common:
            return True
        if isinstance(left, Strings | Numbers) or isinstance(common[0], Literals) or depth == 0:
            return False
        both = common[0]
        if isinstance(both, Arrays | Objects) and both.high is not None and both.low > both.high:
            return True
        if isinstance(both, Objects):
            return any(self._is_impossible(both.of_name(name), depth - 1) for name in both.required)
        if isinstance(both, Arrays):
            return any(self._is_impossible(both.item(index), depth - 1) for index in range(min(both.low, 8)))
        return False

    def _is_impossible(self, members: Members, depth: int) -> bool:
        try:
            found = self.alternatives(members)
        except NotHeld:
            return False  # told where that member is read
        return all(
            isinstance(one, Objects)
            and depth > 0
            and any(self._is_impossible(one.of_name(name), depth - 1) for name in one.required)
            for one in found
        )


def _num_parts(alternative: Alternative) -> int:
    match alternative:
        case Objects(layers, required):
            return 1 + len(layers) + len(required)
        case Literals(values):
            return 1 + len(values) // 100
        case Strings(nodes=nodes):
            return 1 + len(nodes)
    return 1


def _without_common_literals(branches: Sequence[Alternatives]) -> list[Alternatives]:
    """Single values that two branches list are of none of a `oneOf`."""
    counts = Counter(
        key
        for branch in branches
        for key in {canonical(value) for one in branch if isinstance(one, Literals) for value in one.values}
    )
    kept: list[Alternatives] = []
    for branch in branches:
        rest = [
            Literals(tuple(value for value in one.values if counts[canonical(value)] == 1))
            if isinstance(one, Literals)
            else one
            for one in branch
        ]
        kept.append(tuple(one for one in rest if not isinstance(one, Literals) or one.values))
    return kept


def merged(alternatives: Iterable[Alternative]) -> Alternatives:
    """With all literals in one, and none twice."""
    literals: list[Any] = []
    found: dict[int, Alternative] = {}
    simple: dict[Alternative, None] = {}
    for alternative in alternatives:
        if isinstance(alternative, Literals):
            literals += alternative.values
        elif isinstance(alternative, Numbers | Strings):
            simple[alternative] = None
        else:
            found[id(alternative)] = alternative
    first: list[Alternative] = [Literals(distinct(literals))] if literals else []
    return (*first, *simple, *found.values())
