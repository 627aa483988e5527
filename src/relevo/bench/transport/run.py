"""`relevo bench transport`: how long a KV transport takes to hand over so many bytes, without any model.

The blocks have the size of a small model's (30 layers, 3 KV heads of 64, float32, 16 tokens). `shm` hands over blocks
of one arena and moves nothing, so what is measured is the bookkeeping from reserve to seal; its GB/s are the rate at
which bytes change owner, not a copy. `tcp` sends from this process to a second one over the loopback. Reservations,
generations and acknowledgements are the real ones; every transfer's bytes are compared by checksum afterwards.
`sockets` is what a program without blocks, rights or keys would get: the same bytes over one plain connection.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from rich.table import Table

from relevo.bench.transport.peer import receive_blocks, receive_bytes
from relevo.core.errors import HandoffFailed, SettingsError
from relevo.core.events import TransferFailed, TransferSealed
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.kv import KVGroup, KVLayout, Reservation
from relevo.core.ports import KVTransport
from relevo.kv.arena import Arena
from relevo.kv.door import KVDoor
from relevo.kv.transports.shm import ShmTransport
from relevo.kv.transports.tcp import TcpTransport
from relevo.telemetry.latency import Summary, summarise
from relevo.telemetry.progress import SILENT, Progress

LAYOUT = KVLayout(
    model_hash="bench",
    dtype="float32",
    block_size=16,
    groups=(KVGroup.full(range(30), 3, 64),),
)
SEAL_TIMEOUT_S = 60.0  # arbitrary; a transfer that takes longer has failed
SENDER, RECEIVER = WorkerRef(WorkerId("bench-sender"), 1), WorkerRef(WorkerId("bench"), 1)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


class TransportKind(StrEnum):
    SHM = "shm"
    TCP = "tcp"
    SOCKETS = "sockets"


OpenDoor = Callable[[], KVDoor]  # in a process of its own, so what is pickled opens it there


@dataclass(frozen=True, slots=True)
class Doors:
    """Of two nodes, for what is measured between them; `told`: how, for the table."""

    senders: OpenDoor
    receivers: OpenDoor
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportCost:
    """`handoff_s`: reserve -> acknowledged seal. `write_s`: first write -> acknowledged seal."""

    transport: str
    num_bytes: int
    num_blocks: int
    handoff_s: Summary
    write_s: Summary

    @property
    def gigabytes_per_s(self) -> float:
        """From the median of `write_s`, 10^9 bytes."""
        return self.num_bytes / self.write_s.p50 / 1e9

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "gigabytes_per_s": self.gigabytes_per_s}


def parse_bytes(text: str) -> int:
    """Read `45MB`, `64MiB`, `1.5GB` or plain bytes. Raises SettingsError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?i?)b?\s*", text.lower())
    num_bytes = round(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0
    if num_bytes < 1:
        raise SettingsError(f"{text!r} is not a size; write 45MB, 64MiB or 1.5GB")
    return num_bytes


def measure_transport(
    kind: TransportKind,
    num_bytes: int,
    num_repeats: int,
    layout: KVLayout = LAYOUT,
    progress: Progress = SILENT,
    doors: Doors | None = None,
) -> TransportCost:
    """Hand over `num_bytes` (rounded up to whole blocks) `num_repeats` times, after one unmeasured warm-up. With
    `doors` tcp is measured as between boxes.

    Raises HandoffFailed if a transfer is refused, takes longer than SEAL_TIMEOUT_S or arrives damaged.
    """
    num_blocks = -(-num_bytes // layout.bytes_per_block)
    measure: Callable[[KVLayout, int, int, Progress], list[tuple[float, float]]]
    match kind:
        case TransportKind.SHM:
            measure = _measure_shm
        case TransportKind.SOCKETS:
            measure = _measure_sockets
        case TransportKind.TCP:
            measure = partial(_measure_tcp, doors)
    name = f"{kind.value} {doors.told}" if doors is not None and kind is TransportKind.TCP else kind.value
    progress.begin(f"handing over by {kind}", num_repeats + 1, "times")
    samples = measure(layout, num_blocks, num_repeats + 1, progress)[1:]
    return TransportCost(
        transport=name,
        num_bytes=num_blocks * layout.bytes_per_block,
        num_blocks=num_blocks,
        handoff_s=summarise([handoff_s for handoff_s, _ in samples]),
        write_s=summarise([write_s for _, write_s in samples]),
    )


def transport_table(costs: Sequence[TransportCost]) -> Table:
    table = Table(title="KV transport, ms", title_justify="left")
    for heading in ("transport", "MB", "blocks", "repeats", "handoff p50", "max", "write p50", "max", "GB/s"):
        table.add_column(heading, justify="right")
    for cost in costs:
        is_still = cost.transport == TransportKind.SHM  # nothing moves in shared memory
        seconds = (cost.handoff_s.p50, cost.handoff_s.max, cost.write_s.p50, cost.write_s.max)
        table.add_row(
            cost.transport,
            f"{cost.num_bytes / 1e6:.1f}",
            str(cost.num_blocks),
            str(cost.write_s.count),
            *(f"{value * 1e3:.3f}" for value in seconds),
            "-" if is_still else f"{cost.gigabytes_per_s:.2f}",
        )
    return table


def _measure_shm(layout: KVLayout, num_blocks: int, num_repeats: int, progress: Progress) -> list[tuple[float, float]]:
    arena = Arena.create(layout, num_blocks, shared=True)
    senders_view = Arena.attach(arena.fd, layout, num_blocks)
    _fill(senders_view)
    expected = zlib.crc32(arena.buffer)
    woken = threading.Event()
    receiver, sender = ShmTransport(arena), ShmTransport(senders_view, on_wake=woken.set)
    samples = []
    try:
        for repeat in range(num_repeats):
            reservation = _reservation(repeat, num_blocks, layout.block_size)
            started_s = time.perf_counter()
            receiver.reserve(reservation)
            write_s = _timed_write(sender, woken, reservation, receiver.address())
            samples.append((time.perf_counter() - started_s, write_s))
            receiver.release(reservation)
            progress.advance()
        _check_equal(zlib.crc32(arena.buffer), expected)
    finally:
        sender.close()
        receiver.close()
        senders_view.close()
        arena.close()
    return samples


@contextlib.contextmanager
def _peer(target: Callable[..., None], *args: object) -> Iterator[Connection]:
    """A second process; what `target` is given first is the other end of the pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    peer = context.Process(target=target, args=(theirs, *args), daemon=True)
    with _no_imports_from_here():
        peer.start()
    theirs.close()
    try:
        yield ours
    except EOFError as error:
        raise HandoffFailed("the receiving process ended during the measurement") from error
    finally:
        ours.close()
        peer.join(SEAL_TIMEOUT_S)


def _measure_tcp(
    doors: Doors | None, layout: KVLayout, num_blocks: int, num_repeats: int, progress: Progress
) -> list[tuple[float, float]]:
    secret = secrets.token_bytes(32)
    arena = Arena.create(layout, num_blocks, shared=False)
    _fill(arena)
    expected = zlib.crc32(arena.buffer)
    woken = threading.Event()
    door, their_door = (doors.senders(), doors.receivers) if doors is not None else (None, None)
    sender = TcpTransport(arena, secret=secret, identity=SENDER, on_wake=woken.set, door=door)
    samples = []
    with (
        contextlib.closing(arena),
        contextlib.closing(sender),
        _peer(receive_blocks, layout, num_blocks, secret, RECEIVER, their_door) as ours,
    ):
        address = ours.recv()
        for repeat in range(num_repeats):
            reservation = _reservation(repeat, num_blocks, layout.block_size)
            started_s = time.perf_counter()
            ours.send(("reserve", reservation))
            ours.recv()
            write_s = _timed_write(sender, woken, reservation, address)
            samples.append((time.perf_counter() - started_s, write_s))
            ours.send(("release", reservation))
            _check_equal(ours.recv(), expected)
            progress.advance()
    return samples


def _measure_sockets(
    layout: KVLayout, num_blocks: int, num_repeats: int, progress: Progress
) -> list[tuple[float, float]]:
    content = np.random.default_rng(0).bytes(num_blocks * layout.bytes_per_block)
    samples = []
    with _peer(receive_bytes, len(content)) as ours, socket.create_connection(ours.recv()) as sock:
        for _ in range(num_repeats):
            started_s = time.perf_counter()
            sock.sendall(content)
            if sock.recv(1) != b"k":
                raise HandoffFailed("the receiving process ended during the measurement")
            took_s = time.perf_counter() - started_s
            samples.append((took_s, took_s))
            _check_equal(ours.recv(), zlib.crc32(content))
            progress.advance()
    return samples


@contextlib.contextmanager
def _no_imports_from_here() -> Iterator[None]:
    """A process that is started meanwhile looks for no module in the current folder."""
    former = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if former is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = former


def _timed_write(sender: KVTransport, woken: threading.Event, reservation: Reservation, address: str) -> float:
    """Seconds from the first write to the acknowledged seal."""
    woken.clear()
    started_s = time.perf_counter()
    sender.write(reservation, address, 0, reservation.block_ids)
    sender.seal(reservation, address, len(reservation.block_ids) * reservation.block_size)
    deadline_s = started_s + SEAL_TIMEOUT_S
    while True:
        for event in sender.poll():
            if isinstance(event, TransferFailed):
                raise HandoffFailed(f"the transfer failed: {event.reason}")
            if isinstance(event, TransferSealed) and event.reservation.request_id == reservation.request_id:
                return time.perf_counter() - started_s
        if time.perf_counter() > deadline_s:
            raise HandoffFailed(f"the transfer was not acknowledged within {SEAL_TIMEOUT_S:.0f} s")
        woken.wait(deadline_s - time.perf_counter())
        woken.clear()


def _reservation(repeat: int, num_blocks: int, block_size: int) -> Reservation:
    return Reservation(
        request_id=RequestId(f"bench-{repeat}"),
        worker_id=RECEIVER.worker_id,
        epoch=RECEIVER.epoch,
        block_size=block_size,
        block_ids=tuple(range(num_blocks)),
        generations=(repeat + 1,) * num_blocks,
        num_hit_tokens=0,
    )


def _fill(arena: Arena) -> None:
    arena.buffer[:] = np.random.default_rng(0).bytes(len(arena.buffer))


def _check_equal(received: int, expected: int) -> None:
    if received != expected:
        raise HandoffFailed("the received blocks differ from the sent ones")
