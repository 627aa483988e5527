"""What links promise: order, shares of bandwidth, and nothing over a link that is down."""

from __future__ import annotations

import pytest

from relevo.sim.kernel import Kernel, seconds
from relevo.sim.network import Channel, Link, LinkTraits, Pipe


def link(kernel: Kernel, **traits: float) -> Link:
    return Link("l", LinkTraits(**traits), kernel.rng("l"))


def test_messages_arrive_once_and_in_order_whatever_jitter_and_loss_do() -> None:
    """Red when a message overtakes another, as over no ordered stream."""
    kernel, seen = Kernel(3), []
    lossy = link(kernel, latency_s=0.001, jitter_s=0.01, loss_probability=0.3)
    channel: Channel[int] = Channel(kernel, [lossy], lambda number: seen.append((kernel.now_ns(), number)))
    for number in range(500):
        kernel.call_at(number * 100_000, channel.send, number)
    kernel.run()
    assert [number for _, number in seen] == list(range(500))
    assert all(at_ns >= number * 100_000 + 1_000_000 for at_ns, number in seen)
    assert any(at_ns >= number * 100_000 + seconds(0.2) for at_ns, number in seen), "no message was ever lost"


def test_nothing_arrives_over_a_link_that_is_down_and_everything_afterwards() -> None:
    kernel, seen = Kernel(), []
    cut = link(kernel, latency_s=0.5)
    channel: Channel[str] = Channel(kernel, [cut], lambda text: seen.append((kernel.now_ns(), text)))
    channel.send("under way")
    kernel.call_at(seconds(0.1), cut.cut)
    kernel.call_at(seconds(0.2), channel.send, "sent meanwhile")
    kernel.call_at(seconds(3.0), cut.heal)
    kernel.run()
    assert seen == [(seconds(3.5), "under way"), (seconds(3.5), "sent meanwhile")]


def test_a_closed_channel_delivers_nothing_more() -> None:
    kernel, seen = Kernel(), []
    channel: Channel[int] = Channel(kernel, [link(kernel, latency_s=1.0)], seen.append)
    channel.send(1)
    kernel.call_at(5, channel.close)
    kernel.run()
    channel.send(2)
    kernel.run()
    assert seen == []


def pipes(kernel: Kernel, *ways: list[Link]) -> tuple[list[Pipe[str]], list[tuple[float, str]]]:
    ends: list[tuple[float, str]] = []
    return [Pipe(kernel, way, lambda tag: ends.append((kernel.now_ns() / 1e9, tag))) for way in ways], ends


def test_two_pipes_share_a_link_and_the_last_one_has_it_alone() -> None:
    """100 bytes each at 100 bytes a second, the second half a second later: 0.5 s alone, both at half, the rest alone.
    Red when a transfer keeps the rate that it began with."""
    kernel = Kernel()
    (one, two), ends = pipes(kernel, *([shared] for shared in [link(kernel, bandwidth_bytes_per_s=100.0)] * 2))
    one.put("one", 100)
    kernel.call_at(seconds(0.5), two.put, "two", 100)
    kernel.run()
    assert ends == [(pytest.approx(1.5), "one"), (pytest.approx(2.0), "two")]


def test_a_pipe_moves_at_its_narrowest_share_and_its_jobs_one_after_the_other() -> None:
    kernel = Kernel()
    wide, narrow = link(kernel, bandwidth_bytes_per_s=100.0), link(kernel, bandwidth_bytes_per_s=10.0)
    (slow, fast), ends = pipes(kernel, [wide, narrow], [wide])
    for tag, num_bytes in (("first", 10), ("question", 0), ("second", 20)):
        slow.put(tag, num_bytes)
    fast.put("fast", 100)
    kernel.run()
    assert [(round(at_s, 6), tag) for at_s, tag in ends] == [
        (1.0, "first"),
        (1.0, "question"),
        (2.0, "fast"),
        (3.0, "second"),
    ]
    assert (wide.num_bytes, narrow.num_bytes) == (130, 30)
    assert (wide.busy_ns, narrow.busy_ns) == (seconds(3.0), seconds(3.0))


def test_a_dropped_job_frees_the_link_and_a_cut_link_stops_bytes() -> None:
    kernel = Kernel()
    shared = link(kernel, bandwidth_bytes_per_s=100.0)
    (one, two), ends = pipes(kernel, [shared], [shared])
    one.put("dropped", 1000)
    one.put("next", 50)
    two.put("two", 100)
    kernel.call_at(seconds(1.0), one.drop, lambda tag: tag == "dropped")
    kernel.call_at(seconds(1.5), shared.cut)
    kernel.call_at(seconds(11.5), shared.heal)
    kernel.run()
    assert sorted(tag for _, tag in ends) == ["next", "two"]
    assert [at_s for at_s, _ in ends] == pytest.approx([12.0, 12.0])
