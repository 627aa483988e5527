"""The last decisions of one model's dispatcher that people ask about: who goes where and who is refused, and why; which
workers came, went, left or were fenced.

Owns the memory, which is bounded: what is rare has room of its own, so that traffic does not push it out. Not kept is
what every request does (it arrives, is in line, ends). Noting costs a dispatcher less than a microsecond; nothing is
made of a note until it is read.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from relevo.core.decisions import Decision, Fact
from relevo.core.ids import RequestId

MAX_ROUTES = 200  # arbitrary: some hundred, so that a page can show them
MAX_OTHERS = 200

# compared one by one: an enum's hash is computed in Python
_ROUTE, _PREFILL = Decision.ROUTE, Decision.PREFILL
_ARRIVE, _QUEUE, _SEND, _END = Decision.ARRIVE, Decision.QUEUE, Decision.SEND, Decision.END


class NotedDecision(NamedTuple):
    number: int  # one more with each that is kept; of one model
    at_ns: int
    decision: Decision
    request_id: str  # empty: about none
    tenant: str  # of that request
    facts: Mapping[str, Fact]


@dataclass(slots=True)
class DecisionRing:
    """A `core.decisions.Decide`."""

    now_ns: Callable[[], int] = time.monotonic_ns
    tenant_of: Callable[[RequestId], str] = lambda request_id: ""
    num_noted: int = 0
    _routes: deque[NotedDecision] = field(default_factory=lambda: deque(maxlen=MAX_ROUTES))
    _others: deque[NotedDecision] = field(default_factory=lambda: deque(maxlen=MAX_OTHERS))

    def __call__(self, decision: Decision, subject: str = "", **facts: Fact) -> None:
        if decision is _ARRIVE or decision is _QUEUE or decision is _SEND or decision is _END:
            return
        kept = self._routes if decision is _ROUTE or decision is _PREFILL else self._others
        self.num_noted += 1
        tenant = self.tenant_of(RequestId(subject)) if subject else ""
        kept.append(NotedDecision(self.num_noted, self.now_ns(), decision, subject, tenant, facts))

    def since(self, number: int) -> Sequence[NotedDecision]:
        """Those after `number` (0: all that are kept), in order."""
        return [noted for noted in heapq.merge(self._routes, self._others) if noted.number > number]
