"""What of a schema cannot be held, and where: an error where the client wants it exactly, a note where it does not.

A place is a JSON pointer into the schema. Does not know which keywords there are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_NOTES = 50  # arbitrary: one response header has to hold them
MAX_HEADER_CHARS = 2048  # arbitrary: clients read some kilobytes of headers
MAX_UNITS = 200_000  # arbitrary; of work on one schema
MAX_THREAD_S = 2.0  # arbitrary; of processor time for one schema, whatever makes its work more than its units


@dataclass(frozen=True, slots=True)
class Note:
    """One keyword that is not held, in one place."""

    place: str
    keyword: str
    reason: str

    def __str__(self) -> str:
        return f"'{self.keyword}' at {self.place or 'the root'}: {self.reason}"


class NotHeld(Exception):
    """A schema, or a part of it, that no grammar is made of."""

    def __init__(self, place: str, keyword: str, reason: str) -> None:
        self.note = Note(place, keyword, reason)
        super().__init__(str(self.note))


class NotASchema(NotHeld):
    """Not valid as a schema, or too large: refused whether or not it is strict."""


@dataclass(slots=True)
class Leniency:
    """Of one schema: whether what is not held is an error, and the notes if it is not; and how much work was done."""

    is_strict: bool
    notes: list[Note] = field(default_factory=list)
    num_units: int = 0
    began_s: float = field(default_factory=time.thread_time)

    def not_held(self, place: str, keyword: str, reason: str) -> None:
        """Raises NotHeld if all must be."""
        if self.is_strict:
            raise NotHeld(place, keyword, reason)
        note = Note(place, keyword, reason)
        if len(self.notes) < MAX_NOTES and note not in self.notes:
            self.notes.append(note)

    def spend(self, num_units: int, place: str) -> None:
        """Raises NotASchema once a schema has made too much work."""
        self.num_units += num_units
        if self.num_units > MAX_UNITS or time.thread_time() - self.began_s > MAX_THREAD_S:
            raise NotASchema(place, "$schema", "the schema is too large, or its combinations are; make it smaller")


def below(place: str, *names: str | int) -> str:
    """The pointer of a member."""
    return place + "".join("/" + str(name).replace("~", "~0").replace("/", "~1") for name in names)


def told(notes: Sequence[Note]) -> list[str]:
    return [str(note) for note in notes]


def in_header(notes: Sequence[str]) -> str:
    """Printable ASCII, and not too long for a header."""
    text = " | ".join(notes).encode("ascii", "backslashreplace").decode()
    shown = "".join(character if character.isprintable() else " " for character in text)
    return shown if len(shown) <= MAX_HEADER_CHARS else shown[: MAX_HEADER_CHARS - 3] + "..."
