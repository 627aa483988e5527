"""Links over torch.distributed: gloo between processes, and NCCL between CUDA devices for what is large.

Owns the messages, and when their memory may be used again. Only sends and receives are asked of the library: its
`all_reduce` adds in an order of its own, and the sums of ranks are those of `pairwise`.

A message is a frame and a rest. A rank has always asked for the next frame, so that one of any size up to `FRAME_BYTES`
arrives while it computes, and says how much is to come. With gloo the rest goes the same way. With NCCL it is copied to
the device and has a group for each direction of a pair: what a device sends waits there until it is received, and must
not make what the other one sends wait.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import msgspec
import numpy as np
import torch
from torch._C._distributed_c10d import FileStore, PrefixStore, ProcessGroupGloo, Store, Work

from relevo.engine.ranks.collectives import PIECE_BYTES, Array
from relevo.engine.ranks.links import Link, LinkClosed
from relevo.engine.ranks.pairwise import PairwiseCollectives, pairs

log = logging.getLogger("relevo.engine")

FRAME_BYTES = 2**16  # arbitrary: the hidden states of some tokens
_UNREAD_BYTES = 4 * PIECE_BYTES  # that may wait for the other rank, as the rings of `shared_memory` hold
_LEAST_BYTES = 2**12  # that a message counts of these; arbitrary
_ALIGNMENT = 64  # of arrays in a message: kernels load whole cache lines
_EVER = timedelta(days=3650)  # the port's calls have no deadline of their own
_HEAD = struct.Struct("<QQ")  # bytes of the message, and of the description that follows


@dataclass(frozen=True, slots=True)
class _Way:
    """To one rank, or from it."""

    group: Any  # a Backend, of whose calls its type says only some
    peer: int  # its number in the group

    def send(self, tensor: torch.Tensor) -> Work:
        return cast("Work", self.group.send([tensor], self.peer, 0))

    def receive(self, tensor: torch.Tensor) -> Work:
        return cast("Work", self.group.recv([tensor], self.peer, 0))


@dataclass(slots=True)
class _Ways:
    """Between this rank and another one. `asked`: for the next frame, which comes into `frame`; None: not yet."""

    frames: _Way
    rests_out: _Way
    rests_in: _Way
    device: torch.device  # where rests are sent from
    frame: torch.Tensor
    asked: Work | None

    def ask(self) -> None:
        """Raises RuntimeError."""
        self.asked = self.frames.receive(self.frame)


@dataclass(frozen=True, slots=True)
class _Sent:
    """And perhaps not received yet: the library reads `tensors` until then."""

    num_bytes: int
    tensors: Sequence[torch.Tensor]
    works: Sequence[Work]

    def wait(self) -> None:
        """Raises RuntimeError."""
        for work in self.works:
            work.wait(_EVER)


class ProcessGroupLink:
    """Implements Link. The first call waits until all ranks are connected."""

    def __init__(self, connected: Future[Mapping[int, _Ways]], other: int) -> None:
        self._connected: Future[Mapping[int, _Ways]] | None = connected
        self._other = other
        self._sent: deque[_Sent] = deque()
        self._num_sent_bytes = 0  # of these

    def send(self, arrays: Sequence[Array]) -> None:
        """Waits for what was sent long before, where the other rank has left more than 4 MiB unread."""
        message = _message(arrays)
        try:
            ways = self._ways()
            tensors = [message[:FRAME_BYTES]]
            works = [ways.frames.send(tensors[0])]
            if len(message) > FRAME_BYTES:
                tensors.append(message[FRAME_BYTES:].to(ways.device))
                works.append(ways.rests_out.send(tensors[1]))
            self._sent.append(_Sent(max(len(message), _LEAST_BYTES), tensors, works))
            self._num_sent_bytes += self._sent[-1].num_bytes
            while self._num_sent_bytes - self._sent[-1].num_bytes > _UNREAD_BYTES:
                self._sent[0].wait()
                self._num_sent_bytes -= self._sent.popleft().num_bytes
        except RuntimeError:  # the library has no other kind
            raise LinkClosed from None

    def receive(self) -> list[Array]:
        try:
            message = _received(self._ways())
        except RuntimeError:
            raise LinkClosed from None
        return _arrays(message)

    def close(self) -> None:
        """What was sent is still received; the group ends behind it, when all links of the rank are closed."""
        if self._connected is not None:
            leaving = threading.Thread(target=_leave, args=(self._connected, self._sent), daemon=True)
            self._connected, self._sent = None, deque()
            leaving.start()

    def _ways(self) -> _Ways:
        """Raises RuntimeError if the ranks could not be connected."""
        if self._connected is None:
            raise LinkClosed
        return self._connected.result()[self._other]


def _received(ways: _Ways) -> torch.Tensor:
    """Raises RuntimeError."""
    if ways.asked is None:
        ways.ask()
    assert ways.asked is not None
    ways.asked.wait(_EVER)
    ways.asked = None
    frame = ways.frame.numpy()
    (num_bytes, _) = _HEAD.unpack_from(frame.data)
    message = torch.empty(num_bytes, dtype=torch.uint8)
    message.numpy()[:FRAME_BYTES] = frame[:num_bytes]
    if num_bytes > FRAME_BYTES:
        place = message[FRAME_BYTES:]
        rest = place.to(ways.device)  # itself, where no device is
        ways.rests_in.receive(rest).wait(_EVER)
        place.copy_(rest)
    try:
        ways.ask()
    except RuntimeError:  # what has arrived counts; the next call says it
        log.debug("rank %d sends nothing more", ways.frames.peer)
    return message


def _leave(connected: Future[Mapping[int, _Ways]], sent: Sequence[_Sent]) -> None:
    """Holds the group until all is received, or the other rank has ended."""
    try:
        for each in sent:
            each.wait()
    except RuntimeError:
        log.debug("a rank has left before it had read all")


def _message(arrays: Sequence[Array]) -> torch.Tensor:
    """A copy."""
    described = msgspec.msgpack.encode([(array.dtype.str, array.shape) for array in arrays])
    places = list(_places(_HEAD.size + len(described), [array.nbytes for array in arrays]))
    num_bytes = places[-1] + arrays[-1].nbytes if arrays else _HEAD.size + len(described)
    message = torch.empty(num_bytes, dtype=torch.uint8)
    memory = message.numpy()
    memory[: _HEAD.size + len(described)] = np.frombuffer(
        _HEAD.pack(num_bytes, len(described)) + described, dtype=np.uint8
    )
    for array, place in zip(arrays, places, strict=True):
        memory[place : place + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return message


def _arrays(message: torch.Tensor) -> list[Array]:
    """In the message's own memory."""
    memory = message.numpy()
    (_, described_bytes) = _HEAD.unpack_from(memory.data)
    start = _HEAD.size + described_bytes
    described = [
        (np.dtype(dtype), tuple(shape)) for dtype, shape in msgspec.msgpack.decode(memory[_HEAD.size : start].data)
    ]
    sizes = [dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for dtype, shape in described]
    return [
        np.ndarray(shape, dtype, memory.data, place)
        for (dtype, shape), place in zip(described, _places(start, sizes), strict=True)
    ]


def _places(start: int, sizes: Sequence[int]) -> Iterator[int]:
    """Where arrays of so many bytes begin in a message."""
    for size in sizes:
        start += -start % _ALIGNMENT
        yield start
        start += size


def join_ranks(backend: str, rank: int, size: int, store_fd: int, host: str = "127.0.0.1") -> PairwiseCollectives:
    """At once: ranks are connected meanwhile. `backend`: gloo or nccl. `store_fd`: of an empty file that all ranks have
    open, in which they find each other; it may be closed. `host`: the address that this one listens at."""
    connected: Future[Mapping[int, _Ways]] = Future()
    arguments = (connected, backend, rank, size, os.dup(store_fd), host)
    threading.Thread(target=_connect, args=arguments, daemon=True).start()
    links: dict[int, Link] = {other: ProcessGroupLink(connected, other) for other in range(size) if other != rank}
    return PairwiseCollectives(rank, links)


def _connect(
    connected: Future[Mapping[int, _Ways]], backend: str, rank: int, size: int, store_fd: int, host: str
) -> None:
    store = FileStore(f"/proc/self/fd/{store_fd}", size)  # which writes into it when the group ends, too
    made: dict[int, _Ways] = {}
    try:
        group = _gloo_group(store, rank, size, host)
        device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        rests = _nccl_ways(store, rank, size, device) if backend == "nccl" else {}
        for other in range(size):
            if other != rank:
                frames, frame = _Way(group, other), torch.empty(FRAME_BYTES, dtype=torch.uint8)
                rests_out, rests_in = rests.get((rank, other), frames), rests.get((other, rank), frames)
                made[other] = _Ways(frames, rests_out, rests_in, device, frame, frames.receive(frame))
    except RuntimeError as error:
        log.error("rank %d cannot be connected to the others over %s: %s", rank, backend, error)
        connected.set_exception(error)
    else:
        connected.set_result(made)


def _gloo_group(store: Store, rank: int, size: int, host: str) -> Any:
    gloo: Any = ProcessGroupGloo  # whose type says other names of its options
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host, lazy_init=False)]
    options._timeout = _EVER
    options._threads = 1  # for collectives, of which none is asked for
    return gloo(store, rank, size, options)


def _nccl_ways(store: Store, rank: int, size: int, device: torch.device) -> dict[tuple[int, int], _Way]:
    """By sender and receiver. They are connected at once, all ranks in one order: to send the first time would wait
    for the receiver."""
    from torch._C._distributed_c10d import ProcessGroupNCCL  # a torch for CPUs has none

    ways: dict[tuple[int, int], _Way] = {}
    for pair in pairs(size):
        if rank not in pair:
            continue
        for sender, receiver in (pair, pair[::-1]):
            options = ProcessGroupNCCL.Options()
            options._timeout = _EVER
            number, name = int(rank == receiver), f"{sender} to {receiver}"
            group = ProcessGroupNCCL(PrefixStore(name, store), number, 2, options)
            group.eager_connect_single_device(device)
            ways[sender, receiver] = _Way(group, 1 - number)
    return ways
