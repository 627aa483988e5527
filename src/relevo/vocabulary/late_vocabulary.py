"""The vocabulary of grammars, made once and late: no start waits for it, and most servers rest before they need it.

Making it holds the interpreter lock for as long as many steps take, so processes make it when they have nothing to do;
a grammar that comes before that waits for it, and what runs stands still that once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from relevo.vocabulary.grammars import GrammarVocabulary

REST_S = 2.0  # without anything to do, after which a process makes it. Arbitrary: a new server is asked sooner


@dataclass(slots=True)
class Rest:
    """How long a process has had nothing to do."""

    _since_ns: int | None = None

    def left_s(self, now_ns: int, *, is_busy: bool) -> float:
        """Of REST_S, to be asked whenever that may have changed."""
        if is_busy:
            self._since_ns = None
        elif self._since_ns is None:
            self._since_ns = now_ns
        return REST_S if self._since_ns is None else REST_S - (now_ns - self._since_ns) / 1e9


class LateVocabulary:
    """Any thread."""

    def __init__(self, make: Callable[[], GrammarVocabulary]) -> None:
        """`make`: called once. What it raises is raised again by every `get`."""
        self._make = make
        self._made: GrammarVocabulary | Exception | None = None
        self._lock = Lock()

    @property
    def is_made(self) -> bool:
        """Or has failed."""
        return self._made is not None

    def make(self) -> None:
        """In the calling thread, if it is not made; who comes meanwhile waits. Raises nothing."""
        with self._lock:
            if self._made is None:
                try:
                    self._made = self._make()
                except Exception as error:  # of every kind: it is told to those who need the vocabulary
                    self._made = error

    def get(self) -> GrammarVocabulary:
        self.make()
        made = self._made
        assert made is not None
        if isinstance(made, Exception):
            raise made
        return made
