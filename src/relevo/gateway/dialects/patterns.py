"""Patterns over text that is still coming: besides "matches" and "does not", they say "might, with more text".

A pattern is a sequence of literals and of regular expressions for what stands between them. Only regular expressions
that match every beginning of what they match may be used: then whether more text could help is one match too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of characters, as a regular expression that matches all of its own beginnings, or nothing."""

    regex: str


BLANKS = Run(r"\s{0,256}")  # bounded, so that what is held back is; arbitrary

Atom = str | Run


class Pattern:
    """Any of some sequences, the first that matches first."""

    def __init__(self, *sequences: Sequence[Atom]) -> None:
        self._whole = [re.compile("".join(_regex(atom) for atom in sequence)) for sequence in sequences]
        self._begun = [re.compile(_beginning(sequence)) for sequence in sequences]

    def match(self, text: str, at: int) -> re.Match[str] | None:
        return next((found for each in self._whole if (found := each.match(text, at)) is not None), None)

    def may_match(self, text: str, at: int) -> bool:
        """Whether all of the text from there on is the beginning of something that matches."""
        return any(each.match(text, at) is not None for each in self._begun)


def _regex(atom: Atom) -> str:
    return re.escape(atom) if isinstance(atom, str) else atom.regex


def _beginning(sequence: Sequence[Atom]) -> str:
    tail = ""
    for atom in reversed(sequence):
        if isinstance(atom, Run):
            tail = f"(?:{atom.regex}{tail})?" if tail else f"(?:{atom.regex})?"
        else:
            shorter = "|".join(re.escape(atom[:length]) for length in range(len(atom) - 1, 0, -1))
            whole = re.escape(atom) + tail
            tail = f"(?:{whole}|{shorter})?" if shorter else f"(?:{whole})?"
    return tail + r"\Z"
