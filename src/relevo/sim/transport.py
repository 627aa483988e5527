"""KV blocks between simulated workers: who may write what, and when it has arrived.

Owns rights and transfers. Blocks have a content only where a world gives its workers arenas. Inside a box that shares
memory no byte moves: a prompt is computed in the receiver's blocks, and a right that ended is seen at once. Between
boxes blocks take the pipes of `sim.network`, are checked where they arrive, and are acknowledged from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relevo.core.cut import LocalBlock
from relevo.core.events import TransferEvent
from relevo.core.handoff import Reach
from relevo.core.ids import BlockId
from relevo.core.kv import KVLayout, KVRefusal, Reservation
from relevo.kv.arena import Arena
from relevo.kv.grants import GrantTable
from relevo.kv.transfer import EventQueue, Transfer, TransferLedger, check_write, whole
from relevo.sim.kernel import NS_PER_S, Kernel
from relevo.sim.network import Channel, Link, Pipe

WITHDRAWN = "the receiver has withdrawn the blocks"


@dataclass(slots=True, eq=False)
class _Job:
    """Blocks on their way, or (without blocks) the question whether all before have arrived."""

    sender: SimTransport
    transfer: Transfer
    first_index: int = 0
    block_ids: tuple[BlockId, ...] = ()  # of the sender
    num_tokens: int = 0
    refusal: str = ""  # on the way back; empty: applied


@dataclass(slots=True, eq=False)
class _Way:
    """From one sender to one receiver and back."""

    receiver: SimTransport
    pipe: Pipe[_Job]
    there: Channel[_Job]
    back: Channel[_Job]

    def close(self) -> None:
        self.pipe.close()
        self.there.close()
        self.back.close()


@dataclass(slots=True)
class KVNetwork:
    """Where the receivers are. `way` names the links from one box to another."""

    kernel: Kernel
    way: Callable[[str, str], Sequence[Link]]
    _transports: dict[str, SimTransport] = field(default_factory=dict)  # by address

    def join(
        self,
        box: str,
        name: str,
        layout: KVLayout,
        on_wake: Callable[[], None],
        *,
        reach: Reach = Reach.NETWORK,
        arena: Arena | None = None,
    ) -> SimTransport:
        """A transport of a worker of a box, in place of that of its former incarnation. `arena`: what the worker's
        blocks hold; either all workers have one or none."""
        transport = SimTransport(self, box, name, layout, on_wake, reach=reach, arena=arena)
        self._transports[transport.address()] = transport
        return transport

    def find(self, address: str) -> SimTransport | None:
        return self._transports.get(address)

    def leave(self, transport: SimTransport) -> None:
        """Its process is gone: transfers to it fail, those from it are over. Rights in a memory that others share
        stay until the next incarnation takes them back."""
        if transport.reach is Reach.ARENA:
            return
        if self._transports.get(transport.address()) is transport:
            del self._transports[transport.address()]
        for other in self._transports.values():
            other.peer_died(transport)


class SimTransport:
    """Implements core.ports.KVTransport."""

    def __init__(
        self,
        network: KVNetwork,
        box: str,
        worker_id: str,
        layout: KVLayout,
        on_wake: Callable[[], None],
        *,
        reach: Reach,
        arena: Arena | None,
    ) -> None:
        self.name = f"sim-{reach}"
        self.reach = reach
        self.box = box
        self.num_refused_writes = 0
        self.num_refused_connections: dict[KVRefusal, int] = {}
        self.num_sent_bytes = 0
        self._network = network
        self._kernel = network.kernel
        self._address = _address(reach, box, worker_id)
        self._layout = layout
        self._arena = arena
        self._grants = GrantTable()
        self._ledger = TransferLedger()
        self._events = EventQueue(on_wake)
        self._ways: dict[str, _Way] = {}
        self._outgoing: dict[Transfer, str] = {}  # with the address it goes to

    # ---- core.ports.KVTransport --------------------------------------------------------------------------------------

    def address(self) -> str:
        return self._address

    def take_epoch(self, epoch: int) -> None:
        """Grants name the epoch that they were made under."""

    def reserve(self, reservation: Reservation) -> None:
        self._grants.open(reservation)

    def release(self, reservation: Reservation) -> None:
        self._grants.withdraw(reservation)

    def may_write(self, reservation: Reservation) -> bool:
        """Over a network the sender learns it from a refusal; a shared memory shows it."""
        transfer = self._ledger.find(reservation)
        if transfer is not None and transfer.failed is not None:
            return False
        if self.reach is not Reach.ARENA:
            return True
        receiver = self._network.find(_address(self.reach, self.box, reservation.worker_id))
        first = reservation.num_hit_blocks
        return receiver is not None and receiver.allows(reservation, first, len(reservation.block_ids) - first)

    def write(
        self, reservation: Reservation, address: str, first_index: int, local_blocks: Sequence[LocalBlock]
    ) -> None:
        check_write(reservation, first_index, local_blocks, self._layout.block_size)
        self._send(reservation, address, first_index, whole(local_blocks), 0)

    def seal(self, reservation: Reservation, address: str, num_tokens: int) -> None:
        self._send(reservation, address, 0, (), num_tokens)

    def cancel(self, reservation: Reservation) -> bool:
        transfer = self._ledger.forget(reservation)
        if transfer is not None:
            self._withdraw(transfer)
        self._events.drop(reservation)
        return True

    def poll(self) -> list[TransferEvent]:
        return self._events.take()

    def close(self) -> None:
        """The process is gone. Idempotent."""
        self._network.leave(self)
        for way in self._ways.values():
            way.close()
        self._ways.clear()

    # ---- as a receiver -----------------------------------------------------------------------------------------------

    def allows(self, reservation: Reservation, first_index: int, num_blocks: int) -> bool:
        """These blocks of it are open to its writer."""
        if not num_blocks:
            return True
        part = slice(first_index, first_index + num_blocks)
        mine = reservation
        blocks, generations = mine.block_ids[part], mine.generations[part]
        return self._grants.find(mine.request_id, mine.epoch, first_index, blocks, generations) is not None

    def take(self, job: _Job) -> None:
        """A job has arrived here."""
        reservation, first, num_blocks = job.transfer.reservation, job.first_index, len(job.block_ids)
        if num_blocks and self.allows(reservation, first, num_blocks):
            self._store(job)
            job.transfer.end(self._now_s())
            return
        if num_blocks:
            self.num_refused_writes += 1
            job.refusal = WITHDRAWN
        else:
            first = reservation.num_hit_blocks
            is_open = self.allows(reservation, first, min(1, len(reservation.block_ids) - first))
            job.refusal = "" if is_open else WITHDRAWN
        job.sender.answer(self, job)

    def _store(self, job: _Job) -> None:
        if self._arena is None or job.sender._arena is None:
            return
        targets = job.transfer.reservation.block_ids[job.first_index :]
        for source, target in zip(job.block_ids, targets, strict=False):
            self._arena.block(target)[:] = job.sender._arena.block(source)

    # ---- as a sender -------------------------------------------------------------------------------------------------

    def answer(self, receiver: SimTransport, job: _Job) -> None:
        """The receiver answers; it takes the way back."""
        way = self._ways.get(receiver.address())
        if way is not None and way.receiver is receiver:
            way.back.send(job)

    def peer_died(self, peer: SimTransport) -> None:
        way = self._ways.get(peer.address())
        if way is None or way.receiver is not peer:
            return
        way.close()
        del self._ways[peer.address()]
        for transfer, address in list(self._outgoing.items()):
            if address == peer.address() and transfer.num_outstanding:
                self._fail(transfer, f"{address} is gone", stale=False)

    def _send(
        self,
        reservation: Reservation,
        address: str,
        first_index: int,
        block_ids: tuple[BlockId, ...],
        num_tokens: int,
    ) -> None:
        transfer = self._ledger.open(reservation)
        if transfer.failed is not None:
            return
        receiver = self._network.find(address)
        mismatch = None if receiver is None else receiver._layout.mismatch(self._layout)
        if receiver is None or mismatch is not None:
            self._fail(transfer, mismatch or f"{address} is not there", stale=False)
        elif self.reach is Reach.ARENA:
            self._share(transfer, len(block_ids), num_tokens)
        else:
            num_bytes = len(block_ids) * self._layout.bytes_per_block
            self.num_sent_bytes += num_bytes
            self._outgoing[transfer] = address
            transfer.begin(num_bytes, self._now_s())
            job = _Job(self, transfer, first_index, block_ids, num_tokens)
            self._way_to(receiver).pipe.put(job, num_bytes)

    def _share(self, transfer: Transfer, num_blocks: int, num_tokens: int) -> None:
        """The blocks are where they belong already."""
        if not self.may_write(transfer.reservation):
            self.num_refused_writes += 1
            self._fail(transfer, WITHDRAWN, stale=True)
        elif num_blocks:
            transfer.begin(num_blocks * self._layout.bytes_per_block, self._now_s())
            transfer.end(self._now_s())
        else:
            self._events.put(transfer.sealed(num_tokens, self._now_s()))

    def _way_to(self, receiver: SimTransport) -> _Way:
        way = self._ways.get(receiver.address())
        if way is None or way.receiver is not receiver:
            links = tuple(self._network.way(self.box, receiver.box))
            back_links = tuple(self._network.way(receiver.box, self.box))
            there: Channel[_Job] = Channel(self._kernel, links, receiver.take)
            back: Channel[_Job] = Channel(self._kernel, back_links, self._take_answer)
            way = _Way(receiver, Pipe(self._kernel, links, there.send), there, back)
            self._ways[receiver.address()] = way
        return way

    def _take_answer(self, job: _Job) -> None:
        transfer = job.transfer
        if self._ledger.find(transfer.reservation) is not transfer or transfer.failed is not None:
            return  # cancelled, or known to have failed
        if job.refusal:
            self._fail(transfer, job.refusal, stale=True)
            return
        transfer.end(self._now_s())
        self._events.put(transfer.sealed(job.num_tokens, self._now_s()))

    def _fail(self, transfer: Transfer, reason: str, *, stale: bool) -> None:
        self._withdraw(transfer)
        transfer.abandon(self._now_s())
        transfer.fail(reason, stale=stale)
        if (failure := transfer.failure_to_report()) is not None:
            self._events.put(failure)

    def _withdraw(self, transfer: Transfer) -> None:
        """Nothing of it is under way any more."""
        address = self._outgoing.pop(transfer, None)
        way = self._ways.get(address) if address is not None else None
        if way is not None and transfer.num_outstanding:
            way.pipe.drop(lambda job: job.transfer is transfer)
            way.there.drop(lambda job: job.transfer is transfer)

    def _now_s(self) -> float:
        return self._kernel.now_ns() / NS_PER_S


def _address(reach: Reach, box: str, worker_id: str) -> str:
    return f"sim-{reach}:{box}/{worker_id}"
