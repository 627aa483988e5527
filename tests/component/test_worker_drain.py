"""When a worker that drains may leave, on virtual time."""

from __future__ import annotations

import pytest
from recorded_links import RecordedLinks

from relevo.engine.drain import Drain
from relevo.wire import messages as wire

S = 1_000_000_000
START_NS = 100 * S


@pytest.fixture
def links() -> RecordedLinks:
    return RecordedLinks(2)


@pytest.fixture
def drain(links: RecordedLinks) -> Drain:
    return Drain(links, timeout_s=30.0)


def test_a_worker_stays_and_sleeps_without_limit_until_it_is_asked(drain: Drain, links: RecordedLinks) -> None:
    assert not drain.may_leave(0, START_NS)
    assert drain.patience_s(START_NS) is None
    assert links.told == []


def test_asking_wakes_the_loop_and_says_nothing_yet(drain: Drain, links: RecordedLinks) -> None:
    """A signal handler asks: sending from there would cut into a message that the loop sends."""
    drain.ask()
    assert (links.num_ready, links.told) == (1, [])


def test_every_gateway_hears_once_and_the_worker_leaves_with_its_last_request(
    drain: Drain, links: RecordedLinks
) -> None:
    drain.ask()
    assert not drain.may_leave(2, START_NS)
    assert not drain.may_leave(1, START_NS)
    assert links.told == [(gateway, wire.Leaving()) for gateway in links.gateways]
    assert drain.may_leave(0, START_NS)


def test_a_gateway_that_comes_during_the_drain_hears_of_it(drain: Drain, links: RecordedLinks) -> None:
    """Red when only those that were there at its beginning hear: the newcomer would send requests to a worker that
    leaves."""
    drain.ask()
    assert not drain.may_leave(1, START_NS)
    newcomer = links.add()
    links.told.clear()
    assert not drain.may_leave(1, START_NS)
    assert links.told == [(newcomer, wire.Leaving())]


def test_what_outlasts_the_drain_is_left(drain: Drain) -> None:
    """The loop sleeps no longer than the drain: red if a silent worker never notices that its time is over."""
    drain.ask()
    assert not drain.may_leave(1, START_NS)
    assert not drain.may_leave(1, START_NS + 29 * S)
    assert drain.patience_s(START_NS + 29 * S) == pytest.approx(1.0)
    assert drain.patience_s(START_NS + 30 * S) == 0.0
    assert drain.may_leave(1, START_NS + 30 * S)
