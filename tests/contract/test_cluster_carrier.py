"""A stream of bytes that moves to new connections while it runs. Red when a byte is lost, repeated or overtaken, or
when the end of one side does not reach the other."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cluster_rigs import WORD, Head, Word, echo, running_head, until

from relevo.cluster.carrier import Carrier
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.moving import Move, Mover, Moves
from relevo.cluster.opening import Purpose
from relevo.cluster.peer import NodeRole, PeerRefused, Refusal
from relevo.cluster.stream import FramedStream, open_stream
from relevo.core.errors import WorkerLost


class Echo(asyncio.Protocol):
    """Sends back what comes, as fast as it is taken."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.over = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()


class Sink(asyncio.Protocol):
    def __init__(self) -> None:
        self.digest, self.num_bytes = hashlib.sha256(), 0
        self.end: list[Exception | None] = []
        self.may_write = asyncio.Event()
        self.may_write.set()

    def data_received(self, data: bytes) -> None:
        self.digest.update(data)
        self.num_bytes += len(data)

    def pause_writing(self) -> None:
        self.may_write.clear()

    def resume_writing(self) -> None:
        self.may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end.append(exc)
        self.may_write.set()


class Rig:
    """A node that echoes, and a gateway (of a head of its own) with one link to it."""

    def __init__(self) -> None:
        self.moves = Moves()
        self.echoes: list[Echo] = []

    async def link(self, stream: FramedStream, _about: bytes) -> None:
        carrier, far = self.moves.carrier(stream), Echo()
        self.echoes.append(far)
        carrier.start(far)
        try:
            await far.over.wait()
        finally:
            carrier.abort()

    async def open(self, head: Head, gateway: NodeIdentity) -> None:
        self.head, self.gateway = head, gateway
        self.mover = Mover(gateway, head.guard)
        stream = await open_stream(head.place, Purpose.LINK, identity=gateway)
        self.stream_id = stream.stream_id
        self.near = Sink()
        self.carrier = self.mover.carry(stream, head.place, "head-a")
        self.carrier.start(self.near)

    async def move(self) -> None:
        newer = await self.mover._agreed(self.head.place, "head-a", Move(self.stream_id))
        self.carrier.move_to(newer, speaks_first=True)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig()
    async with running_head(tmp_path / "head", {Purpose.LINK: rig.link, Purpose.MOVE: rig.moves.serve}) as head:
        await rig.open(head, await head.join(tmp_path / "gateway", "c", NodeRole.HEAD))
        yield rig


async def test_no_byte_is_lost_repeated_or_overtaken_by_moves_under_load(rig: Rig) -> None:
    rng, expected, num_bytes = random.Random(4), hashlib.sha256(), 0

    async def move_often() -> None:
        for _ in range(12):
            await rig.move()
            await until(lambda: rig.carrier.can_move)

    moving = asyncio.create_task(move_often())
    while not moving.done():
        data = rng.randbytes(rng.choice((1, 20, 300, 70_000)))
        expected.update(data)
        num_bytes += len(data)
        rig.carrier.write(data)
        await rig.near.may_write.wait()
        await asyncio.sleep(0)
    await moving
    await until(lambda: rig.near.num_bytes == num_bytes)
    assert rig.near.digest.digest() == expected.digest()
    assert rig.carrier.num_received_bytes == rig.carrier.num_sent_bytes == num_bytes
    await until(lambda: rig.head.server.num_streams == 2)  # the one it began with has its handler, and the last
    assert not rig.near.end


@pytest.mark.parametrize("num_moves", [0, 2])
async def test_the_end_of_one_side_is_the_end_of_both_once_what_was_sent_has_arrived(rig: Rig, num_moves: int) -> None:
    for _ in range(num_moves):
        await rig.move()
        await until(lambda: rig.carrier.can_move)
    rig.echoes[0].transport.write(b"last words")
    rig.echoes[0].transport.close()
    await until(lambda: bool(rig.near.end))
    assert rig.near.num_bytes == len(b"last words")
    await until(lambda: rig.head.server.num_streams == 0 and rig.moves.num_carriers == 0)
    assert len(rig.near.end) == 1 and not rig.mover._tasks
    with pytest.raises(PeerRefused, match="has ended"):
        await rig.mover._agreed(rig.head.place, "head-a", Move(rig.stream_id))


async def test_what_is_not_read_stops_the_other_end_and_is_bounded(rig: Rig) -> None:
    rig.carrier.pause_reading()
    sent = 0
    while rig.near.may_write.is_set() and sent < 64 << 20:
        rig.carrier.write(bytes(1 << 16))
        sent += 1 << 16
        await asyncio.sleep(0)
    assert sent < 64 << 20, "back-pressure goes round"
    assert rig.echoes[0].transport.get_write_buffer_size() < 4 << 20
    rig.carrier.resume_reading()
    await until(lambda: rig.near.num_bytes == sent)


async def test_a_move_while_reading_is_paused_waits_for_the_reader(rig: Rig) -> None:
    rig.carrier.pause_reading()
    rig.carrier.write(b"a" * 100_000)
    await rig.move()
    rig.carrier.write(b"b" * 10)
    await asyncio.sleep(0.05)
    assert rig.near.num_bytes == 0 and not rig.carrier.can_move
    rig.carrier.resume_reading()
    await until(lambda: rig.near.num_bytes == 100_010)
    assert rig.near.digest.digest() == hashlib.sha256(b"a" * 100_000 + b"b" * 10).digest()
    assert rig.carrier.can_move


async def test_another_node_cannot_take_a_link_over(rig: Rig, tmp_path: Path) -> None:
    """Even if it knows the id, which is told to the two ends alone."""
    thief = await rig.head.join(tmp_path / "thief", "d", NodeRole.HEAD)
    mover = Mover(thief, rig.head.guard)
    with pytest.raises(PeerRefused, match="has ended"):
        await mover._agreed(rig.head.place, "head-a", Move(rig.stream_id))
    rig.carrier.write(b"still here")
    await until(lambda: rig.near.num_bytes == 10)


async def test_a_node_that_is_revoked_loses_its_links_also_those_that_moved(rig: Rig) -> None:
    await rig.move()
    await until(lambda: rig.carrier.can_move)
    rig.head.enroller.revoke("c")
    rig.head.guard.look()
    await until(lambda: bool(rig.near.end) and rig.head.server.num_streams == 0)
    assert rig.echoes[0].over.is_set()


async def test_the_old_connections_certificate_is_nothing_to_a_link_that_has_moved(rig: Rig) -> None:
    """Red when a link dies with the certificate of a connection that it has left."""
    await rig.move()
    await until(lambda: rig.carrier.can_move)
    first = next(stream for stream in rig.head.guard._streams if isinstance(stream, FramedStream)
                 and stream.stream_id == rig.stream_id)  # fmt: skip
    first.end(PeerRefused(Refusal.EXPIRED, "its certificate has expired"))
    rig.carrier.write(b"goes on")
    await until(lambda: rig.near.num_bytes == 7)
    assert not rig.near.end


async def test_a_connection_that_breaks_in_a_move_is_an_end_and_no_gap(rig: Rig) -> None:
    newer = await rig.mover._agreed(rig.head.place, "head-a", Move(rig.stream_id))
    rig.carrier.write(b"x" * 100)
    rig.carrier.move_to(newer, speaks_first=True)
    newer.end(PeerRefused(Refusal.EXPIRED, "broken"))
    await until(lambda: bool(rig.near.end))
    assert rig.near.num_bytes <= 100
    assert isinstance(rig.carrier, Carrier) and rig.carrier.is_closing()


async def test_a_stream_of_messages_outlives_the_connection_that_it_began_with(tmp_path: Path) -> None:
    """As a member's: its frames, its ends and its peer are those of before."""
    moves = Moves()

    async def echo_over(stream: FramedStream, about: bytes) -> None:
        moves.keep(stream)
        await echo(stream, about)

    async with running_head(tmp_path / "head", {Purpose.MEMBER: echo_over, Purpose.MOVE: moves.serve}) as head:
        node = await head.join(tmp_path / "b", "b")
        mover = Mover(node, head.guard)
        stream = await open_stream(head.place, Purpose.MEMBER, identity=node, name="head-a")
        mover.keep(stream, head.place, "head-a")
        carrier = stream._ridden
        assert isinstance(carrier, Carrier)
        for number in range(5):
            for _ in range(3):
                stream.send(Word(number, b"x" * 5000))
            newer = await mover._agreed(head.place, "head-a", Move(stream.stream_id))
            await until(lambda: carrier.can_move)
            carrier.move_to(newer, speaks_first=True)
            for _ in range(3):
                assert await stream.receive(WORD) == Word(number, b"x" * 5000)
        assert stream.peer is not None and stream.peer.name == "head-a"
        assert stream.remote_address == head.place
        head.enroller.revoke("b")
        head.guard.look()
        with pytest.raises(WorkerLost):
            await stream.receive(WORD)
        await until(lambda: moves.num_carriers == 0)
