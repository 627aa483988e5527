"""A place that logs too often is held back and its lines are counted; other places are not touched."""

from __future__ import annotations

from relevo.policy.http.log_limit import BURST_LINES, LINES_PER_S, MAX_KINDS, LogLimit

S = 1_000_000_000


def test_a_burst_passes_and_the_rest_is_counted() -> None:
    """Red if a stranger decides how long the log grows."""
    limit = LogLimit()
    admitted = [limit.admit("bad request", 0) for _ in range(1000)]
    assert admitted[:BURST_LINES] == [0] * BURST_LINES and set(admitted[BURST_LINES:]) == {None}
    assert limit.admit("another place", 0) == 0
    assert limit.admit("bad request", round(S / LINES_PER_S)) == 1000 - BURST_LINES
    assert limit.admit("bad request", round(S / LINES_PER_S)) is None


def test_a_quiet_place_may_burst_again_but_saves_up_no_more() -> None:
    limit = LogLimit()
    for now_ns in (0, 1000 * S):
        assert [limit.admit("place", now_ns) for _ in range(BURST_LINES + 1)] == [0] * BURST_LINES + [None]
        limit.admit("place", now_ns + S)


def test_places_are_bounded() -> None:
    limit = LogLimit()
    for place in range(10 * MAX_KINDS):
        limit.admit(place, 0)
    assert len(limit._kinds) <= MAX_KINDS
