"""What of a trace passes through an edge, in both directions."""

from __future__ import annotations

from relevo.gateway.edge.passing_on import to_client, to_region
from relevo.policy.tracing.trace_context import TraceContext

OWN = TraceContext(trace_id=0xAB, span_id=0xCD, is_sampled=True, state="a=1")


def test_a_region_continues_the_edges_attempt_and_not_the_clients_span() -> None:
    headers = [
        ("TraceParent", "00-1"),
        ("tracestate", "a=1"),
        ("tracestate", "b=2"),
        ("baggage", "x=1"),
        ("accept", "*"),
    ]
    assert to_region(headers, OWN) == [
        ("baggage", "x=1"),
        ("accept", "*"),
        ("traceparent", f"00-{0xAB:032x}-{0xCD:016x}-01"),
        ("tracestate", "a=1"),
    ]
    dropped = to_region(headers, OWN._replace(state=""))
    assert "tracestate" not in dict(dropped), "it belongs to a parent that was not valid"


def test_a_client_is_told_the_edges_span_and_keeps_the_regions_other_timings() -> None:
    headers = [
        (b"server-timing", b"trace;desc=00-1"),
        (b"server-timing", b"db;dur=53"),
        (b"traceresponse", b"00-1"),
        (b"x-request-id", b"r"),
    ]
    told = OWN.told.encode()
    assert to_client(headers, OWN) == [
        (b"server-timing", b"db;dur=53"),
        (b"x-request-id", b"r"),
        (b"traceresponse", told),
        (b"server-timing", b'trace;desc="' + told + b'"'),
    ]
