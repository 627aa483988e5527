"""Finding marks in text that comes in pieces: where the first one begins, and what may still become one.

Knows no format. Literal text that spells a mark is the mark.
"""

from __future__ import annotations

from collections.abc import Iterable

BLANKS = " \t\r\n"


class Marks:
    """Some texts, none of them empty."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(dict.fromkeys(text for text in texts if text))
        self._firsts = frozenset(text[0] for text in self.texts)
        self._longest = max(map(len, self.texts), default=0)

    def cannot_begin_in(self, text: str) -> bool:
        """Quickly told, of short texts."""
        return self._firsts.isdisjoint(text)

    def find(self, text: str, start: int = 0, end: int | None = None) -> tuple[int, str]:
        """Where the first of them begins, and which: the longest of those that begin there. -1: none is there."""
        best, found = -1, ""
        for mark in self.texts:
            place = text.find(mark, start, end)
            if place >= 0 and (best < 0 or place < best or (place == best and len(mark) > len(found))):
                best, found = place, mark
        return best, found

    def at(self, text: str, place: int) -> str:
        """The longest one that stands there; empty: none."""
        return max((mark for mark in self.texts if text.startswith(mark, place)), key=len, default="")

    def begins_at(self, text: str, place: int) -> bool:
        """Whether all that is known from `place` on is the beginning of one, and no more of it."""
        num_known = len(text) - place
        return any(num_known < len(mark) and text.endswith(mark[:num_known]) for mark in self.texts)

    def first_open(self, text: str, start: int = 0) -> int:
        """Where the longest tail begins that may become one; the text's length if there is none."""
        for place in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[place] in self._firsts and self.begins_at(text, place):
                return place
        return len(text)


def after_blanks(text: str, place: int = 0) -> int:
    """Where the first character stands that is no blank, from `place` on."""
    while place < len(text) and text[place] in BLANKS:
        place += 1
    return place


def without_lead(text: str) -> str:
    """`text`, which stands behind a mark: blanks are the mark's, but the indentation of a line of its own is not."""
    end = after_blanks(text)
    return text[text.rfind("\n", 0, end) + 1 :] if "\n" in text[:end] else text[end:]
