"""The compiled grammars of a worker: each made once, in a thread of its own, and kept while it is of use.

Owns the thread and what is kept: the grammars used last, and any that are still referred to. Does not know requests, or
where an output is in its grammar (`grammar_masks`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from weakref import WeakValueDictionary

from relevo.core.errors import InvalidGrammar
from relevo.vocabulary.grammars import CompiledGrammar, GrammarVocabulary
from relevo.vocabulary.late_vocabulary import LateVocabulary

NUM_KEPT = 64  # arbitrary; a compiled schema of a few dozen lines has about a tenth of a megabyte


class Grammars:
    """`get` is for any thread, the rest for one."""

    def __init__(self, make: Callable[[], GrammarVocabulary], num_kept: int = NUM_KEPT) -> None:
        self.vocabulary = LateVocabulary(make)
        self._num_kept = num_kept
        self._recent: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._alive: WeakValueDictionary[str, CompiledGrammar] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="grammars", initializer=_give_way
        )  # starts with the first task

    def known(self, text: str) -> CompiledGrammar | None:
        """If it is compiled already."""
        with self._lock:
            compiled = self._alive.get(text)
            return None if compiled is None else self._kept(compiled)

    def get(self, text: str) -> CompiledGrammar:
        """Compiled now, in the calling thread, if it is not known. Raises InvalidGrammar."""
        compiled = self.known(text)
        if compiled is None:
            compiled = self.vocabulary.get().compile(text)
            with self._lock:
                compiled = self._kept(self._alive.setdefault(text, compiled))
        return compiled

    def renew(self, text: str) -> CompiledGrammar:
        """Compiled anew, for all that begin from now on: what is started from one compiled grammar shares its bounds of
        work, and an output that has used them up leaves nothing to others. Raises InvalidGrammar."""
        compiled = self.vocabulary.get().compile(text)
        with self._lock:
            self._alive[text] = compiled
            return self._kept(compiled)

    def prepare(self, text: str, when_done: Callable[[], None]) -> Future[CompiledGrammar]:
        """Compile it in the thread, after what was asked for before. `when_done` is called there, or here if the future
        is cancelled. The future fails with InvalidGrammar."""
        self.vocabulary.make()  # here: a thread that gives way would hold the interpreter lock for longer
        future = self._thread.submit(self.get, text)
        future.add_done_callback(lambda _: when_done())
        return future

    def close(self) -> None:
        """Begin nothing any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _kept(self, compiled: CompiledGrammar) -> CompiledGrammar:
        self._recent[compiled.text] = compiled
        self._recent.move_to_end(compiled.text)
        while len(self._recent) > self._num_kept:
            self._recent.popitem(last=False)
        return compiled


def _give_way() -> None:
    """To the threads that compute steps, which use every core that the worker has: this one takes what they leave."""
    if sys.platform == "linux":  # where a thread has a priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def no_grammars() -> Grammars:
    """Of an engine that cannot hold an output to anything, such as a simulated one."""

    def refuse() -> GrammarVocabulary:
        raise InvalidGrammar("This engine cannot hold an output to a grammar.")

    return Grammars(refuse)
