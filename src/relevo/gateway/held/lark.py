"""Grammars as data, and their text in llguidance's Lark: rules of rows of terms, references and repetitions.

Owns which rules can ever end: what cannot is left out, and a grammar whose start cannot is none. A term is one regular
expression, or the conjunction of several, and is one lexeme. Source: the syntax
page of llguidance's documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Term:
    """All of `matches` and none of `excludes`, each a regular expression."""

    matches: tuple[str, ...]
    excludes: tuple[str, ...] = ()
    is_lazy: bool = False  # ends as soon as it can


@dataclass(frozen=True, slots=True)
class Raw:
    """A piece of the grammar's text as it is, such as a special token; matches something."""

    text: str


@dataclass(frozen=True, slots=True)
class Ref:
    rule: str


@dataclass(frozen=True, slots=True)
class Times:
    items: Sequence[Item]
    low: int
    high: int | None


Item = Term | Raw | Ref | Times
Items = Sequence[Item]


def term(*matches: str) -> Term:
    return Term(matches)


@dataclass(slots=True)
class Rules:
    """One grammar, as it is built. `is_empty`: whether no text is of a term."""

    is_empty: Callable[[Term], bool]
    rules: dict[str, list[Items]] = field(default_factory=dict)
    terms: dict[Term, str] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def new(self, hint: str = "r") -> str:
        name = f"{hint}{len(self.rules)}"
        self.rules[name] = []
        return name

    def add(self, rule: str, *alternatives: Items) -> None:
        self.rules[rule].extend(alternatives)

    def define(self, alternatives: Iterable[Items], hint: str = "r") -> Ref:
        name = self.new(hint)
        self.add(name, *alternatives)
        return Ref(name)

    def can_end(self, rule: str) -> bool:
        self._find_ended()
        return rule in self._ended

    def text(self, start: str) -> str:
        """As llguidance's Lark, of what is reached from `start`, which can end."""
        self._find_ended()
        lines, waiting, seen = [f"start: {start}"], [start], {start}
        while waiting:
            name = waiting.pop()
            rows = [row for row in self.rules[name] if self._ends(row)]
            lines.append(f"{name}: " + " | ".join(self._row(row) or '""' for row in rows))
            for found in (ref for row in rows for ref in _refs(row)):
                if found in self._ended and found not in seen:
                    seen.add(found)
                    waiting.append(found)
        for found_term, name in self.terms.items():
            lines.append(f"{name.upper()}: {_term_text(found_term)}")
            if found_term.is_lazy:
                lines.append(f"{name}[lazy]: {name.upper()}")
        return "\n".join(lines) + "\n"

    def _find_ended(self) -> None:
        """The least fixed point: which rules have a text."""
        users: dict[str, set[str]] = {}
        for name, rows in self.rules.items():
            for row in rows:
                for ref in _refs(row):
                    users.setdefault(ref, set()).add(name)
        self._ended, waiting = set(), list(self.rules)
        while waiting:
            name = waiting.pop()
            if name not in self._ended and any(self._ends(row) for row in self.rules[name]):
                self._ended.add(name)
                waiting.extend(users.get(name, ()))

    def _ends(self, items: Items) -> bool:
        return all(self._item_ends(item) for item in items)

    def _item_ends(self, item: Item) -> bool:
        match item:
            case Ref(rule):
                return rule in self._ended
            case Times(items, low):
                return low == 0 or self._ends(items)
            case Term():
                return item in self.terms or not self.is_empty(item)
        return True

    def _row(self, items: Items) -> str:
        return " ".join(filter(None, map(self._item, items)))

    def _item(self, item: Item) -> str:
        match item:
            case Ref(rule):
                return rule
            case Raw(text):
                return text
            case Times(items, low, high):
                if high == 0 or not self._ends(items):
                    return ""
                return f"({self._row(items)}){{{low},{'' if high is None else high}}}"
            case Term():
                if item not in self.terms:
                    self.terms[item] = f"{'t' if item.is_lazy else 'T'}{len(self.terms)}"
                return self.terms[item]


def _refs(items: Items) -> Iterable[str]:
    for item in items:
        match item:
            case Ref(rule):
                yield rule
            case Times(inner):
                yield from _refs(inner)


def _term_text(found: Term) -> str:
    parts = [f"/{expression}/" for expression in found.matches] + [f"~/{expression}/" for expression in found.excludes]
    return " & ".join(parts)
