"""How the values of a schema are spelled: as JSON does, or as Gemma's calls do, with bare names and own quotes.

Numbers, lists and objects are spelled alike. Does not know schemas beyond one string's.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from relevo.gateway.held import json_text
from relevo.gateway.held.lark import Items, Term, term
from relevo.gateway.held.numbers import Numbers, number_terms
from relevo.gateway.held.patterns.nodes import Node, json_literal, lexer_text, written
from relevo.gateway.held.schema.literals import JSON_WORDS, Words, literal
from relevo.gateway.held.schema.shapes import Alternative, Literals, Strings
from relevo.gateway.held.texts import FREE, Specials, marked, matched_up_to

_BARE_NAME = "[A-Za-z_][A-Za-z0-9_-]{0,63}"
_READ_AS_WORDS = ("true", "false", "null", "True", "False", "None")


class Notation(Protocol):
    def text(self, strings: Strings) -> Items: ...

    def values(self, values: Iterable[Any]) -> Sequence[Items]:
        """A row for each way to write one of them."""
        ...

    def member(self, name: str, colon: str) -> Items:
        """What stands before the value of a declared member."""
        ...

    def other_name(
        self, names: Strings, matching: Sequence[Node], excluded: Sequence[Node], declared: Sequence[str]
    ) -> Term:
        """Of a member that is not declared, whose name matches some patterns and not others."""
        ...


@dataclass(frozen=True, slots=True)
class JsonNotation:
    words: Words

    def text(self, strings: Strings) -> Items:
        matches = [f'"{written(node, in_json=True)}"' for node in strings.nodes]
        if not matches or strings.low or strings.high is not None:
            matches.append(f'"{json_text.CHARACTER}{_counts(strings)}"')
        return [Term(tuple(matches))]

    def values(self, values: Iterable[Any]) -> Sequence[Items]:
        return [[term("|".join(lexer_text(literal(value, self.words)) for value in values))]]

    def member(self, name: str, colon: str) -> Items:
        return [_json_member(name, colon)]

    def other_name(
        self, names: Strings, matching: Sequence[Node], excluded: Sequence[Node], declared: Sequence[str]
    ) -> Term:
        matches = [f'"{written(node, in_json=True)}"' for node in (*matching, *names.nodes)]
        if not matches or names.low or names.high is not None:
            matches.append(f'"{json_text.NAME_CHARACTER}{_counts(names)}"')
        excludes = [f'"{written(node, in_json=True)}"' for node in excluded]
        known = "|".join(lexer_text(json_literal(name)) for name in declared)
        return Term(tuple(matches), (*excludes, *((known,) if declared else ())))


@dataclass(frozen=True, slots=True)
class GemmaNotation:
    quote: str
    specials: Specials

    def text(self, strings: Strings) -> Items:
        """As it is, without the quote in it."""
        opened = marked(self.quote, self.specials)
        return [
            *opened,
            *matched_up_to(plain_matches(strings), self.quote, self.specials, may_be_empty=strings.admits("")),
        ]

    def values(self, values: Iterable[Any]) -> Sequence[Items]:
        """Those that hold the quote cannot be written."""
        rows = (self._literal(value) for value in values)
        return [marked(row, self.specials) for row in rows if row is not None]

    def member(self, name: str, colon: str) -> Items:
        return [*marked(self._name(name), self.specials), term(colon)]

    def other_name(
        self, names: Strings, matching: Sequence[Node], excluded: Sequence[Node], declared: Sequence[str]
    ) -> Term:
        matches = [_BARE_NAME, *(written(node, in_json=False) for node in (*matching, *names.nodes))]
        if names.low or names.high is not None:
            matches.append(f"(?s:.){_counts(names)}")
        known = "|".join(map(lexer_text, (*_READ_AS_WORDS, *declared)))
        return Term(tuple(matches), (*(written(node, in_json=False) for node in excluded), known))

    def _name(self, name: str) -> str:
        is_bare = re.fullmatch(_BARE_NAME, name) is not None and name not in _READ_AS_WORDS
        return name if is_bare else f"{self.quote}{name}{self.quote}"

    def _literal(self, value: Any) -> str | None:
        match value:
            case str():
                return None if self.quote in value else f"{self.quote}{value}{self.quote}"
            case list():
                items = [self._literal(item) for item in value]
                return None if None in items else f"[{','.join(filter(None, items))}]"
            case dict():
                members = [(self._name(name), self._literal(member)) for name, member in value.items()]
                if any(self.quote in name for name in value) or any(member is None for _, member in members):
                    return None
                return f"{{{','.join(f'{name}:{member}' for name, member in members)}}}"
        return literal(value, JSON_WORDS)


@lru_cache(maxsize=4096)
def _json_member(name: str, colon: str) -> Term:
    return term(lexer_text(json_literal(name)) + colon)


def plain_matches(strings: Strings) -> list[str]:
    """Regular expressions of a text that stands without escapes: all of them match it."""
    matches = [written(node, in_json=False) for node in strings.nodes]
    if strings.low or strings.high is not None:
        matches.append(f"(?s:.){_counts(strings)}")
    return matches or [FREE]


def bare_matches(alternatives: Sequence[Alternative]) -> list[str]:
    """The same, of a text or what else there may be in its place: literals, numbers. Lists and objects set it free."""
    ways: list[list[str]] = []
    words: list[str] = []
    for one in alternatives:
        match one:
            case Strings():
                ways.append(plain_matches(one))
            case Literals(values):
                words += [value if isinstance(value, str) else literal(value, JSON_WORDS) for value in values]
            case Numbers():
                ways.append(number_terms(one))
            case _:
                return [FREE]
    if words:
        ways.append(["|".join(map(lexer_text, words))])
    if [FREE] in ways:
        return [FREE]
    return ["|".join(f"(?:{match})" for match in matches) for matches in itertools.product(*ways)]


def _counts(strings: Strings) -> str:
    return f"{{{strings.low},{'' if strings.high is None else strings.high}}}"
