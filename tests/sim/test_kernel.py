"""Virtual time happens in one order, whatever the order in which it is asked for."""

from __future__ import annotations

from relevo.sim.kernel import Kernel


def test_events_happen_in_time_and_those_of_one_instant_in_the_order_asked_for() -> None:
    """Red when ties are broken by anything but insertion."""
    kernel, seen = Kernel(), []
    for at_ns, name in ((5, "c"), (3, "a"), (5, "d"), (3, "b")):
        kernel.call_at(at_ns, lambda name=name: seen.append((kernel.now_ns(), name)))
    kernel.run()
    assert seen == [(3, "a"), (3, "b"), (5, "c"), (5, "d")]


def test_what_is_due_already_happens_in_this_instant_and_after_what_was_asked_for() -> None:
    kernel, seen = Kernel(), []

    def first() -> None:
        kernel.call_at(0, seen.append, "late")
        assert seen == []

    kernel.call_at(7, first)
    kernel.call_at(7, seen.append, "second")
    kernel.run()
    assert seen == ["second", "late"]
    assert kernel.now_ns() == 7


def test_a_cancelled_event_does_not_happen_and_takes_no_room_for_ever() -> None:
    """Red when timers that are moved again and again fill the heap."""
    kernel, seen = Kernel(), []
    kernel.call_at(10**12, seen.append, "kept")
    for _ in range(20_000):
        kernel.call_at(10**11, seen.append, "cancelled").cancel()
    assert len(kernel._heap) < 5_000
    kernel.run(10**11)
    assert seen == [] and kernel.now_ns() == 10**11
    kernel.run()
    assert seen == ["kept"]


def test_random_numbers_belong_to_a_name() -> None:
    """Red when one part of a world draws what another would have drawn."""
    one, two = Kernel(1).rng("a"), Kernel(1).rng("a")
    Kernel(1).rng("b").random()
    assert [one.random() for _ in range(3)] == [two.random() for _ in range(3)]
    assert Kernel(1).rng("a").random() != Kernel(2).rng("a").random() != Kernel(2).rng("b").random()
