"""The rules of objects: declared members in their order, then others, as many as there may be.

A state is the next declared member and how many were written, as far as that matters. Others have names that are not
declared; since a grammar does not remember names, of them only one is sure to count for `minProperties`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from relevo.gateway.held import json_text
from relevo.gateway.held.json_text import Blanks
from relevo.gateway.held.lark import Item, Items, Ref, Rules, Term, Times, term
from relevo.gateway.held.patterns.nodes import lexer_text
from relevo.gateway.held.problems import Leniency, NotHeld
from relevo.gateway.held.schema.notation import Notation
from relevo.gateway.held.schema.reading import SchemaReader
from relevo.gateway.held.schema.shapes import Literals, Members, Objects, Strings

MAX_OPTIONAL = 400  # measured: with 700 the library's parser has too many ways to go on
MAX_STATES = 20_000  # arbitrary
_ANY_ARGUMENT = "[A-Za-z_][A-Za-z0-9_]{0,63}="


@dataclass(frozen=True, slots=True)
class Member:
    name: Items  # with what stands between it and the value
    value: Items
    is_required: bool


class ObjectRules:
    """Of one schema's grammar."""

    def __init__(
        self,
        rules: Rules,
        blanks: Blanks,
        notation: Notation,
        reader: SchemaReader,
        leniency: Leniency,
        value_of: Callable[[Members], Ref],
    ) -> None:
        self._rules, self._blanks, self._reader, self._leniency = rules, blanks, reader, leniency
        self._value_of, self._notation = value_of, notation
        self._comma = term(json_text.comma(blanks))

    def items(self, objects: Objects, place: str) -> Items | None:
        """None: no object is of it. Raises NotHeld."""
        names = self._reader.alternatives(objects.names)
        declared, is_possible = self._declared(objects, names, json_text.colon(self._blanks))
        if not is_possible:
            return None
        others = [] if objects.high == 0 else list(self._others(objects, names, declared))
        low = self._low(objects, declared, others, place)
        if objects.high is not None and low > objects.high:
            return None
        start = self._states(list(declared.values()), others, low, objects.high, place, self._comma)
        if start is None:
            return None
        return [term(json_text.opening("{", self._blanks)), start, term(json_text.closing("}", self._blanks))]

    def arguments(self, objects: Objects, place: str) -> Items | None:
        """The members as code names arguments. Others than the declared ones only where none is declared."""
        names = self._reader.alternatives(objects.names)
        declared, is_possible = self._declared(objects, names, None)
        if not is_possible:
            return None
        members = objects.of_class(frozenset())
        others: list[Items] = []
        if not declared and not any(sub.schema is False for sub in members):
            others.append([term(_ANY_ARGUMENT), self._value_of(members)])
        low = sum(member.is_required for member in declared.values())
        start = self._states(list(declared.values()), others, low, None, place, term(", ?"))
        return None if start is None else [start]

    def _declared(self, objects: Objects, names: Sequence[object], colon: str | None) -> tuple[dict[str, Member], bool]:
        """In order; and whether all that are required may be there. `colon`: of JSON's; None: NAME=."""
        listed = [value for one in names if isinstance(one, Literals) for value in one.values if isinstance(value, str)]
        found: dict[str, Member] = {}
        for name in dict.fromkeys([*objects.declared, *(listed if objects.names else ())]):
            members, is_required = objects.of_name(name), name in objects.required
            is_allowed = self._reader.admits(objects.names, name) and not any(sub.schema is False for sub in members)
            if is_allowed:
                before = [term(f"{lexer_text(name)}=")] if colon is None else self._notation.member(name, colon)
                found[name] = Member(before, [self._value_of(members)], is_required)
            elif is_required:
                return found, False
        return found, True

    def _others(self, objects: Objects, names: Sequence[object], declared: dict[str, Member]) -> Iterator[Items]:
        """Name and value of members that are not declared, one for each set of patterns that their names match."""
        patterns = objects.patterns
        known = dict.fromkeys([*objects.declared, *declared])
        for number in range(len(patterns) + 1):
            for matching in itertools.combinations(patterns, number):
                members = objects.of_class(frozenset(matching))
                if any(sub.schema is False for sub in members):
                    continue
                shapes = [one for one in names if isinstance(one, Strings)]
                for shape in shapes:
                    excluded = [node for node in patterns if node not in matching]
                    name = self._notation.other_name(shape, matching, excluded, list(known))
                    yield [name, term(json_text.colon(self._blanks)), self._value_of(members)]

    def _low(self, objects: Objects, declared: dict[str, Member], others: Sequence[Items], place: str) -> int:
        """How many members there have to be."""
        sure = len(declared) + (1 if others else 0)
        num_required = sum(member.is_required for member in declared.values())
        if objects.low <= sure:
            return max(objects.low, num_required)
        if others:
            self._leniency.not_held(
                place, "minProperties", f"{sure} members at most are sure to have names of their own"
            )
            return sure
        return objects.low  # more than there can be

    def _states(
        self,
        declared: list[Member],
        others: list[Items],
        low: int,
        high: int | None,
        place: str,
        comma: Term,
    ) -> Ref | None:
        num_required = sum(member.is_required for member in declared)
        if num_required > (high if high is not None else num_required) or low > len(declared) + bool(others):
            return None
        if len(declared) - num_required > MAX_OPTIONAL:
            raise NotHeld(place, "properties", f"more than {MAX_OPTIONAL} that are not required")
        if high is not None and high >= len(declared) and not others:
            high = None
        counts = low > num_required or high is not None
        most = max(1, low, high or 0) if counts else 1
        if most * len(declared) > MAX_STATES:
            raise NotHeld(place, "maxProperties", "too many ways to choose the members")
        if not counts:
            low = 0
        return _StateRules(self._rules, comma, declared, others, low, high, most).start()


class _StateRules:
    def __init__(
        self,
        rules: Rules,
        comma: Term,
        declared: list[Member],
        others: list[Items],
        low: int,
        high: int | None,
        most: int,
    ) -> None:
        self._rules, self._comma, self._declared = rules, comma, declared
        self._other = rules.define(others, "o") if others else None
        self._low, self._high, self._most = low, high, most
        self._known: dict[tuple[int, int], Ref] = {}

    def start(self) -> Ref:
        """Made from the last state to the first, so that nothing here recurs."""
        for index in range(len(self._declared), -1, -1):
            for count in range(min(index, self._most) + 1):
                rows = self._end(count) if index == len(self._declared) else self._member(index, count)
                self._known[index, count] = self._rules.define(rows, "m")
        return self._known[0, 0]

    def _member(self, index: int, count: int) -> list[Items]:
        member, rows = self._declared[index], list[Items]()
        if not member.is_required:
            rows.append([self._known[index + 1, count]])
        if self._high is None or count < self._high:
            after = self._known[index + 1, min(count + 1, self._most)]
            rows.append([*self._before(count), *member.name, *member.value, after])
        return rows

    def _end(self, count: int) -> list[Items]:
        missing = max(0, self._low - count)
        if self._other is None or (self._high is not None and count >= self._high):
            return [] if missing else [[]]
        if missing > 1:
            return []
        most = None if self._high is None else self._high - count
        more: Items = [self._comma, self._other]
        if count:
            return [[Times(more, missing, most)]]
        rows: list[Items] = [] if missing else [[]]
        rows.append([self._other, Times(more, 0, None if most is None else most - 1)])
        return rows

    def _before(self, count: int) -> list[Item]:
        return [self._comma] if count else []
