"""When a worker that drains may leave, and which gateways hear of it."""

from __future__ import annotations

import pytest

from relevo.core.ids import PeerId
from relevo.policy.worker.drain import Drain

S = 1_000_000_000
START_NS = 100 * S
ONE, TWO, THREE = PeerId(1), PeerId(2), PeerId(3)


@pytest.fixture
def drain() -> Drain:
    return Drain(timeout_s=30.0)


def test_a_worker_stays_and_sleeps_without_limit_until_it_is_asked(drain: Drain) -> None:
    assert not drain.may_leave(0, START_NS)
    assert drain.patience_s(START_NS) is None
    assert drain.untold([ONE]) == []


def test_every_gateway_hears_once_and_the_worker_leaves_with_its_last_request(drain: Drain) -> None:
    drain.ask()
    assert drain.untold([ONE, TWO]) == [ONE, TWO]
    assert drain.untold([ONE, TWO]) == []
    assert not drain.may_leave(1, START_NS)
    assert drain.may_leave(0, START_NS)


def test_a_gateway_that_comes_during_the_drain_hears_of_it(drain: Drain) -> None:
    """Red when only those that were there at its beginning hear: the newcomer would send requests to a worker that
    leaves."""
    drain.ask()
    drain.untold([ONE])
    assert drain.untold([ONE, THREE]) == [THREE]


def test_what_outlasts_the_drain_is_left(drain: Drain) -> None:
    """The loop sleeps no longer than the drain: red if a silent worker never notices that its time is over."""
    drain.ask()
    assert not drain.may_leave(1, START_NS)
    assert not drain.may_leave(1, START_NS + 29 * S)
    assert drain.patience_s(START_NS + 29 * S) == pytest.approx(1.0)
    assert drain.patience_s(START_NS + 30 * S) == 0.0
    assert drain.may_leave(1, START_NS + 30 * S)
