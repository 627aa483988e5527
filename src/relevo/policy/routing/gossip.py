"""What gateways over the same workers tell each other: what only the one that chose can know.

All of them follow the workers' reports. What these cannot show, or show a step later, is what another gateway has sent
and is not done: its charges (`policy.routing.charges`), what it expects to be cached (`policy.routing.prefix_index`),
and what its router remembers of late. A `ChangeLog` gathers that on one side, `PeerState` keeps it on the other, in the
same ledger and index as what was chosen here, because request ids are unique.

Batches are numbered and hold the state of each request that changed, never a difference, so what was told twice or late
does no harm. A gap, or another incarnation, is answered with a snapshot. What a gateway told is withdrawn when its
connection ends. Nothing here is needed for correctness: who hears nothing balances a little worse.

Memory is bounded by requests in flight. Does not know connections. Source: docs/adr/0007.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from relevo.core.ids import BlockHash, RequestId, WorkerRef
from relevo.policy.routing.charges import NO_CHARGES, ChargeLedger, Charges
from relevo.policy.routing.prefix_index import PrefixIndex
from relevo.policy.routing.router import Use
from relevo.policy.routing.worker_choice import WorkerChooser

MAX_USES = 4096  # told in one batch; arbitrary, older ones have faded by then


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a request is charged and promises, as of now; nothing of both: it is over."""

    request_id: RequestId
    charges: Charges = NO_CHARGES
    expected_on: dict[str, WorkerRef] = field(default_factory=dict)  # by role
    hashes: tuple[BlockHash, ...] | None = None  # of what is expected; None: as told before


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    sequence: int
    is_snapshot: bool  # everything; otherwise what changed since the batch numbered one less
    standings: tuple[Standing, ...]
    uses: tuple[tuple[str, Use], ...] = ()  # what kind of choice, and what its router remembers


class ChangeLog:
    """The requests of this gateway whose standing changed since the last batch."""

    def __init__(self, ledger: ChargeLedger, index: PrefixIndex) -> None:
        self._ledger = ledger
        self._index = index
        self._own: dict[RequestId, bool] = {}  # whether its hashes were told
        self._changed: dict[RequestId, None] = {}
        self._uses: list[tuple[str, Use]] = []
        self._sequence = 0

    def chosen(self, request_id: RequestId, kind: str, use: Use | None) -> None:
        """A request of this gateway was charged and expects something; its router remembers the choice as `use`."""
        self._own[request_id] = False
        self._changed[request_id] = None
        if use is not None:
            self._uses.append((kind, use))
            del self._uses[:-MAX_USES]

    def changed(self, request_id: RequestId) -> bool:
        """It made progress, or is over. False: nothing was ever chosen for it, so no gateway needs to hear of it."""
        if request_id not in self._own:
            return False
        self._changed[request_id] = None
        return True

    def all_changed(self) -> None:
        """A worker is gone, with all that was charged to it."""
        self._changed.update(dict.fromkeys(self._own))

    def batch(self) -> Batch | None:
        """What changed, for all that follow; None if nothing did."""
        if not self._changed and not self._uses:
            return None
        self._sequence += 1
        batch = Batch(
            sequence=self._sequence,
            is_snapshot=False,
            standings=tuple(self._standing(request_id, tells_all=False) for request_id in self._changed),
            uses=tuple(self._uses),
        )
        for standing in batch.standings:
            if _is_over(standing):
                del self._own[standing.request_id]
            else:
                self._own[standing.request_id] = True
        self._changed, self._uses = {}, []
        return batch

    def snapshot(self) -> Batch:
        """Where things stand after the last batch, for one who begins to follow; take what changed first."""
        assert not self._changed, "a batch first"
        standings = tuple(self._standing(request_id, tells_all=True) for request_id in self._own)
        return Batch(sequence=self._sequence, is_snapshot=True, standings=standings)

    def _standing(self, request_id: RequestId, *, tells_all: bool) -> Standing:
        expected = self._index.expected_by(request_id)
        hashes = dict.fromkeys(key for _, keys in expected.values() for key in keys)  # of workers of all block sizes
        return Standing(
            request_id=request_id,
            charges=self._ledger.charges(request_id),
            expected_on={role: worker for role, (worker, _) in expected.items()},
            hashes=None if self._own[request_id] and not tells_all else tuple(hashes),
        )


class PeerState:
    """What other gateways told, put where what was chosen here is kept too."""

    def __init__(self, ledger: ChargeLedger, index: PrefixIndex, chooser: WorkerChooser) -> None:
        self._ledger = ledger
        self._index = index
        self._chooser = chooser
        self._sequences: dict[str, int] = {}
        self._hashes: dict[str, dict[RequestId, tuple[BlockHash, ...]]] = {}  # by gateway: its open requests

    def take(self, gateway_id: str, batch: Batch) -> bool:
        """False: something is missing; nothing was changed, follow it anew. A batch known already changes nothing."""
        if batch.is_snapshot:
            self._restore(gateway_id, batch)
            return True
        last = self._sequences.get(gateway_id)
        if last is None or batch.sequence > last + 1:
            return False
        if batch.sequence == last + 1:
            self._sequences[gateway_id] = batch.sequence
            for standing in batch.standings:
                self._put(gateway_id, standing)
            for kind, use in batch.uses:
                self._chooser.heard(kind, use)
        return True

    def withdraw(self, gateway_id: str) -> None:
        """The gateway is gone, and with it whatever it had under way. Idempotent."""
        self._sequences.pop(gateway_id, None)
        for request_id in self._hashes.pop(gateway_id, {}):
            self._end(request_id)

    def _restore(self, gateway_id: str, batch: Batch) -> None:
        open_now = {standing.request_id for standing in batch.standings}
        known = self._hashes.setdefault(gateway_id, {})
        for request_id in [request_id for request_id in known if request_id not in open_now]:
            del known[request_id]
            self._end(request_id)
        for standing in batch.standings:
            self._put(gateway_id, standing)
        self._sequences[gateway_id] = batch.sequence

    def _put(self, gateway_id: str, standing: Standing) -> None:
        request_id, known = standing.request_id, self._hashes[gateway_id]
        if _is_over(standing):
            known.pop(request_id, None)
            self._end(request_id)
            return
        hashes = standing.hashes if standing.hashes is not None else known.get(request_id, ())
        known[request_id] = hashes
        self._ledger.set_charges(request_id, standing.charges)
        self._index.withdraw(request_id)
        for role, worker in standing.expected_on.items():
            self._index.expect(request_id, role, worker, hashes)

    def _end(self, request_id: RequestId) -> None:
        self._ledger.end(request_id)
        self._index.withdraw(request_id)


def _is_over(standing: Standing) -> bool:
    return standing.charges == NO_CHARGES and not standing.expected_on
