"""A stretch of time in consecutive named spans: what is laid down one after the other, and what is laid over it.

Owns that spans have no holes, never overlap and never leave the stretch, whatever marks come in: a mark before the
last one is moved up to it, one after the end back. Does not know what the names mean.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace

from relevo.policy.slowness.words import PhaseName

Facts = dict[str, int | float | str]


@dataclass(frozen=True, slots=True)
class Span:
    name: PhaseName
    begins_ns: int
    ends_ns: int
    worker_id: str = ""
    facts: Facts = field(default_factory=dict)
    is_lost: bool = False  # in vain, or again: a worker failed

    @property
    def took_ns(self) -> int:
        return self.ends_ns - self.begins_ns


@dataclass(slots=True)
class SpanLine:
    """Spans from `cursor_ns` on, none behind `limit_ns`."""

    cursor_ns: int
    limit_ns: int
    spans: list[Span] = field(default_factory=list)

    def until(
        self, name: PhaseName, at_ns: int | None, worker_id: str = "", facts: Facts | None = None, is_lost: bool = False
    ) -> None:
        """What went on from the last mark to this one. None: it was not reached, and the next one tells."""
        if at_ns is None:
            return
        at_ns = min(max(at_ns, self.cursor_ns), self.limit_ns)
        if at_ns > self.cursor_ns:
            self.spans.append(Span(name, self.cursor_ns, at_ns, worker_id, facts or {}, is_lost))
            self.cursor_ns = at_ns


def overlaid(
    spans: list[Span], begins_ns: int, ends_ns: int, over: Container[PhaseName], name: PhaseName, worker_id: str = ""
) -> list[Span]:
    """What lies in that time, of spans of the names in `over`, is of another name and worker."""
    result: list[Span] = []
    for span in spans:
        first_ns, last_ns = max(span.begins_ns, begins_ns), min(span.ends_ns, ends_ns)
        if span.name not in over or first_ns >= last_ns:
            result.append(span)
            continue
        if span.begins_ns < first_ns:
            result.append(replace(span, ends_ns=first_ns))
        result.append(Span(name, first_ns, last_ns, worker_id, is_lost=span.is_lost))
        if last_ns < span.ends_ns:
            result.append(replace(span, begins_ns=last_ns))
    return result


def split_at(spans: list[Span], at_ns: int) -> list[Span]:
    """No span goes on through that moment."""
    result: list[Span] = []
    for span in spans:
        if span.begins_ns < at_ns < span.ends_ns:
            result += [replace(span, ends_ns=at_ns), replace(span, begins_ns=at_ns)]
        else:
            result.append(span)
    return result


def merged(spans: list[Span], border_ns: int | None) -> list[Span]:
    """Neighbours of one name and worker are one, except over the border; facts of the later one win."""
    result: list[Span] = []
    for span in spans:
        last = result[-1] if result else None
        is_same = last is not None and (last.name, last.worker_id, last.is_lost) == (
            span.name,
            span.worker_id,
            span.is_lost,
        )
        if last is not None and is_same and span.begins_ns != border_ns:
            result[-1] = replace(last, ends_ns=span.ends_ns, facts={**last.facts, **span.facts})
        else:
            result.append(span)
    return result
