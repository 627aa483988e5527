"""What a model's workers would say of a grammar, asked where its answers are worked out: before anything runs.

Owns the verdicts of the last grammars, by a digest of their text. They are the same as the workers' by construction:
the same class compiles over the same tokens. Does not know what a grammar was made from.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from relevo.core.errors import InvalidGrammar
from relevo.vocabulary.grammars import GrammarVocabulary
from relevo.vocabulary.late_vocabulary import LateVocabulary

NUM_KEPT = 4096  # arbitrary; a verdict has some hundred bytes


class GrammarVerdicts:
    """Any thread."""

    def __init__(self, make: Callable[[], GrammarVocabulary]) -> None:
        self.vocabulary = LateVocabulary(make)
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._lock = Lock()

    def refusal_of(self, grammar: str) -> str:
        """Why no output can be held to it; empty: it can. Compiles what is not known in the calling thread."""
        key = hashlib.sha256(grammar.encode(errors="replace")).digest()
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        refusal = ""
        try:
            self.vocabulary.get().compile(grammar)
        except InvalidGrammar as error:
            refusal = str(error)
        with self._lock:
            self._known[key] = refusal
            while len(self._known) > NUM_KEPT:
                self._known.popitem(last=False)
        return refusal
