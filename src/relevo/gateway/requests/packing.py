"""Timelines as bytes: some hundred of them instead of some thousand, and nothing for the collector of garbage to walk.

Every field of every object, in the order of its class; nothing but this process reads them. Knows no request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import msgspec

from relevo.core.baton import PrefillFacts
from relevo.core.events import StepCosts, StepCounters, WorkerLoad
from relevo.core.handoff import Link
from relevo.core.ids import WorkerId, WorkerRef
from relevo.core.timeline import Gap, HitsLost, Leg, Preemption, Timeline

_Part = tuple[Callable[[Any], Any], Callable[[Any], Any]]  # how it is packed, and unpacked
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class _Class:
    """One class of plain data; `parts`: its fields that are no numbers, texts or None, and what becomes of each."""

    def __init__(
        self,
        kind: type[Any],
        left_out: frozenset[str] = frozenset(),
        parts: dict[str, _Part] | None = None,
    ) -> None:
        self._kind = kind
        self._names = [field.name for field in fields(kind) if field.name not in left_out]
        self._values = attrgetter(*self._names)
        places = {name: place for place, name in enumerate(self._names)}
        self._parts = [(places[name], pack, unpack) for name, (pack, unpack) in (parts or {}).items()]

    def pack(self, thing: Any) -> Any:
        if thing is None:
            return None
        values = self._values(thing)
        if not self._parts:
            return values
        packed = list(values)
        for place, pack, _ in self._parts:
            if packed[place] is not None:
                packed[place] = pack(packed[place])
        return packed

    def unpack(self, packed: Any) -> Any:
        if packed is None:
            return None
        values = list(packed)
        for place, _, unpack in self._parts:
            if values[place] is not None:
                values[place] = unpack(values[place])
        return self._kind(**dict(zip(self._names, values, strict=True)))

    @property
    def each(self) -> _Part:
        return self.pack, self.unpack

    @property
    def all(self) -> _Part:
        """Of a list of them."""
        return (lambda things: [self.pack(thing) for thing in things]), (
            lambda packed: [self.unpack(each) for each in packed]
        )


_REF: _Part = (tuple, lambda packed: WorkerRef(WorkerId(packed[0]), packed[1]))
_COSTS = _Class(StepCosts)
_LOAD = _Class(WorkerLoad, parts={"costs": _COSTS.each})
_COUNTERS = _Class(StepCounters, left_out=frozenset(("num_refused_connections",)))
_FACTS = _Class(PrefillFacts)
_OF_COUNTERS = ("asked_counters", "prompt_counters", "started_counters", "first_counters", "last_counters")
_LEG_PARTS: dict[str, _Part] = {
    "decode": _REF,
    "prefill": _REF,
    "decode_load": _LOAD.each,
    "prefill_load": _LOAD.each,
    "prompt_costs": _COSTS.each,
    "last_costs": _COSTS.each,
    "facts": _FACTS.each,
    "link": (int, Link),
    "hits_lost": (str, HitsLost),
}
_LEG = _Class(Leg, parts=_LEG_PARTS | dict.fromkeys(_OF_COUNTERS, _COUNTERS.each))
_PREEMPTION = _Class(Preemption, parts={"worker": _REF})
_GAP = _Class(Gap, parts={"worker": _REF, "before": _COUNTERS.each, "after": _COUNTERS.each, "load": _LOAD.each})
_TIMELINE = _Class(Timeline, parts={"legs": _LEG.all, "preemptions": _PREEMPTION.all, "worst_gap": _GAP.each})


def packed(timelines: Sequence[Timeline]) -> bytes:
    return _encode([_TIMELINE.pack(timeline) for timeline in timelines])


def unpacked(data: bytes) -> tuple[Timeline, ...]:
    return tuple(_TIMELINE.unpack(each) for each in _decode(data))
