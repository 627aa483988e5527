"""What the orchestrator may rely on from its timers, on an event loop and in a simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from relevo.build.clock import MonotonicClock
from relevo.build.event_loop import LoopTimers
from relevo.core.ports import Clock, Timer, Timers
from relevo.sim.kernel import Kernel

MS = 1_000_000


class LoopRig:
    def __init__(self) -> None:
        self.clock: Clock = MonotonicClock()
        self.timers: Timers = LoopTimers(self.clock)

    def play(self, ask: Callable[[], None], for_ns: int) -> None:
        """Ask for calls, and let so much time pass."""

        async def play() -> None:
            ask()
            await asyncio.sleep(for_ns / 1e9)

        asyncio.run(play())


class KernelRig:
    def __init__(self) -> None:
        self.clock = self.timers = Kernel()

    def play(self, ask: Callable[[], None], for_ns: int) -> None:
        ask()
        self.timers.run(until_ns=self.clock.now_ns() + for_ns)


Rig = LoopRig | KernelRig


@pytest.fixture(params=[LoopRig, KernelRig])
def rig(request: pytest.FixtureRequest) -> Rig:
    made: Rig = request.param()
    return made


def test_a_call_is_made_once_at_its_time_or_later(rig: Rig) -> None:
    """Red when a deadline is looked at before it is over, and is not asked for again."""
    called_at_ns: list[int] = []
    due_at_ns = rig.clock.now_ns() + 5 * MS
    rig.play(lambda: _ask(rig, due_at_ns, called_at_ns), 50 * MS)
    assert len(called_at_ns) == 1 and called_at_ns[0] >= due_at_ns - MS, "loops round their timers to milliseconds"


def test_a_call_that_is_due_already_is_not_made_from_within(rig: Rig) -> None:
    """Red when an object is called back while it still asks."""
    called_at_ns: list[int] = []

    def ask() -> None:
        _ask(rig, 0, called_at_ns)
        assert not called_at_ns

    rig.play(ask, 20 * MS)
    assert len(called_at_ns) == 1


def test_a_cancelled_call_is_not_made(rig: Rig) -> None:
    called_at_ns: list[int] = []

    def ask() -> None:
        timer = rig.timers.call_at(rig.clock.now_ns() + MS, lambda: called_at_ns.append(0))
        timer.cancel()
        timer.cancel()

    rig.play(ask, 20 * MS)
    assert not called_at_ns


def test_a_call_may_be_cancelled_after_it_was_made_and_ask_for_the_next(rig: Rig) -> None:
    called: list[str] = []
    asked: list[Timer] = []

    def first() -> None:
        called.append("first")
        asked[0].cancel()
        rig.timers.call_at(rig.clock.now_ns(), lambda: called.append("second"))

    def ask() -> None:
        asked.append(rig.timers.call_at(rig.clock.now_ns() + MS, first))

    rig.play(ask, 30 * MS)
    assert called == ["first", "second"]


def _ask(rig: Rig, at_ns: int, called_at_ns: list[int]) -> None:
    rig.timers.call_at(at_ns, lambda: called_at_ns.append(rig.clock.now_ns()))
