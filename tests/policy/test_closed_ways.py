"""Ways that carry no KV are left alone, tried by one request at a time, and opened by what arrives."""

from __future__ import annotations

from relevo.policy.perf.handoff_costs import BoxPair
from relevo.policy.routing.closed_ways import FIRST_S, MOST_S, ClosedWays

WAY, BACK = BoxPair("a", "b"), BoxPair("b", "a")
S = 1_000_000_000


def test_a_failure_closes_one_way_for_a_while_and_one_request_tries_it() -> None:
    ways = ClosedWays()
    assert ways.failed(WAY, 0)
    assert not ways.failed(WAY, S), "of those that had begun before"
    assert ways.closed(S) == {WAY}
    assert ways.closed(round(FIRST_S * S)) == frozenset(), "it may be tried"
    ways.tried(WAY, round(FIRST_S * S))
    assert ways.closed(round(FIRST_S * S)) == {WAY}, "one does"
    ways.succeeded(WAY)
    assert ways.closed(round(FIRST_S * S)) == frozenset()


def test_waits_grow_to_a_bound_and_begin_anew_after_a_success() -> None:
    ways, now_ns, waits_s = ClosedWays(), 0, []
    for _ in range(8):
        ways.failed(WAY, now_ns)
        began_ns = now_ns
        while WAY in ways.closed(now_ns):
            now_ns += S // 2
        waits_s.append((now_ns - began_ns) / S)
    assert waits_s[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert waits_s[-1] == MOST_S
    ways.succeeded(WAY)
    ways.failed(WAY, now_ns)
    assert WAY not in ways.closed(now_ns + round(FIRST_S * S))


def test_what_nodes_measured_holds_until_they_measure_anew() -> None:
    """Red when a trial opens a way of which its node says that nothing passes."""
    ways = ClosedWays()
    ways.reported([WAY, BACK])
    ways.succeeded(WAY)
    assert ways.closed(10**15) == {WAY, BACK}
    ways.reported([BACK])
    assert ways.closed(10**15) == {BACK}


def test_trying_a_way_that_is_open_changes_nothing() -> None:
    ways = ClosedWays()
    ways.tried(WAY, 0)
    assert ways.closed(0) == frozenset()
