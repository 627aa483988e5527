"""When a worker that drains may leave, on virtual time."""

from __future__ import annotations

from typing import cast

import pytest

from relevo.engine.drain import Drain
from relevo.wire import messages as wire
from relevo.wire.server import PeerId, WireServer


class VirtualClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def now_ns(self) -> int:
        return round(self.now_s * 1e9)


class RecordingServer:
    def __init__(self) -> None:
        self.peer_ids: tuple[PeerId, ...] = (PeerId(1), PeerId(2))
        self.sent: list[tuple[PeerId, wire.ToGateway]] = []
        self.num_wakes = 0

    def send(self, peer: PeerId, message: wire.ToGateway) -> None:
        self.sent.append((peer, message))

    def wake(self) -> None:
        self.num_wakes += 1


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def server() -> RecordingServer:
    return RecordingServer()


@pytest.fixture
def drain(clock: VirtualClock, server: RecordingServer) -> Drain:
    return Drain(clock, cast("WireServer", server), timeout_s=30.0)


def test_a_worker_stays_and_sleeps_for_ever_until_it_is_asked(drain: Drain, server: RecordingServer) -> None:
    assert not drain.may_leave(0)
    assert drain.patience_s() is None
    assert server.sent == []


def test_asking_wakes_the_loop_and_says_nothing_yet(drain: Drain, server: RecordingServer) -> None:
    """A signal handler asks: sending from there would cut into a message that the loop sends."""
    drain.ask()
    assert (server.num_wakes, server.sent) == (1, [])


def test_every_gateway_hears_once_and_the_worker_leaves_with_its_last_request(
    drain: Drain, server: RecordingServer
) -> None:
    drain.ask()
    assert not drain.may_leave(2)
    assert not drain.may_leave(1)
    assert server.sent == [(PeerId(1), wire.Leaving()), (PeerId(2), wire.Leaving())]
    assert drain.may_leave(0)


def test_a_gateway_that_comes_during_the_drain_hears_of_it(drain: Drain, server: RecordingServer) -> None:
    """Red when only those that were there at its beginning hear: the newcomer would send requests to a worker that
    leaves."""
    drain.ask()
    assert not drain.may_leave(1)
    server.peer_ids = (PeerId(1), PeerId(2), PeerId(3))
    server.sent.clear()
    assert not drain.may_leave(1)
    assert server.sent == [(PeerId(3), wire.Leaving())]


def test_what_outlasts_the_drain_is_left(drain: Drain, clock: VirtualClock) -> None:
    """The loop sleeps no longer than the drain: red if a silent worker never notices that its time is over."""
    drain.ask()
    assert not drain.may_leave(1)
    clock.now_s += 29.0
    assert not drain.may_leave(1)
    assert drain.patience_s() == pytest.approx(1.0)
    clock.now_s += 1.0
    assert drain.patience_s() == 0.0
    assert drain.may_leave(1)
