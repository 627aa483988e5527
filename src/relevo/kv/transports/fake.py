"""A transport whose network is a seeded storm: it delays, drops, reorders, duplicates and corrupts on demand.

Endpoints of one `FakeHub` live in one process and share virtual time: nothing moves but in `advance(now_ns)`, so tests
need no sleeps and a seed reproduces a run. A write's bytes are read from the sender's blocks when it *arrives*, so a
sender that reuses its blocks before they are sealed is found out. A dropped message is lost for good and its seal is
never answered: a driver of the transport needs a deadline and `cancel`.
Owns: messages under way and virtual time. The rights to write are those of relevo.kv.grants, as for tcp.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from relevo.core.cut import LocalBlock
from relevo.core.errors import LayoutMismatch
from relevo.core.events import TransferEvent
from relevo.core.handoff import Reach
from relevo.core.ids import BlockId
from relevo.core.kv import KVRefusal, Reservation
from relevo.kv.arena import Arena
from relevo.kv.cut_blocks import contents
from relevo.kv.grants import GrantTable
from relevo.kv.layout_check import check_layout
from relevo.kv.transfer import EventQueue, Transfer, TransferLedger, check_write


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Each message draws its fate. Without a reorder, messages between two endpoints arrive in the order sent."""

    delay_ns: tuple[int, int] = (0, 0)  # uniform, both ends included
    drop_probability: float = 0.0
    duplicate_probability: float = 0.0  # a second copy, delayed anew
    reorder_probability: float = 0.0  # may overtake and be overtaken
    corrupt_probability: float = 0.0  # flips one bit of one written block
    ghost_probability: float = 0.0  # a write's bytes come once more, `ghost_delay_ns` later; nothing calls them back
    ghost_delay_ns: tuple[int, int] = (0, 0)  # uniform, both ends included


@dataclass(slots=True, eq=False)
class _Message:
    """From sender to receiver: a write (`blocks` not empty) or a seal. `is_answer`: the way back."""

    sender: FakeTransport
    receiver: FakeTransport
    transfer: Transfer
    sequence: int  # of this transfer, counted from 0
    first_index: int = 0
    blocks: tuple[LocalBlock, ...] = ()
    num_tokens: int = 0
    corrupt: bool = False
    is_answer: bool = False
    refusal: str = ""  # in an answer; empty: applied
    stale: bool = False
    ghost: tuple[bytes, ...] = ()  # the blocks as they were when sent; cancelled or not, its sender alive or not


@dataclass(slots=True)
class _Inbox:
    """What a receiver has seen of one transfer."""

    seen: set[int] = field(default_factory=set)
    refusal: tuple[str, bool] = ("", False)  # of the first write that was not applied: nothing is sealed after it
    seals: list[_Message] = field(default_factory=list)  # arrived before a write that was sent earlier


@dataclass(slots=True)
class _Outgoing:
    address: str
    num_sent: int = 0  # messages, so the sequence number of the next one
    answered: set[int] = field(default_factory=set)


class FakeHub:
    """The network. Thread-safe; `on_wake` of an endpoint is called without the hub's lock."""

    def __init__(self, seed: int = 0, faults: Faults | None = None, *, checksum: bool = False) -> None:
        self.faults = faults or Faults()
        self.checksum = checksum
        self.now_ns = 0
        self.num_faults: Counter[str] = Counter()  # dropped, duplicated, reordered, corrupted, haunted
        self.lock = threading.RLock()
        self._rng = random.Random(seed)
        self._order = itertools.count()
        self._under_way: list[tuple[int, int, _Message]] = []  # heap of (due_ns, tie break, message)
        self._last_due_ns: dict[tuple[str, str], int] = {}
        self._endpoints: dict[str, FakeTransport] = {}

    def endpoint(self, address: str, arena: Arena, on_wake: Callable[[], None] = lambda: None) -> FakeTransport:
        """Join under `address`, in place of a killed endpoint of that name if there was one."""
        with self.lock:
            if address in self._endpoints:
                raise ValueError(f"the address {address} is taken")
            endpoint = self._endpoints[address] = FakeTransport(self, address, arena, on_wake)
            return endpoint

    def advance(self, now_ns: int) -> None:
        """Deliver everything that is due by `now_ns`, in order; answers due by then included."""
        woken: dict[FakeTransport, None] = {}
        with self.lock:
            while self._under_way and self._under_way[0][0] <= now_ns:
                due_ns, _, message = heapq.heappop(self._under_way)
                self.now_ns = max(self.now_ns, due_ns)
                if message.ghost:
                    self._haunt(message)
                    continue
                (message.sender if message.is_answer else message.receiver).deliver(message)
                woken[message.sender] = None
            self.now_ns = max(self.now_ns, now_ns)
        for endpoint in woken:
            endpoint.events.wake()

    def kill(self, address: str) -> None:
        """The process behind the address is gone: what it had under way is lost, transfers to it fail."""
        with self.lock:
            dead = self._endpoints.pop(address, None)
            if dead is None:
                return
            self._under_way = [e for e in self._under_way if e[2].ghost or dead not in (e[2].sender, e[2].receiver)]
            heapq.heapify(self._under_way)
            others = list(self._endpoints.values())
            for endpoint in others:
                endpoint.peer_died(address)
        for endpoint in others:
            endpoint.events.wake()

    @property
    def next_due_ns(self) -> int | None:
        """When `advance` next has something to deliver; None: nothing is under way."""
        return self._under_way[0][0] if self._under_way else None

    def find(self, address: str) -> FakeTransport | None:
        return self._endpoints.get(address)

    def send(self, message: _Message) -> None:
        """Draw the message's fate. Lock held."""
        if self._strikes(self.faults.drop_probability, "dropped"):
            return
        if message.blocks and not message.is_answer:
            message.corrupt = self._strikes(self.faults.corrupt_probability, "corrupted")
        self._post(message)
        if self._strikes(self.faults.duplicate_probability, "duplicated"):
            self._post(message)
        if message.blocks and not message.is_answer and self._strikes(self.faults.ghost_probability, "haunted"):
            ghost = replace(message, ghost=message.sender.content(message))
            due_ns = self.now_ns + self._rng.randint(*self.faults.ghost_delay_ns)
            heapq.heappush(self._under_way, (due_ns, next(self._order), ghost))

    def forget(self, transfer: Transfer) -> None:
        """Nothing of the transfer is under way or awaited any more. Lock held."""
        for endpoint in self._endpoints.values():
            endpoint.forget_inbox(transfer)
        self._under_way = [e for e in self._under_way if e[2].ghost or e[2].transfer is not transfer]
        heapq.heapify(self._under_way)

    def flip_bit(self, block: memoryview) -> None:
        block[self._rng.randrange(block.nbytes)] ^= 1 << self._rng.randrange(8)

    def _post(self, message: _Message) -> None:
        due_ns = self.now_ns + self._rng.randint(*self.faults.delay_ns)
        if not self._strikes(self.faults.reorder_probability, "reordered"):
            ends = (message.sender.address(), message.receiver.address())
            lane = (ends[1], ends[0]) if message.is_answer else ends
            due_ns = self._last_due_ns[lane] = max(due_ns, self._last_due_ns.get(lane, 0))
        heapq.heappush(self._under_way, (due_ns, next(self._order), message))

    def _haunt(self, ghost: _Message) -> None:
        """The endpoint that has the address now gets the bytes; there is no answer. Lock held."""
        receiver = self.find(ghost.receiver.address())
        if receiver is not None:
            receiver.take_ghost(ghost)

    def _strikes(self, probability: float, fault: str) -> bool:
        hit = probability > 0 and self._rng.random() < probability
        self.num_faults[fault] += hit
        return hit


class FakeTransport:
    """Implements core.ports.KVTransport. Made by `FakeHub.endpoint`."""

    name = "fake"
    reach = Reach.NETWORK

    def __init__(self, hub: FakeHub, address: str, arena: Arena, on_wake: Callable[[], None]) -> None:
        self._hub = hub
        self._address = address
        self._arena = arena
        self._grants = GrantTable()
        self._ledger = TransferLedger()
        self._outgoing: dict[Transfer, _Outgoing] = {}
        self._inboxes: dict[Transfer, _Inbox] = {}
        self.events = EventQueue(on_wake)
        self.num_refused_writes = 0
        self.num_refused_connections: dict[KVRefusal, int] = {}  # peers do not connect

    def address(self) -> str:
        return self._address

    def take_epoch(self, epoch: int) -> None:
        """Grants name the epoch that they were made under."""

    def reserve(self, reservation: Reservation) -> None:
        self._grants.open(reservation)

    def release(self, reservation: Reservation) -> None:
        self._grants.withdraw(reservation)

    def may_write(self, reservation: Reservation) -> bool:
        with self._hub.lock:
            transfer = self._ledger.find(reservation)
            return transfer is None or transfer.failed is None

    def write(
        self, reservation: Reservation, address: str, first_index: int, local_blocks: Sequence[LocalBlock]
    ) -> None:
        check_write(reservation, first_index, local_blocks, self._arena.layout.block_size)
        num_bytes = len(local_blocks) * self._arena.layout.bytes_of_blocks(reservation.block_size)
        self._send(reservation, address, num_bytes, first_index=first_index, blocks=tuple(local_blocks))

    def seal(self, reservation: Reservation, address: str, num_tokens: int) -> None:
        self._send(reservation, address, 0, num_tokens=num_tokens)

    def cancel(self, reservation: Reservation) -> bool:
        with self._hub.lock:
            transfer = self._ledger.forget(reservation)
            if transfer is not None:
                self._outgoing.pop(transfer, None)
                self._hub.forget(transfer)
            self.events.drop(reservation)
        return True

    def poll(self) -> list[TransferEvent]:
        return self.events.take()

    def close(self) -> None:
        """Leave the hub; to the others it looks as if the process had died."""
        with self._hub.lock:
            is_member = self._hub.find(self._address) is self
        if is_member:
            self._hub.kill(self._address)

    def deliver(self, message: _Message) -> None:
        """Called by the hub, its lock held."""
        if message.is_answer:
            self._take_answer(message)
            return
        inbox = self._inboxes.setdefault(message.transfer, _Inbox())
        if message.sequence in inbox.seen:
            return
        inbox.seen.add(message.sequence)
        if message.blocks:
            outcome = self._store(message)
            inbox.refusal = inbox.refusal if inbox.refusal[0] else outcome
            self._answer(message, *outcome)
        else:
            inbox.seals.append(message)
        for seal in list(inbox.seals):
            if self._is_withdrawn(seal):
                inbox.seals.remove(seal)
                self._answer(seal, "the receiver has withdrawn the blocks", True)
            elif all(earlier in inbox.seen for earlier in range(seal.sequence)):
                inbox.seals.remove(seal)
                self._answer(seal, *inbox.refusal)

    def content(self, message: _Message) -> tuple[bytes, ...]:
        """Of the blocks that it writes, as they lie here now."""
        block_size = message.transfer.reservation.block_size
        return tuple(bytes(block) for block in contents(self._arena, message.blocks, block_size))

    def take_ghost(self, ghost: _Message) -> None:
        """Called by the hub, its lock held."""
        targets = self._targets(ghost)
        if targets is not None:
            for target, content in zip(targets, ghost.ghost, strict=True):
                self._arena.block(target)[:] = content

    def peer_died(self, address: str) -> None:
        """Called by the hub, its lock held: fail what was under way to that endpoint."""
        for transfer, outgoing in list(self._outgoing.items()):
            if outgoing.address == address and transfer.num_outstanding:
                self._fail(transfer, f"{address} is gone", stale=False)

    def forget_inbox(self, transfer: Transfer) -> None:
        self._inboxes.pop(transfer, None)

    def _send(
        self,
        reservation: Reservation,
        address: str,
        num_bytes: int,
        *,
        first_index: int = 0,
        blocks: tuple[LocalBlock, ...] = (),
        num_tokens: int = 0,
    ) -> None:
        with self._hub.lock:
            transfer = self._ledger.open(reservation)
            if transfer.failed is not None or self._hub.find(self._address) is not self:
                return
            reason, receiver = self._reach(address)
            if receiver is None:
                self._fail(transfer, reason, stale=False)
            else:
                outgoing = self._outgoing.setdefault(transfer, _Outgoing(address))
                transfer.begin(num_bytes, self._hub.now_ns / 1e9)
                message = _Message(self, receiver, transfer, outgoing.num_sent, first_index, blocks, num_tokens)
                outgoing.num_sent += 1
                self._hub.send(message)
                return
        self.events.wake()

    def _reach(self, address: str) -> tuple[str, FakeTransport | None]:
        receiver = self._hub.find(address)
        if receiver is None:
            return f"no endpoint answers at {address}", None
        try:
            check_layout(receiver._arena.layout, self._arena.layout, "The sender")
        except LayoutMismatch as error:
            return error.message, None
        return "", receiver

    def _store(self, message: _Message) -> tuple[str, bool]:
        """Copy the blocks if the right still stands. Returns (why not, whether for want of the right)."""
        targets = self._targets(message)
        if targets is None:
            return "the receiver has withdrawn the blocks", True
        sources = message.sender.content(message)
        checksums = [zlib.crc32(source) for source in sources]
        for source, target in zip(sources, targets, strict=True):
            self._arena.block(target)[:] = source
        if message.corrupt:
            self._hub.flip_bit(self._arena.block(targets[-1]))
        if self._hub.checksum and checksums != [zlib.crc32(self._arena.block(t)) for t in targets]:
            self.num_refused_writes += 1
            return f"block {targets[-1]} arrived with a wrong checksum", False
        return "", False

    def _targets(self, message: _Message) -> tuple[BlockId, ...] | None:
        """The blocks that a write means; None, and counted, if the right to write them has ended."""
        mine, first = message.transfer.reservation, message.first_index
        last = first + len(message.blocks)
        targets = mine.block_ids[first:last]
        if self._grants.find(mine.request_id, mine.epoch, first, targets, mine.generations[first:last]) is None:
            self.num_refused_writes += 1
            return None
        return targets

    def _is_withdrawn(self, seal: _Message) -> bool:
        mine = seal.transfer.reservation
        index = mine.num_hit_blocks
        one = slice(index, index + 1)
        return self._grants.find(mine.request_id, mine.epoch, index, mine.block_ids[one], mine.generations[one]) is None

    def _answer(self, message: _Message, refusal: str, stale: bool) -> None:
        self._hub.send(replace(message, is_answer=True, refusal=refusal, stale=stale))

    def _take_answer(self, answer: _Message) -> None:
        outgoing = self._outgoing.get(answer.transfer)
        if outgoing is None or answer.sequence in outgoing.answered:
            return
        outgoing.answered.add(answer.sequence)
        if answer.refusal:
            self._fail(answer.transfer, answer.refusal, stale=answer.stale)
            return
        answer.transfer.end(self._hub.now_ns / 1e9)
        if not answer.blocks:
            self.events.add(answer.transfer.sealed(answer.num_tokens, self._hub.now_ns / 1e9))

    def _fail(self, transfer: Transfer, reason: str, *, stale: bool) -> None:
        self._hub.forget(transfer)
        self._outgoing.pop(transfer, None)
        transfer.abandon(self._hub.now_ns / 1e9)
        transfer.fail(reason, stale=stale)
        if (failure := transfer.failure_to_report()) is not None:
            self.events.add(failure)
