"""What every KVTransport promises, on shared memory, TCP, the fake, the simulated network, and the example of the page
for developers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_rigs import NUM_BLOCKS, Rig, make_layout, make_reservation

from relevo.core.events import TransferFailed, TransferSealed, WritesEnded
from relevo.policy.worker.block_cut import cut_block

KINDS = ("shm", "tcp", "tcp-nodes", "fake", "sim", "heap")


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with closing(Rig(request.param)) as rig:
        yield rig


def contents(rig: Rig, count: int, salt: int = 1) -> list[bytes]:
    size = rig.layout.bytes_per_block
    return [bytes((salt + 7 * block + i) % 251 + 1 for i in range(size)) for block in range(count)]


def received(rig: Rig, block_ids: list[int]) -> list[bytes]:
    return [bytes(rig.receiver.arena.block(block_id)) for block_id in block_ids]


@settings(max_examples=15, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_written_bytes_arrive_exactly_and_nowhere_else(data: st.DataObject, kind: str) -> None:
    """Red if a seal is acknowledged before its writes, a chunk lands at another index, or a block is cut short."""
    block_bytes = data.draw(st.sampled_from([32, 64, 4096, 96 * 1024]))
    block_ids = data.draw(st.lists(st.integers(0, NUM_BLOCKS - 1), min_size=1, max_size=9, unique=True))
    num_hits = data.draw(st.integers(0, len(block_ids) - 1))
    with closing(Rig(kind, make_layout(block_bytes))) as rig:
        sender = rig.join()
        reservation = make_reservation(block_ids, hits=num_hits * rig.layout.block_size)
        rig.receiver.transport.reserve(reservation)
        want = contents(rig, len(block_ids))
        first, num_bytes = num_hits, 0
        while first < len(block_ids):
            last = data.draw(st.integers(first + 1, len(block_ids)))
            sender.compute(reservation, rig.address, first, want[first:last])
            sender.transport.seal(reservation, rig.address, last * rig.layout.block_size)
            event = rig.next_event(sender)
            num_bytes += (last - first) * rig.layout.bytes_per_block
            assert isinstance(event, TransferSealed)
            assert event.reservation == reservation
            assert (event.num_tokens, event.num_bytes) == (last * rig.layout.block_size, num_bytes)
            assert event.transfer_s >= 0
            assert received(rig, block_ids[num_hits:last]) == want[num_hits:last]
            first = last
        untouched = [b for b in range(NUM_BLOCKS) if b not in block_ids[num_hits:]]
        assert not any(any(content) for content in received(rig, untouched))


@pytest.mark.parametrize("old", [{"generation": 4}, {"epoch": 0}, {"name": "other"}])
def test_a_write_under_an_old_right_is_refused(rig: Rig, old: dict[str, int]) -> None:
    if rig.kind == "shm" and "name" in old:
        pytest.skip("shared memory tells requests apart by generation alone")
    now = {"generation": 5, "epoch": 1}
    rig.receiver.transport.reserve(make_reservation([3, 5], **now))
    stale = make_reservation([3, 5], **(now | old))
    sender = rig.join()
    sender.compute(stale, rig.address, 0, contents(rig, 2))
    sender.transport.seal(stale, rig.address, 8)
    event = rig.next_event(sender)
    assert isinstance(event, TransferFailed)
    assert event.stale
    assert not sender.transport.may_write(stale)
    assert not any(map(any, received(rig, [3, 5])))
    counters = rig.receiver if rig.kind != "shm" else sender
    assert counters.transport.num_refused_writes >= 1


def test_one_block_of_another_generation_spoils_the_write(rig: Rig) -> None:
    """Red if only the first block's generation is compared."""
    rig.receiver.transport.reserve(make_reservation([3], generation=5))
    rig.receiver.transport.reserve(make_reservation([4], generation=9, name="second"))
    sender = rig.join()
    mixed = make_reservation([3, 4], generation=5)
    sender.compute(mixed, rig.address, 0, contents(rig, 2))
    event = rig.next_event(sender)
    assert isinstance(event, TransferFailed)
    assert event.stale
    assert not any(map(any, received(rig, [3, 4])))


def test_a_late_write_after_release_never_lands(rig: Rig) -> None:
    sender = rig.join()
    reservation = make_reservation([1, 2, 3])
    rig.receiver.transport.reserve(reservation)
    first = contents(rig, 1)
    sender.compute(reservation, rig.address, 0, first)
    sender.transport.seal(reservation, rig.address, 4)
    assert isinstance(rig.next_event(sender), TransferSealed)
    rig.receiver.transport.release(reservation)
    rig.receiver.transport.release(reservation)  # idempotent
    sender.compute(reservation, rig.address, 1, contents(rig, 2, salt=9))
    sender.transport.seal(reservation, rig.address, 12)
    event = rig.next_event(sender)
    assert isinstance(event, TransferFailed)
    assert event.stale
    assert received(rig, [1]) == first
    assert not any(map(any, received(rig, [2, 3])))


def test_releasing_an_old_reservation_leaves_the_new_owner_alone(rig: Rig) -> None:
    old, new = make_reservation([6], generation=1), make_reservation([6], generation=2, name="new")
    rig.receiver.transport.reserve(old)
    rig.receiver.transport.reserve(new)
    rig.receiver.transport.release(old)
    sender = rig.join()
    want = contents(rig, 1)
    sender.compute(new, rig.address, 0, want)
    sender.transport.seal(new, rig.address, 4)
    assert isinstance(rig.next_event(sender), TransferSealed)
    assert received(rig, [6]) == want


def test_after_cancel_the_senders_blocks_are_its_own_again(rig: Rig) -> None:
    """Red if a queued or half-sent write survives cancel: it would carry the bytes put there afterwards."""
    sender = rig.join()
    cancelled, other = make_reservation([0, 1, 2, 3, 4, 5, 6, 7]), make_reservation([9], name="other")
    rig.receiver.transport.reserve(cancelled)
    rig.receiver.transport.reserve(other)
    sender.compute(cancelled, rig.address, 0, contents(rig, 8))
    sender.transport.seal(cancelled, rig.address, 32)
    was_quiet = sender.transport.cancel(cancelled)
    sender.transport.cancel(cancelled)  # idempotent
    landed, meant = received(rig, list(range(8))), contents(rig, 8)
    if not sender.is_zero_copy:
        for block_id in range(8):
            sender.arena.block(block_id)[:] = b"\xff" * rig.layout.bytes_per_block
    sender.compute(other, rig.address, 0, contents(rig, 1))
    sender.transport.seal(other, rig.address, 4)
    events = [rig.next_event(sender) for _ in range(1 if was_quiet else 2)]  # by then all that was sent has arrived
    assert {type(event): event.reservation for event in events} == (
        {TransferSealed: other} if was_quiet else {TransferSealed: other, WritesEnded: cancelled}
    )
    assert not sender.transport.poll()
    for now, before, sent in zip(received(rig, list(range(8))), landed, meant, strict=True):
        assert now == before or (now == sent and not was_quiet)


def test_two_senders_do_not_mix(rig: Rig) -> None:
    senders = [rig.join(), rig.join()]
    reservations = [make_reservation([0, 2, 4, 6], name="even"), make_reservation([1, 3, 5, 7], name="odd")]
    want = [contents(rig, 4, salt=1), contents(rig, 4, salt=100)]
    for reservation in reservations:
        rig.receiver.transport.reserve(reservation)
    for index in range(4):
        for sender, reservation, blocks in zip(senders, reservations, want, strict=True):
            sender.compute(reservation, rig.address, index, blocks[index : index + 1])
    for sender, reservation, blocks in zip(senders, reservations, want, strict=True):
        sender.transport.seal(reservation, rig.address, 16)
        event = rig.next_event(sender)
        assert isinstance(event, TransferSealed)
        assert event.num_bytes == 4 * rig.layout.bytes_per_block
        assert received(rig, list(reservation.block_ids)) == blocks


def test_blocks_that_the_receiver_has_or_that_are_not_reserved_cannot_be_written(rig: Rig) -> None:
    sender = rig.join()
    reservation = make_reservation([0, 1, 2], hits=4)
    rig.receiver.transport.reserve(reservation)
    with pytest.raises(ValueError, match="not open"):
        sender.transport.write(reservation, rig.address, 0, [5])
    with pytest.raises(ValueError, match="not open"):
        sender.transport.write(reservation, rig.address, 2, [5, 6])


def test_a_new_incarnation_refuses_the_old_ones_writers(rig: Rig) -> None:
    """Red if rights outlive the process that granted them."""
    sender = rig.join()
    reservation = make_reservation([1, 2])
    rig.receiver.transport.reserve(reservation)
    sender.compute(reservation, rig.address, 0, contents(rig, 1))
    sender.transport.seal(reservation, rig.address, 4)
    assert isinstance(rig.next_event(sender), TransferSealed)
    rig.restart_receiver()
    sender.compute(reservation, rig.address, 1, contents(rig, 1))
    sender.transport.seal(reservation, rig.address, 8)
    assert isinstance(rig.next_event(sender), TransferFailed)  # over tcp the broken link may be noticed first
    assert not any(received(rig, [2])[0])


@pytest.mark.parametrize("kind", ["tcp", "tcp-nodes", "fake", "sim", "heap"])
def test_the_death_of_the_receiver_fails_what_is_under_way(kind: str) -> None:
    with closing(Rig(kind)) as rig:
        sender = rig.join()
        reservation = make_reservation([1, 2])
        rig.receiver.transport.reserve(reservation)
        address = rig.address
        sender.compute(reservation, address, 0, contents(rig, 1))
        rig.receiver.transport.close()
        sender.compute(reservation, address, 1, contents(rig, 1))
        sender.transport.seal(reservation, address, 8)
        event = rig.next_event(sender)
        assert isinstance(event, TransferFailed)
        assert not event.stale
        assert not sender.transport.poll()  # reported once
        sender.transport.cancel(reservation)
        sender.transport.write(reservation, address, 0, [0])
        assert isinstance(rig.next_event(sender), TransferFailed)  # nobody there any more


@pytest.mark.parametrize("kind", ["tcp", "tcp-nodes", "fake", "heap"])
@pytest.mark.parametrize(("own_size", "size"), [(4, 8), (8, 4), (4, 6)])
def test_blocks_arrive_in_the_size_of_the_receiver(kind: str, own_size: int, size: int) -> None:
    """A prompt of 22 tokens of which the receiver has one block, in two chunks. Red when bytes are counted in the
    sender's blocks, when a block is missing or half, or when a frame ends within one."""
    token_bytes, num_prompt = 16, 22
    with closing(Rig(kind, make_layout(token_bytes * size, size))) as rig:
        sender = rig.join(layout=make_layout(token_bytes * own_size, own_size))
        own, theirs = list(range(9, 9 - -(-num_prompt // own_size), -1)), [5, 1, 8, 3, 9, 0][: -(-num_prompt // size)]
        reservation = make_reservation(theirs, hits=size, block_size=size)
        rig.receiver.transport.reserve(reservation)
        keys, values = (bytes(range(first, first + num_prompt * 8)) for first in (1, 70))
        for block, content in zip(own, in_blocks(keys, values, own_size), strict=True):
            sender.arena.block(block)[:] = content
        blocks = [cut_block(own, own_size, size, index, num_prompt) for index in range(len(theirs))]
        sender.transport.write(reservation, rig.address, 1, blocks[1:2])
        sender.transport.seal(reservation, rig.address, 2 * size)
        sealed = rig.next_event(sender)
        assert isinstance(sealed, TransferSealed) and sealed.num_bytes == rig.layout.bytes_per_block
        sender.transport.write(reservation, rig.address, 2, blocks[2:])
        sender.transport.seal(reservation, rig.address, num_prompt)
        sealed = rig.next_event(sender)
        assert isinstance(sealed, TransferSealed)
        assert sealed.num_bytes == (len(theirs) - 1) * rig.layout.bytes_per_block
        assert received(rig, theirs) == [bytes(rig.layout.bytes_per_block), *in_blocks(keys, values, size)[1:]]
        with pytest.raises(ValueError, match="have to be cut"):
            sender.transport.write(reservation, rig.address, 1, own[1:2])


def in_blocks(keys: bytes, values: bytes, size: int) -> list[bytes]:
    """Of a layer and a head; 8 bytes per token."""
    num_bytes = size * 8
    starts = range(0, len(keys), num_bytes)
    parts = [(keys[start : start + num_bytes], values[start : start + num_bytes]) for start in starts]
    return [key.ljust(num_bytes, b"\0") + value.ljust(num_bytes, b"\0") for key, value in parts]


@pytest.mark.parametrize("kind", ["tcp", "tcp-nodes", "fake", "sim", "heap"])
def test_another_layout_is_refused_in_one_sentence(kind: str) -> None:
    with closing(Rig(kind)) as rig:
        sender = rig.join(layout=make_layout(128))
        reservation = make_reservation([1])
        rig.receiver.transport.reserve(reservation)
        sender.transport.write(reservation, rig.address, 0, [0])
        event = rig.next_event(sender)
        assert isinstance(event, TransferFailed)
        assert not event.stale
        assert "groups" in event.reason
