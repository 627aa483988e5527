"""How a trace goes on through an edge: which headers a region gets, and which the client gets back.

The trace that a client began is continued by the region as a child of the edge's attempt; `baggage` is the client's and
passes as it is. Without tracing at the edge nothing is touched: then the region continues the client's own.
"""

from __future__ import annotations

from collections.abc import Iterable

from relevo.policy.tracing.trace_context import RESPONSE_HEADER, TIMING_HEADER, TraceContext, response_headers

_ASKED = frozenset(("traceparent", "tracestate"))
_RESPONSE, _TIMING = RESPONSE_HEADER.encode(), TIMING_HEADER.encode()


def to_region(headers: Iterable[tuple[str, str]], attempt: TraceContext) -> list[tuple[str, str]]:
    """`attempt`: the span that the region's is to be a child of."""
    kept = [(name, value) for name, value in headers if name.lower() not in _ASKED]
    kept.append(("traceparent", attempt.told))
    if attempt.state:
        kept.append(("tracestate", attempt.state))
    return kept


def to_client(headers: Iterable[tuple[bytes, bytes]], own: TraceContext) -> list[tuple[bytes, bytes]]:
    """`headers`: of the region's answer, names in lower case. `own`: the edge's span."""
    kept = [(name, value) for name, value in headers if not _tells_a_trace(name, value)]
    return kept + [(name.encode(), value.encode()) for name, value in response_headers(own).items()]


def _tells_a_trace(name: bytes, value: bytes) -> bool:
    return name == _RESPONSE or (name == _TIMING and value.startswith(b"trace;"))
