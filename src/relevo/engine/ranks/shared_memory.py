"""The way between two processes of one box: arrays lie in shared memory, a socket says how many bytes are there.

Owns the rings and the words. A ring is a run of bytes of a nameless file that both processes map, one each way;
what is larger passes through it in pieces. Numbers over the socket order all accesses, on every processor: bytes are
read after the number that announces them, and written over after the number that gives them back. So there is nothing
to spin on in memory: a reader tries the socket for a few microseconds, then sleeps on it, and learns there at once that
the other process has ended.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from relevo.engine.ranks.collectives import PIECE_BYTES, Array
from relevo.engine.ranks.links import Link, LinkClosed
from relevo.engine.ranks.pairwise import PairwiseCollectives, pairs
from relevo.kv.arena_file import nameless_file

RING_BYTES = 4 * PIECE_BYTES  # two pieces, what is read and not yet given back, and what is told beside
_SPIN_S = 20e-6  # arbitrary: about what going to sleep and waking up costs; the other rank may want this core
_WORDS_BYTES = 4096
_WORD = struct.Struct("<q")  # above 0: so many bytes more are in the ring; below 0: so many have been read
_LENGTH = struct.Struct("<I")


class SharedMemoryLink:
    """Implements Link."""

    def __init__(self, sock: socket.socket, outgoing: memoryview, incoming: memoryview) -> None:
        """`outgoing`, `incoming`: the rings, which begin empty; the other end has them the other way round."""
        self._sock, self._outgoing, self._incoming = sock, outgoing, incoming
        self._num_written = self._num_told = self._num_freed = 0  # bytes of the outgoing ring, since the start
        self._num_arrived = self._num_read = self._num_given_back = 0  # of the incoming one
        self._half_word = b""

    def send(self, arrays: Sequence[Array]) -> None:
        described = msgspec.msgpack.encode([(array.dtype.str, array.shape) for array in arrays])
        self._write(memoryview(_LENGTH.pack(len(described)) + described))
        for array in arrays:
            self._write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self._tell_written()

    def receive(self) -> list[Array]:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        arrays: list[Array] = []
        for dtype, shape in msgspec.msgpack.decode(self._read(length)):
            array = np.empty(shape, dtype)
            self._read_into(array.reshape(-1).view(np.uint8).data)
            arrays.append(array)
        return arrays

    def close(self) -> None:
        self._sock.close()

    def _write(self, data: memoryview) -> None:
        ring = self._outgoing
        while len(data):
            room = len(ring) - (self._num_written - self._num_freed)
            if not room:
                self._tell_written()
                self._take_words()
                continue
            place = self._num_written % len(ring)
            count = min(len(data), room, len(ring) - place)
            ring[place : place + count] = data[:count]
            self._num_written += count
            data = data[count:]

    def _read(self, count: int) -> bytes:
        data = bytearray(count)
        self._read_into(memoryview(data))
        return bytes(data)

    def _read_into(self, target: memoryview) -> None:
        ring = self._incoming
        while len(target):
            available = self._num_arrived - self._num_read
            if not available:
                self._take_words()
                continue
            place = self._num_read % len(ring)
            count = min(len(target), available, len(ring) - place)
            target[:count] = ring[place : place + count]
            self._num_read += count
            target = target[count:]
            if 4 * (self._num_read - self._num_given_back) >= len(ring):  # seldom: words wait until they are wanted
                self._tell(self._num_given_back - self._num_read)
                self._num_given_back = self._num_read

    def _tell_written(self) -> None:
        self._tell(self._num_written - self._num_told)
        self._num_told = self._num_written

    def _tell(self, word: int) -> None:
        if not word:
            return
        try:
            self._sock.sendall(_WORD.pack(word))
        except OSError:
            raise LinkClosed from None

    def _take_words(self) -> None:
        """At least one; waits for it."""
        data = self._half_word + self._wait_for_bytes()
        whole = len(data) - len(data) % _WORD.size
        self._half_word = data[whole:]
        for (word,) in _WORD.iter_unpack(data[:whole]):
            if word > 0:
                self._num_arrived += word
            else:
                self._num_freed -= word

    def _wait_for_bytes(self) -> bytes:
        try:
            data = self._spin()
            if data is None:
                data = self._sock.recv(_WORDS_BYTES)
        except OSError:
            raise LinkClosed from None
        if not data:
            raise LinkClosed
        return data

    def _spin(self) -> bytes | None:
        until_s = time.monotonic() + _SPIN_S
        while True:
            try:
                return self._sock.recv(_WORDS_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    return None


@dataclass(frozen=True, slots=True)
class RankEnds:
    """The descriptors of one rank: of the memory that all map, and of its socket to each other rank."""

    memory_fd: int
    socket_fds: Mapping[int, int]

    def close_sockets(self) -> None:
        """Of a process that has passed them on."""
        for fd in self.socket_fds.values():
            os.close(fd)


def open_ends(size: int) -> list[RankEnds]:
    """For so many ranks, none of them inheritable. The memory's descriptor is one and the same. Raises OSError."""
    sockets: list[dict[int, int]] = [{} for _ in range(size)]
    memory_fd = nameless_file("relevo-ranks", _memory_bytes(size))
    for low, high in pairs(size):
        ends = socket.socketpair()
        sockets[low][high], sockets[high][low] = (end.detach() for end in ends)
    return [RankEnds(memory_fd, each) for each in sockets]


def join_ranks(rank: int, ends: RankEnds) -> PairwiseCollectives:
    """The sockets are its own from now on; the memory's descriptor may be closed."""
    size = len(ends.socket_fds) + 1
    memory = memoryview(mmap.mmap(ends.memory_fd, _memory_bytes(size)))
    links: dict[int, Link] = {}
    for number, (low, high) in enumerate(pairs(size)):
        if rank not in (low, high):
            continue
        first = 2 * number * RING_BYTES
        up, down = (memory[start : start + RING_BYTES] for start in (first, first + RING_BYTES))
        other, rings = (high, (up, down)) if rank == low else (low, (down, up))
        links[other] = SharedMemoryLink(socket.socket(fileno=ends.socket_fds[other]), *rings)
    return PairwiseCollectives(rank, links)


def _memory_bytes(size: int) -> int:
    return max(1, 2 * len(pairs(size)) * RING_BYTES)
