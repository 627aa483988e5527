"""The event loop's part of tracing: which trace a request belongs to, and that it has ended.

Owns the ids. A request that its client's trace, or the sampler, does not want recorded is told its ids and costs no
more than that. Does not know OpenTelemetry: a `Sampler` decides, a `Delivery` takes what has ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from relevo.policy.tracing.trace_context import TraceContext, context_in
from relevo.policy.tracing.words import AttemptTrace, CallTrace

Headers = Iterable[tuple[bytes, bytes]]


class Sampler(Protocol):
    def __call__(self, parent: TraceContext | None, trace_id: int, name: str) -> bool:
        """Whether it is recorded. `parent`: None where the trace begins here."""
        ...


@dataclass(slots=True)
class OpenTraces:
    sampler: Sampler
    put: Callable[[CallTrace], object]  # what has ended, if it is recorded
    num_dropped: Callable[[], Mapping[str, int]]
    continues: bool = True  # False: what clients say is not looked at
    _random: random.Random = field(default_factory=random.SystemRandom)

    def begin(self, headers: Headers, method: str, route: str, now_ns: int) -> CallTrace:
        """`headers`: of the request, names in lower case. `route`: its pattern, not the path."""
        parent = context_in(headers) if self.continues else None
        trace_id = parent.trace_id if parent is not None else self._id(128)
        own = TraceContext(
            trace_id,
            self._id(64),
            is_sampled=self.sampler(parent, trace_id, f"{method} {route}"),
            is_random=parent.is_random if parent is not None else True,
            state=parent.state if parent is not None else "",
        )
        return CallTrace(
            own=own,
            parent_id=parent.span_id if parent is not None else 0,
            method=method,
            route=route,
            begins_ns=now_ns,
        )

    def end(self, call: CallTrace) -> None:
        if call.own.is_sampled:
            self.put(call)

    def attempt(self, call: CallTrace, region: str, now_ns: int) -> AttemptTrace:
        """A region is asked now, as a child of the call."""
        made = AttemptTrace(region=region, context=call.own._replace(span_id=self._id(64)), begins_ns=now_ns)
        call.attempts.append(made)
        return made

    def _id(self, num_bits: int) -> int:
        while not (drawn := self._random.getrandbits(num_bits)):
            pass
        return drawn
