"""One suite for the ways between ranks: threads of one process, shared memory, a process group. Red when arrays arrive
out of order, changed, or not at all where they are larger than a ring, and when the end of a rank is not seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from listening import listening_hosts
from relevo.engine.ops.torch import process_group
from relevo.engine.ranks import shared_memory
from relevo.engine.ranks.collectives import Collectives, RankLost
from relevo.engine.ranks.pairwise import PairwiseCollectives, tree_sum
from relevo.engine.ranks.shared_memory import join_ranks, open_ends

Make = Callable[[int], list[Collectives]]
WAIT_S = 60.0


@pytest.fixture(params=["local", "shm", "gloo"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Collectives] = []

    def ranks(size: int) -> list[Collectives]:
        if request.param == "local":
            made.extend(PairwiseCollectives.local(size))
        elif request.param == "gloo":
            monkeypatch.setattr(process_group, "FRAME_BYTES", 256)  # so that most messages have a rest
            store_fd = os.memfd_create("ranks")
            made.extend(process_group.join_ranks("gloo", rank, size, store_fd) for rank in range(size))
            os.close(store_fd)
        else:
            monkeypatch.setattr(shared_memory, "RING_BYTES", 256)  # so that most messages are larger
            ends = open_ends(size)
            made.extend(join_ranks(rank, each) for rank, each in enumerate(ends))
            os.close(ends[0].memory_fd)
        return made

    yield ranks
    for each in made:
        each.close()


def on_all(ranks: list[Collectives], call: Callable[[Collectives], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return [future.result(WAIT_S) for future in [pool.submit(call, each) for each in ranks]]


def test_arrays_arrive_in_order_with_shape_and_bits(make: Make) -> None:
    ranks = make(2)
    sent = [
        [np.arange(count, dtype=np.int64), np.zeros((count, 0), np.float32), np.full((3, count), np.nan, np.float32)]
        for count in (0, 1, 7, 300, 31)
    ]

    def speak(each: Collectives) -> list[Any]:
        if each.rank == 0:
            for arrays in sent:
                each.send(1, arrays)
            return []
        return [each.receive(0) for _ in sent]

    _, received = on_all(ranks, speak)
    for there, here in zip(received, sent, strict=True):
        for one, other in zip(there, here, strict=True):
            assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
            assert one.flags.writeable


def test_what_was_sent_may_be_written_again(make: Make) -> None:
    ranks, array = make(2), np.arange(8)
    ranks[0].send(1, [array])
    array[:] = -1
    assert ranks[1].receive(0)[0].tolist() == list(range(8))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_all_ranks_get_what_one_says(make: Make, size: int) -> None:
    told = on_all(make(size), lambda each: each.broadcast(size - 1, [np.full(100, each.rank)]))
    assert [arrays[0].tolist() for arrays in told] == [[size - 1] * 100] * size


@pytest.mark.parametrize("size", [2, 3, 5])
def test_gathered_arrays_are_in_the_order_of_ranks(make: Make, size: int) -> None:
    """Larger than a ring in both directions at once: red for two ranks that both wait for the other to read."""
    gathered = on_all(make(size), lambda each: each.all_gather(np.full(200 + each.rank, each.rank)))
    expected = [[rank] * (200 + rank) for rank in range(size)]
    assert [[part.tolist() for part in parts] for parts in gathered] == [expected] * size


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_sums_have_one_order_of_addition_on_every_rank(make: Make, size: int) -> None:
    parts = [np.random.default_rng(rank).normal(0, 10.0**rank, 90).astype(np.float32) for rank in range(size)]

    def add(each: Collectives) -> np.ndarray:
        own = parts[each.rank].copy()
        each.all_reduce(own)
        return own

    sums = on_all(make(size), add)
    for each in sums:
        np.testing.assert_array_equal(each, tree_sum(parts))
    if size == 4:
        np.testing.assert_array_equal(sums[0], (parts[0] + parts[1]) + (parts[2] + parts[3]))
    if size == 5:
        np.testing.assert_array_equal(sums[0], ((parts[0] + parts[1]) + (parts[2] + parts[3])) + parts[4])


def test_many_messages_in_both_directions(make: Make) -> None:
    """Rings wrap, and are given back, at every offset."""
    sizes = np.random.default_rng(1).integers(0, 90, 300).tolist()

    def speak(each: Collectives) -> int:
        other, right = 1 - each.rank, 0
        for number, count in enumerate(sizes):
            own = np.full(count, number + each.rank, np.int32)
            if each.rank == 0:
                each.send(other, [own])
            right += each.receive(other)[0].tolist() == [number + other] * count
            if each.rank == 1:
                each.send(other, [own])
        return right

    assert on_all(make(2), speak) == [len(sizes)] * 2


def test_a_rank_that_closes_is_lost_to_the_others(make: Make) -> None:
    ranks = make(3)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ranks[0].receive, 1)
        ranks[1].close()
        ranks[1].close()
        with pytest.raises(RankLost) as lost:
            waiting.result(WAIT_S)
    assert lost.value.rank == 1
    with pytest.raises(RankLost):
        ranks[2].receive(1)


def test_what_was_said_before_the_end_is_heard(make: Make) -> None:
    ranks = make(2)
    ranks[1].send(0, [np.arange(3)])
    ranks[1].close()
    assert ranks[0].receive(1)[0].tolist() == [0, 1, 2]
    with pytest.raises(RankLost):
        ranks[0].receive(1)


_CHILD = """
import sys
from relevo.engine.ranks.shared_memory import RankEnds, join_ranks
memory_fd, socket_fd = map(int, sys.argv[1:])
ranks = join_ranks(1, RankEnds(memory_fd, {0: socket_fd}))
while True:
    ranks.send(0, [array + 1 for array in ranks.receive(0)])
"""


def test_between_processes_and_a_process_that_is_killed() -> None:
    """In the middle of an array that fills the ring: the sender sleeps for room, and is woken by the other's end."""
    own, others = open_ends(2)
    ranks = join_ranks(0, own)
    passed = (others.memory_fd, *others.socket_fds.values())
    child = subprocess.Popen([sys.executable, "-c", _CHILD, *map(str, passed)], pass_fds=passed)
    try:
        others.close_sockets()
        array = np.arange(3 * shared_memory.RING_BYTES // 8)
        ranks.send(1, [array, array[:5]])
        large, small = ranks.receive(1)
        np.testing.assert_array_equal(large, array + 1)
        assert small.tolist() == [1, 2, 3, 4, 5]
        os.kill(child.pid, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(ranks.send, 1, [array])
            os.kill(child.pid, signal.SIGKILL)
            with pytest.raises(RankLost):
                sending.result(WAIT_S)
        with pytest.raises(RankLost):
            ranks.receive(1)
    finally:
        child.kill()
        child.wait()
        ranks.close()
        os.close(own.memory_fd)


_GROUP_CHILD = """
import sys
from relevo.engine.ops.torch.process_group import join_ranks
ranks = join_ranks("gloo", 1, 2, int(sys.argv[1]))
while True:
    ranks.send(0, [array + 1 for array in ranks.receive(0)])
"""


def test_a_process_of_a_group_that_is_killed() -> None:
    """Whoever waits for it is woken, and a send of more than it has read raises: red when a call goes on for ever."""
    store_fd = os.memfd_create("ranks", 0)
    ranks = process_group.join_ranks("gloo", 0, 2, store_fd)
    child = subprocess.Popen([sys.executable, "-c", _GROUP_CHILD, str(store_fd)], pass_fds=(store_fd,))
    try:
        array = np.arange(1_000_000)
        ranks.send(1, [array, array[:5]])
        large, small = ranks.receive(1)
        np.testing.assert_array_equal(large, array + 1)
        assert small.tolist() == [1, 2, 3, 4, 5]
        assert listening_hosts(child.pid) == {"127.0.0.1"}
        os.kill(child.pid, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ranks.receive, 1)
            os.kill(child.pid, signal.SIGKILL)
            with pytest.raises(RankLost):
                waiting.result(WAIT_S)
        with pytest.raises(RankLost):
            ranks.receive(1)
        with pytest.raises(RankLost):
            ranks.send(1, [array])
    finally:
        child.kill()
        child.wait()
        ranks.close()
        os.close(store_fd)
