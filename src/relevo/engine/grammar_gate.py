"""Holds back what gateways ask for a request until the grammar of its output is compiled, so that no step waits for it.

Owns the messages that wait, in the order of their arrival, and the grammars of the requests that do not wait any more.
A request whose grammar is known passes at once. Does not know what the messages ask for, or how grammars are compiled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from relevo.core.errors import RelevoError
from relevo.core.ids import PeerId, RequestId
from relevo.core.request import EngineRequest
from relevo.engine.grammars import Grammars
from relevo.engine.incoming import Asked, request_of
from relevo.engine.request_faults import failure_of
from relevo.policy.worker.intake import Rejected
from relevo.vocabulary.grammars import CompiledGrammar
from relevo.wire import messages as wire

log = logging.getLogger("relevo.engine")


@dataclass(slots=True)
class Waiting:
    """One request whose grammar is being compiled."""

    peer: PeerId
    compiling: Future[CompiledGrammar]
    messages: list[Asked] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Denied:
    """Its grammar cannot be compiled: nothing of the request is held here."""

    peer: PeerId
    request_id: RequestId
    rejected: Rejected


@dataclass(frozen=True, slots=True)
class Passed:
    """Now it may be asked of the worker's core."""

    peer: PeerId
    message: Asked


class GrammarGate:
    def __init__(self, grammars: Grammars, wake: Callable[[], None], is_alive: Callable[[RequestId], bool]) -> None:
        """`wake`: called from another thread when `take_ready` has something. `is_alive`: whether the worker has the
        request, so that its grammar is kept."""
        self._grammars = grammars
        self._wake = wake
        self._is_alive = is_alive
        self._waiting: dict[RequestId, Waiting] = {}
        self._kept: dict[RequestId, CompiledGrammar] = {}  # a preempted request finds it again

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def keeps(self, peer: PeerId, message: Asked) -> bool:
        """True: it will come from `take_ready`, after what waits of its request already."""
        request_id = request_of(message)
        waiting = self._waiting.get(request_id)
        if waiting is not None and waiting.peer == peer:
            waiting.messages.append(message)
            return True
        request = _request_in(message)
        if request is None or request.sampling.grammar is None:
            return False
        known = self._grammars.known(request.sampling.grammar)
        if known is not None:
            self._keep(request_id, known)
            return False
        compiling = self._grammars.prepare(request.sampling.grammar, self._wake)
        self._waiting[request_id] = Waiting(peer, compiling, [message])
        return True

    def take_ready(self) -> Iterator[Passed | Denied]:
        """What waited and need not wait any more."""
        for request_id, waiting in list(self._waiting.items()) if self._waiting else ():
            if not waiting.compiling.done():
                continue
            del self._waiting[request_id]
            error = waiting.compiling.exception()
            if error is not None:
                yield _denied(waiting.peer, request_id, error)
                continue
            self._keep(request_id, waiting.compiling.result())
            for message in waiting.messages:
                yield Passed(waiting.peer, message)

    def drop(self, peer: PeerId, request_id: RequestId) -> None:
        """The gateway wants nothing of it any more: what has not begun is not compiled."""
        waiting = self._waiting.get(request_id)
        if waiting is not None and waiting.peer == peer:
            del self._waiting[request_id]
            waiting.compiling.cancel()

    def drop_all(self, peer: PeerId) -> None:
        for request_id in [each for each, waiting in self._waiting.items() if waiting.peer == peer]:
            self.drop(peer, request_id)

    def _keep(self, request_id: RequestId, compiled: CompiledGrammar) -> None:
        if len(self._kept) >= 64 and len(self._kept) >= 2 * sum(map(self._is_alive, self._kept)):
            self._kept = {each: grammar for each, grammar in self._kept.items() if self._is_alive(each)}
        self._kept[request_id] = compiled


def _request_in(message: Asked) -> EngineRequest | None:
    match message:
        case wire.Submit(request=request) | wire.Reserve(request=request) | wire.Prefill(request=request):
            return request
        case _:
            return None


def _denied(peer: PeerId, request_id: RequestId, error: BaseException) -> Denied:
    if not isinstance(error, RelevoError):
        log.error("the grammar of request %s was not compiled", request_id, exc_info=error)
        error = error if isinstance(error, Exception) else RuntimeError(repr(error))
    return Denied(peer, request_id, Rejected(*failure_of(error)))
