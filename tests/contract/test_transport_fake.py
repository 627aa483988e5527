"""The fake transport's storm: whatever it does, a sealed transfer is right and a seed tells the same story twice."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_rigs import Rig, make_reservation

from relevo.core.events import TransferEvent, TransferFailed, TransferSealed
from relevo.kv.transports.fake import Faults

BLOCKS = [0, 2, 4, 6, 8, 10]
STORM = Faults(delay_ns=(0, 1000), duplicate_probability=0.3, reorder_probability=0.5)


def send_all(rig: Rig) -> list[TransferEvent]:
    """One transfer, block by block with a seal behind each; returns what the sender was told.

    The sender's blocks are used for something else as soon as they are sealed.
    """
    sender = rig.workers[-1] if len(rig.workers) > 1 else rig.join()
    reservation = make_reservation(BLOCKS)
    rig.receiver.transport.reserve(reservation)
    for index in range(len(BLOCKS)):
        sender.compute(reservation, rig.address, index, [bytes([index + 1]) * rig.layout.bytes_per_block])
        sender.transport.seal(reservation, rig.address, (index + 1) * rig.layout.block_size)
    events: list[TransferEvent] = []
    for _ in range(100):
        rig.hub.advance(rig.hub.now_ns + 100)
        events += sender.transport.poll()
        for event in events:
            if isinstance(event, TransferSealed):
                for index in range(event.num_tokens // rig.layout.block_size):
                    content = bytes(rig.receiver.arena.block(BLOCKS[index]))
                    assert content == bytes([index + 1]) * rig.layout.bytes_per_block
                    sender.arena.block(index)[:] = b"\xff" * rig.layout.bytes_per_block
    return events


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_late_copies_and_disorder_never_show_through_a_seal(seed: int) -> None:
    """Red if a seal overtakes its writes, or a duplicate carries bytes put into the block after the seal."""
    with closing(Rig("fake", faults=STORM, seed=seed)) as rig:
        events = send_all(rig)
        sealed = [event.num_tokens for event in events if isinstance(event, TransferSealed)]
        assert sorted(sealed) == [4, 8, 12, 16, 20, 24]


def test_the_storm_blows() -> None:
    with closing(Rig("fake", faults=STORM)) as rig:
        send_all(rig)
        assert rig.hub.num_faults["duplicated"] > 0
        assert rig.hub.num_faults["reordered"] > 0


@given(st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_a_seed_tells_the_same_story_twice(seed: int) -> None:
    faults = Faults(delay_ns=(0, 1000), drop_probability=0.1, duplicate_probability=0.3, reorder_probability=0.5)
    stories = []
    for _ in range(2):
        with closing(Rig("fake", faults=faults, seed=seed)) as rig:
            stories.append((send_all(rig), rig.hub.num_faults))
    assert stories[0] == stories[1]


def test_what_is_dropped_is_never_sealed_and_cancel_ends_it() -> None:
    with closing(Rig("fake", faults=Faults(drop_probability=1.0))) as rig:
        assert send_all(rig) == []
        sender = rig.workers[-1]
        sender.transport.cancel(make_reservation(BLOCKS))
        rig.pump()
        assert sender.transport.poll() == []


@pytest.mark.parametrize("checksum", [True, False])
def test_corruption_is_caught_by_checksums_only(checksum: bool) -> None:
    with closing(Rig("fake", faults=Faults(corrupt_probability=1.0))) as rig:
        rig.hub.checksum = checksum
        sender, reservation = rig.join(), make_reservation([3])
        rig.receiver.transport.reserve(reservation)
        sender.compute(reservation, rig.address, 0, [b"\x55" * rig.layout.bytes_per_block])
        sender.transport.seal(reservation, rig.address, 4)
        event = rig.next_event(sender)
        assert bytes(rig.receiver.arena.block(3)) != b"\x55" * rig.layout.bytes_per_block
        if checksum:
            assert isinstance(event, TransferFailed)
            assert not event.stale
        else:
            assert isinstance(event, TransferSealed)


def test_nothing_moves_but_with_time() -> None:
    with closing(Rig("fake", faults=Faults(delay_ns=(500, 500)))) as rig:
        sender, reservation = rig.join(), make_reservation([3])
        rig.receiver.transport.reserve(reservation)
        sender.compute(reservation, rig.address, 0, [b"\x55" * rig.layout.bytes_per_block])
        rig.hub.advance(499)
        assert not any(rig.receiver.arena.block(3))
        rig.hub.advance(500)
        assert all(rig.receiver.arena.block(3))


def test_time_between_chunks_is_not_transfer_time() -> None:
    """Red if the account of a transfer runs while nothing of it is under way."""
    with closing(Rig("fake", faults=Faults(delay_ns=(500, 500)))) as rig:
        sender, reservation = rig.join(), make_reservation([3, 4])
        rig.receiver.transport.reserve(reservation)
        for index in range(2):
            sender.compute(reservation, rig.address, index, [b"\x55" * rig.layout.bytes_per_block])
            sender.transport.seal(reservation, rig.address, 4 * (index + 1))
            event = rig.next_event(sender)  # a millisecond passes
            assert isinstance(event, TransferSealed)
            assert event.transfer_s == pytest.approx((index + 1) * 1e-6)  # there and back


HAUNTED = Faults(ghost_probability=1.0, ghost_delay_ns=(1000, 2000))


def test_a_ghost_of_a_dead_sender_does_not_reach_the_next_owner_of_a_block() -> None:
    """Red if rights to write are checked by block only, or end with the sender instead of the reservation."""
    with closing(Rig("fake", faults=HAUNTED)) as rig:
        sender, first = rig.join(), make_reservation(BLOCKS)
        rig.receiver.transport.reserve(first)
        sender.compute(first, rig.address, 0, [b"old....." * (rig.layout.bytes_per_block // 8)])
        rig.hub.kill(sender.transport.address())
        rig.receiver.transport.release(first)
        rig.receiver.transport.reserve(make_reservation(BLOCKS, name="next", generation=1))
        rig.receiver.arena.block(BLOCKS[0])[:] = b"new....." * (rig.layout.bytes_per_block // 8)
        rig.hub.advance(5000)
        assert rig.hub.num_faults["haunted"] == 1
        assert bytes(rig.receiver.arena.block(BLOCKS[0])).startswith(b"new")
        assert rig.receiver.transport.num_refused_writes == 1


def test_a_ghost_of_an_open_reservation_changes_nothing() -> None:
    """It brings the bytes of the moment it was sent; the sender's block has other content by then."""
    with closing(Rig("fake", faults=HAUNTED)) as rig:
        sender, mine = rig.join(), make_reservation(BLOCKS)
        rig.receiver.transport.reserve(mine)
        sender.compute(mine, rig.address, 0, [b"first..." * (rig.layout.bytes_per_block // 8)])
        rig.hub.advance(500)
        sender.arena.block(0)[:] = b"second.." * (rig.layout.bytes_per_block // 8)
        rig.hub.advance(5000)
        assert bytes(rig.receiver.arena.block(BLOCKS[0])).startswith(b"first")
        assert rig.receiver.transport.num_refused_writes == 0
