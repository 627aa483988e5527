"""The grammar of the JSON texts that a schema admits.

A rule for each set of schemas that one value has to match, made once, so recursion in a schema is recursion in the
grammar. What can never end, or is of no text, is left out; if that is all, the schema is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

from relevo.gateway.held import json_text
from relevo.gateway.held.json_text import Blanks
from relevo.gateway.held.lark import Items, Raw, Ref, Rules, Term, Times, term
from relevo.gateway.held.numbers import Numbers, number_terms
from relevo.gateway.held.problems import Leniency, NotASchema, NotHeld
from relevo.gateway.held.schema.document import Document
from relevo.gateway.held.schema.literals import JSON_WORDS, literal
from relevo.gateway.held.schema.notation import JsonNotation, Notation
from relevo.gateway.held.schema.objects import ObjectRules
from relevo.gateway.held.schema.reading import SchemaReader
from relevo.gateway.held.schema.shapes import Alternative, Arrays, Literals, Members, Objects, Strings, Sub

MAX_PATTERNS = 4  # of one text; the compiler may take minutes over a conjunction of eleven
_EXACT = Decimal(2**53)  # the library's own arithmetic, used for multiples alone
_MULTIPLE_LIMIT = Decimal(10**15)


class SchemaGrammar:
    """Adds the rules of one schema to a grammar."""

    def __init__(
        self, rules: Rules, schema: Any, leniency: Leniency, blanks: Blanks, notation: Notation | None = None
    ) -> None:
        """Raises NotHeld: the bounds."""
        self._rules, self._leniency, self._blanks = rules, leniency, blanks
        self._document = Document(schema)
        self._reader = SchemaReader(self._document, leniency)
        self._notation = notation or JsonNotation(JSON_WORDS)
        self._objects = ObjectRules(rules, blanks, self._notation, self._reader, leniency, self._value_of)
        self._known: dict[tuple[int, ...], str] = {}
        self._waiting: list[tuple[Members, str]] = []
        self._places: dict[str, str] = {}
        self._comma = term(json_text.comma(blanks))

    def whole(self) -> Ref:
        """What starts a text of the schema. Raises NotHeld."""
        return self._finished((self._document.root,), "")

    def of_object(self) -> Ref:
        """As `whole`, for objects alone."""
        return self._finished((self._document.root, Sub({"type": "object"}, "")), "")

    def object_shape(self) -> Objects | None:
        """The one shape of objects that the schema admits; None: it has several, or none. Raises NotHeld."""
        found = [one for one in self._reader.alternatives((self._document.root,)) if isinstance(one, Objects)]
        return found[0] if len(found) == 1 else None

    def of_members(self, members: Members, place: str) -> Ref:
        return self._finished(members, place)

    def alternatives(self, members: Members) -> tuple[Alternative, ...]:
        return self._reader.alternatives(members)

    def of_arguments(self) -> Ref:
        """Its members as the arguments of a call in code: NAME=VALUE, of declared names. Raises NotHeld."""
        objects = self.object_shape()
        items = None if objects is None else self._objects.arguments(objects, "")
        if items is None:
            raise NotHeld("", "type", "in this family's form arguments are an object of one shape")
        return self._worked(self._rules.define([items], "a"), "")

    def _finished(self, members: Members, place: str) -> Ref:
        return self._worked(self._value_of(members), place)

    def _worked(self, found: Ref, place: str) -> Ref:
        while self._waiting:
            waiting, rule = self._waiting.pop()
            at = next((sub.place for sub in waiting), place)
            self._places[rule] = at
            self._leniency.spend(1, at)
            for alternative in self._reader.alternatives(waiting):
                self._rules.add(rule, *self._rows(alternative, at))
        if not self._rules.can_end(found.rule):
            self._refuse(found.rule)
        return found

    def _refuse(self, rule: str) -> None:
        empty = next((self._places[name] for name in self._places if not self._rules.rules[name]), None)
        if empty is not None:
            raise NotASchema(empty, "type", "no value is of it, and there has to be one")
        raise NotASchema(self._places.get(rule, ""), "required", "no value of it can ever end")

    def _value_of(self, members: Members) -> Ref:
        members = tuple(sub for sub in members if sub.schema is not True)
        key = tuple(sorted(id(sub.schema) for sub in members))
        if key not in self._known:
            self._known[key] = self._rules.new("v")
            self._waiting.append((members, self._known[key]))
        return Ref(self._known[key])

    def _rows(self, alternative: Alternative, place: str) -> Iterator[Items]:
        match alternative:
            case Literals(values):
                self._leniency.spend(sum(len(literal(value, JSON_WORDS)) for value in values) // 10, place)
                yield from self._notation.values(values)
            case Numbers():
                yield [self._number(alternative, place)]
            case Strings():
                if len(alternative.nodes) > MAX_PATTERNS:
                    why = f"more than {MAX_PATTERNS} patterns and formats of one text"
                    self._leniency.not_held(place, "pattern", why)
                    alternative = replace(alternative, nodes=alternative.nodes[:MAX_PATTERNS])
                if alternative.high is None or alternative.low <= alternative.high:
                    yield self._notation.text(alternative)
            case Arrays():
                yield from self._arrays(alternative)
            case Objects():
                items = self._objects.items(alternative, place)
                if items is not None:
                    yield items

    def _number(self, numbers: Numbers, place: str) -> Term | Raw:
        step = numbers.step
        if step is None or (numbers.is_integer and step == 1):
            return Term(tuple(number_terms(numbers)))
        if not numbers.is_integer and step.numerator == 1 and set(str(step.denominator)) <= {"1", "0"}:
            num_behind = len(str(step.denominator)) - 1
            behind = rf"(?:\.[0-9]{{1,{num_behind}}})?" if num_behind else ""
            return Term((*number_terms(numbers), rf"-?(?:0|[1-9][0-9]{{0,16}}){behind}"))
        low = max(numbers.low, -_MULTIPLE_LIMIT) if numbers.low is not None else -_MULTIPLE_LIMIT
        high = min(numbers.high, _MULTIPLE_LIMIT) if numbers.high is not None else _MULTIPLE_LIMIT
        if abs(low) >= _EXACT or abs(high) >= _EXACT or step >= 2**53:
            self._leniency.not_held(place, "multipleOf", "beside limits from 2^53 on it cannot be held")
            return self._number(Numbers(numbers.is_integer, numbers.low, numbers.high), place)
        schema = {
            "type": "integer" if numbers.is_integer else "number",
            "multipleOf": step.numerator if step.denominator == 1 else float(step),
            "exclusiveMinimum" if numbers.excludes_low else "minimum": float(low) if low % 1 else int(low),
            "exclusiveMaximum" if numbers.excludes_high else "maximum": float(high) if high % 1 else int(high),
        }
        return Raw("%json " + json.dumps(schema))

    def _arrays(self, arrays: Arrays) -> Iterator[Items]:
        if arrays.high is not None and arrays.low > arrays.high:
            return
        prefix = [self._value_of(members) for members in arrays.prefix[: arrays.high]]
        after = self._rest(arrays, len(prefix))
        for index in range(len(prefix) - 1, -1, -1):
            rows: list[Items] = [[]] if index >= arrays.low else []
            rows.append([*([self._comma] if index else []), prefix[index], after])
            after = self._rules.define(rows, "i")
        yield [term(json_text.opening("[", self._blanks)), after, term(json_text.closing("]", self._blanks))]

    def _rest(self, arrays: Arrays, num_before: int) -> Ref:
        """The items behind the first ones."""
        low = max(0, arrays.low - num_before)
        high = None if arrays.high is None else arrays.high - num_before
        if high == 0:
            return self._rules.define([[]], "i")
        item = self._value_of(arrays.rest)
        more: Items = [self._comma, item]
        if num_before:
            return self._rules.define([[Times(more, low, high)]], "i")
        rows: list[Items] = [[]] if low == 0 else []
        rows.append([item, Times(more, max(0, low - 1), None if high is None else high - 1)])
        return self._rules.define(rows, "i")
