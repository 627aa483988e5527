"""Encrypted records: what was sent arrives, in order and once, or the connection ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_rigs import WAIT_S, make_reservation

from relevo.core.errors import ProtocolError
from relevo.kv.grants import GrantTable
from relevo.kv.transports import tcp_sealing
from relevo.kv.transports.tcp_sealed_channel import SealedChannel
from relevo.kv.transports.tcp_sealing import HEADER, MAX_RECORD_BYTES, RecordKeys, checked_size, direction_secrets

ONE, OTHER = b"1" * 32, b"2" * 32
pieces = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=12)


def sealed(keys: RecordKeys, piece: bytes) -> bytes:
    into = memoryview(bytearray(tcp_sealing.record_bytes(len(piece))))
    assert keys.seal(piece, into) == len(into)
    return bytes(into)


def opened(keys: RecordKeys, record: bytes) -> bytes:
    into = memoryview(bytearray(checked_size(record[: HEADER.size])))
    keys.open(memoryview(record)[HEADER.size :], into)
    return bytes(into)


@given(pieces)
def test_what_is_sealed_opens_in_order_over_new_keys(sent: list[bytes]) -> None:
    """Red if a key is kept longer than it may be, or both ends do not change it at the same record."""
    sender, receiver = RecordKeys(ONE, 3), RecordKeys(ONE, 3)
    assert [opened(receiver, sealed(sender, piece)) for piece in sent] == sent


@given(pieces, st.data())
def test_no_key_and_nonce_serve_twice(sent: list[bytes], data: st.DataObject) -> None:
    """The same bytes never look the same again, whichever records there were before, also over new keys."""
    keys = RecordKeys(ONE, 2)
    records = [sealed(keys, b"the same bytes") for _ in sent] + [sealed(RecordKeys(OTHER), b"the same bytes")]
    assert len(set(records)) == len(records)


@given(pieces.filter(lambda sent: len(sent) > 1), st.data())
def test_what_is_changed_repeated_lost_or_cut_does_not_open(sent: list[bytes], data: st.DataObject) -> None:
    """Red if a network could alter what a worker computes with, unnoticed."""
    sender, receiver = RecordKeys(ONE, 4), RecordKeys(ONE, 4)
    records = [sealed(sender, piece) for piece in sent]
    at = data.draw(st.integers(0, len(records) - 1), "the first that is wrong")
    for record, piece in zip(records[:at], sent[:at], strict=True):
        assert opened(receiver, record) == piece
    record = bytearray(records[at])
    match data.draw(st.sampled_from(["flip", "repeat", "skip", "cut", "longer", "reflect"]), "how"):
        case "flip":
            bit = data.draw(st.integers(HEADER.size * 8, len(record) * 8 - 1))
            record[bit // 8] ^= 1 << bit % 8
        case "repeat":
            record = bytearray(records[at - 1] if at else records[1])
        case "skip":
            record = bytearray(records[at + 1] if at + 1 < len(records) else records[0])
        case "cut" if len(sent[at]) > 1:
            record = bytearray(HEADER.pack(len(sent[at]) - 1) + record[HEADER.size : -1])
        case "longer":
            record = bytearray(HEADER.pack(len(sent[at]) + 1) + record[HEADER.size :] + b"\0")
        case _:
            record = bytearray(sealed(RecordKeys(OTHER), sent[at]))
    with pytest.raises(ProtocolError, match="changed, repeated or lost"):
        opened(receiver, bytes(record))


def test_directions_and_connections_have_keys_of_their_own() -> None:
    secrets = {*direction_secrets(ONE, OTHER), *direction_secrets(OTHER, ONE), *direction_secrets(ONE, ONE)}
    assert len(secrets) == 6


@pytest.mark.parametrize("size", [0, MAX_RECORD_BYTES + 1, 2**32 - 1])
def test_a_header_announces_no_nonsense(size: int) -> None:
    with pytest.raises(ProtocolError, match="announced a record"):
        checked_size(HEADER.pack(size))
    with pytest.raises(ValueError, match="a record holds"):
        RecordKeys(ONE).seal(bytes(min(size, MAX_RECORD_BYTES + 1)), memoryview(bytearray(MAX_RECORD_BYTES + 99)))


@contextmanager
def pair() -> Iterator[tuple[SealedChannel, SealedChannel]]:
    one, other = socket.socketpair()
    for sock in (one, other):
        sock.settimeout(WAIT_S)
    with one, other:
        yield SealedChannel(one, ONE, OTHER), SealedChannel(other, OTHER, ONE)


sizes = st.lists(st.integers(1, MAX_RECORD_BYTES + 9), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(sizes, st.lists(st.integers(5000, MAX_RECORD_BYTES + 9), min_size=1, max_size=4), st.booleans())
def test_bytes_arrive_however_they_are_cut(sent: list[int], taken: list[int], is_stored: bool) -> None:
    """Red if the views of a sender and of a receiver have to be cut alike."""
    total = sum(sent)
    content = (
        bytes(i * 31 % 251 for i in range(1, 1 + total)) if total < 5000 else (b"relevo!" * (total // 7 + 1))[:total]
    )
    views, at = [], 0
    for size in sent:
        views.append(memoryview(content)[at : at + size])
        at += size
    target, cuts, at = memoryview(bytearray(total)), [], 0
    while at < total:
        size = taken[len(cuts) % len(taken)]
        cuts.append(target[at : at + size])
        at += size
    grants = GrantTable()
    reservation = make_reservation([1])
    grants.open(reservation)
    grant = grants.find("r", 1, 0, (1,), (0,)) if is_stored else None
    with pair() as (sender, receiver):
        thread = threading.Thread(target=sender.send, args=([*views, memoryview(b"next")],))
        thread.start()
        if is_stored:
            assert receiver.store(cuts, grant)
        else:
            receiver.receive_into(cuts)
        following = memoryview(bytearray(4))
        receiver.receive_into([following])
        thread.join()
    assert bytes(target) == content
    assert bytes(following) == b"next"


def test_what_comes_after_a_withdrawal_lands_nowhere_and_the_connection_goes_on() -> None:
    """Red if a record that was on its way is deciphered into blocks that have a new owner."""
    grants = GrantTable()
    reservation = make_reservation([1])
    grants.open(reservation)
    grant = grants.find("r", 1, 0, (1,), (0,))
    target = memoryview(bytearray(3 * MAX_RECORD_BYTES))
    with pair() as (sender, receiver):
        stored: list[bool] = []
        receiving = threading.Thread(target=lambda: stored.append(receiver.store([target], grant)))
        receiving.start()
        sender.send([memoryview(b"\x11" * MAX_RECORD_BYTES)])
        never = threading.Event()
        while target[MAX_RECORD_BYTES - 1] != 0x11:
            never.wait(0.001)
        grants.withdraw(reservation)
        target[:] = b"\xee" * len(target)
        sender.send([memoryview(b"\x11" * 2 * MAX_RECORD_BYTES), memoryview(b"next")])
        receiving.join(WAIT_S)
        assert stored == [False]
        assert bytes(target) == b"\xee" * len(target)
        following = memoryview(bytearray(4))
        receiver.receive_into([following])
        assert bytes(following) == b"next"
