"""The trace that a request belongs to, as its client says it in headers, and as it is said to others.

Owns the reading of `traceparent` and `tracestate`: what breaks a rule is as if it were not there, and nothing is looked
at beyond a bound, however much was sent. Pure; does not know spans, sampling or OpenTelemetry. `baggage` is not read:
it is a client's own, and goes on as any other header does.

Source: W3C Trace Context Level 2 (https://www.w3.org/TR/trace-context-2/), and the editor's draft of June 2026 for what
a response says (a metric of `server-timing`; `traceresponse` is the same value under the name of earlier drafts).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

RESPONSE_HEADER, TIMING_HEADER = "traceresponse", "server-timing"
MAX_PARENT_CHARS = 256  # arbitrary, of versions to come: this one's has 55
MAX_STATE_CHARS = 512  # the fewest that have to be passed on; more is dropped
MAX_STATE_MEMBERS = 32  # required

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"  # no comma, no "=", no blank at its end
_MEMBER = re.compile(rf"[ \t]*(?:([a-z0-9][a-z0-9_\-*/@]{{0,255}})={_VALUE}[ \t]*)?", re.ASCII)
_SAMPLED, _RANDOM = 1, 2  # bits of the flags; others mean nothing yet


class TraceContext(NamedTuple):
    """A span of someone's trace."""

    trace_id: int  # 128 bits, not 0
    span_id: int  # 64 bits, not 0
    is_sampled: bool
    is_random: bool = False  # of the trace id: its last 56 bits may be drawn lots with
    state: str = ""  # tracestate, as it is passed on

    @property
    def told(self) -> str:
        """As in `traceparent`, and as in `traceresponse`."""
        flags = (_SAMPLED if self.is_sampled else 0) | (_RANDOM if self.is_random else 0)
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{flags:02x}"


def response_headers(own: TraceContext) -> dict[str, str]:
    """Where a client is told its trace id: in the header that tools know, and as the draft has it."""
    return {RESPONSE_HEADER: own.told, TIMING_HEADER: f'trace;desc="{own.told}"'}


def context_in(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """What a client continues; `headers`: names in lower case. None: nothing, or nothing valid."""
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value)
        elif name == b"tracestate":
            states.append(value)
    return context_of(parents, states) if parents else None


def context_of(parents: Sequence[bytes], states: Sequence[bytes] = ()) -> TraceContext | None:
    """Of the values of all `traceparent` and `tracestate` headers, in order."""
    if len(parents) != 1 or len(parents[0]) > MAX_PARENT_CHARS:
        return None
    found = _PARENT.fullmatch(parents[0].decode("latin-1").strip(" \t"))
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest is not None):
        return None
    trace, span, bits = int(trace_id, 16), int(span_id, 16), int(flags, 16)
    if not trace or not span:
        return None
    return TraceContext(trace, span, bool(bits & _SAMPLED), bool(bits & _RANDOM), _state(states))


def _state(values: Sequence[bytes]) -> str:
    """One header of all; empty if there is none, or a rule is broken somewhere."""
    if not values or sum(map(len, values)) + len(values) - 1 > MAX_STATE_CHARS:
        return ""
    seen: set[str] = set()
    kept: list[str] = []
    for member in b",".join(values).decode("latin-1").split(","):
        found = _MEMBER.fullmatch(member)
        if found is None or found[1] in seen:
            return ""
        if found[1] is not None:
            seen.add(found[1])
            kept.append(member.strip(" \t"))
    return ",".join(kept) if len(kept) <= MAX_STATE_MEMBERS else ""
