"""What was sent where and is not done: charged when a choice is made, so that the next choice sees it at once.

A report of a worker comes a step later; without the ledger a burst of requests would all pick the same idle worker.
Every charge belongs to a request, so ending the request gives back exactly what is left of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from relevo.core.ids import RequestId, WorkerRef


class Charge(NamedTuple):
    worker: WorkerRef
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """All of one request; None: nothing of that kind."""

    prefill: Charge | None = None
    decode: Charge | None = None
    asked: Charge | None = None
    batch: Charge | None = None


NO_CHARGES = Charges()


class _Versions:
    """Of what is charged to each worker, in all accounts together. A number is never used twice; 0: nothing."""

    def __init__(self) -> None:
        self.accounts: list[_Account] = []
        self.of: dict[WorkerRef, int] = {}
        self._last = 0

    def changed(self, worker: WorkerRef) -> None:
        self._last += 1
        self.of[worker] = self._last

    def settled(self, worker: WorkerRef) -> None:
        """One account has nothing charged to it any more."""
        if any(account.count(worker) for account in self.accounts):
            self.changed(worker)
        else:
            self.of.pop(worker, None)


class _Account:
    """Tokens per worker, as the sum of one charge per request."""

    def __init__(self, versions: _Versions) -> None:
        self._versions = versions
        self._charges: dict[RequestId, Charge] = {}
        self._totals: dict[WorkerRef, int] = {}
        self._counts: dict[WorkerRef, int] = {}

    def total(self, worker: WorkerRef) -> int:
        return self._totals.get(worker, 0)

    def count(self, worker: WorkerRef) -> int:
        return self._counts.get(worker, 0)

    def charge(self, request_id: RequestId) -> Charge | None:
        return self._charges.get(request_id)

    def charged(self, request_id: RequestId) -> int:
        charge = self._charges.get(request_id)
        return charge.num_tokens if charge is not None else 0

    def set(self, request_id: RequestId, worker: WorkerRef, num_tokens: int) -> None:
        self.clear(request_id)
        if num_tokens > 0:
            self._versions.changed(worker)
            self._charges[request_id] = Charge(worker, num_tokens)
            self._totals[worker] = self.total(worker) + num_tokens
            self._counts[worker] = self.count(worker) + 1

    def change(self, request_id: RequestId, num_tokens: int) -> None:
        """Add (or take, never below zero) tokens; without a charge: no effect."""
        charge = self._charges.get(request_id)
        if charge is None:
            return
        if charge.num_tokens + num_tokens > 0:
            self._charges[request_id] = Charge(charge.worker, charge.num_tokens + num_tokens)
            self._totals[charge.worker] += num_tokens
            self._versions.changed(charge.worker)
        else:
            self.clear(request_id)

    def clear(self, request_id: RequestId) -> bool:
        """False: nothing was charged."""
        charge = self._charges.pop(request_id, None)
        if charge is None:
            return False
        left = self._totals[charge.worker] - charge.num_tokens
        if left:
            self._totals[charge.worker] = left
            self._counts[charge.worker] -= 1
            self._versions.changed(charge.worker)
        else:
            del self._totals[charge.worker]
            del self._counts[charge.worker]
            self._versions.settled(charge.worker)
        return True

    def forget(self, worker: WorkerRef) -> None:
        self._charges = {r: charge for r, charge in self._charges.items() if charge.worker != worker}
        self._totals.pop(worker, None)
        self._counts.pop(worker, None)

    @property
    def is_empty(self) -> bool:
        return not self._charges and not self._totals and not self._counts


class ChargeLedger:
    """One charge per request and kind: prefill, decode, room asked for, batch. Unknown names never raise."""

    def __init__(self) -> None:
        self._versions = _Versions()
        self._prefill = _Account(self._versions)
        self._decode = _Account(self._versions)
        self._asked = _Account(self._versions)
        self._batch = _Account(self._versions)
        self._versions.accounts += [self._prefill, self._decode, self._asked, self._batch]

    def version(self, worker: WorkerRef) -> int:
        """Another one after every change of what is charged to it."""
        return self._versions.of.get(worker, 0)

    def prefill_tokens(self, worker: WorkerRef) -> int:
        return self._prefill.total(worker)

    def decode_tokens(self, worker: WorkerRef) -> int:
        return self._decode.total(worker)

    def asked_tokens(self, worker: WorkerRef) -> int:
        """Room that was asked for and not answered yet."""
        return self._asked.total(worker)

    def num_asked(self, worker: WorkerRef) -> int:
        """Requests that it was asked for."""
        return self._asked.count(worker)

    def batch_tokens(self, worker: WorkerRef) -> int:
        """Of the decode tokens, those of batch requests, as of when they were sent."""
        return self._batch.total(worker)

    def num_batch(self, worker: WorkerRef) -> int:
        """Of the requests that decode there or will, batch requests."""
        return self._batch.count(worker)

    def num_prefills(self, worker: WorkerRef) -> int:
        """Requests whose prompts are not computed yet."""
        return self._prefill.count(worker)

    def num_decodes(self, worker: WorkerRef) -> int:
        """Requests that decode there or will."""
        return self._decode.count(worker)

    @property
    def is_empty(self) -> bool:
        return all(account.is_empty for account in (self._prefill, self._decode, self._asked, self._batch))

    def charges(self, request_id: RequestId) -> Charges:
        return Charges(
            prefill=self._prefill.charge(request_id),
            decode=self._decode.charge(request_id),
            asked=self._asked.charge(request_id),
            batch=self._batch.charge(request_id),
        )

    def set_charges(self, request_id: RequestId, charges: Charges) -> None:
        """Exactly these, whatever it was charged before."""
        for account, charge in (
            (self._prefill, charges.prefill),
            (self._decode, charges.decode),
            (self._asked, charges.asked),
            (self._batch, charges.batch),
        ):
            account.clear(request_id)
            if charge is not None:
                account.set(request_id, charge.worker, charge.num_tokens)

    def charge_prefill(self, request_id: RequestId, worker: WorkerRef, num_uncached_tokens: int) -> None:
        """Replaces an earlier prefill charge of the request."""
        self._prefill.set(request_id, worker, num_uncached_tokens)

    def charge_decode(
        self, request_id: RequestId, worker: WorkerRef, num_context_tokens: int, *, is_batch: bool = False
    ) -> None:
        """Replaces an earlier decode charge of the request."""
        self._decode.set(request_id, worker, num_context_tokens)
        if is_batch:
            self._batch.set(request_id, worker, num_context_tokens)

    def ask(self, request_id: RequestId, worker: WorkerRef, num_tokens: int) -> None:
        """Room for so many tokens is asked for; replaces what the request asked for before."""
        self._asked.set(request_id, worker, num_tokens)

    def answered(self, request_id: RequestId) -> None:
        """The room is granted, or taken: reports show it from here on."""
        self._asked.clear(request_id)

    def prefill_left(self, request_id: RequestId, num_left_tokens: int) -> None:
        """At most so many prompt tokens are still to be computed."""
        self._prefill.change(request_id, min(0, num_left_tokens - self._prefill.charged(request_id)))

    def prefill_done(self, request_id: RequestId) -> None:
        self._prefill.clear(request_id)

    def gave_tokens(self, request_id: RequestId, num_tokens: int) -> bool:
        """So many output tokens: it has room, its prompt is computed, its context grew. False: only the last is new."""
        has_asked, has_prefill = self._asked.clear(request_id), self._prefill.clear(request_id)
        self._decode.change(request_id, num_tokens)
        return has_asked or has_prefill

    def end(self, request_id: RequestId) -> None:
        """Give back everything of the request. Idempotent."""
        self._asked.clear(request_id)
        self._batch.clear(request_id)
        self._prefill.clear(request_id)
        self._decode.clear(request_id)

    def forget(self, worker: WorkerRef) -> None:
        """The worker is gone, with all that was charged to it."""
        self._asked.forget(worker)
        self._batch.forget(worker)
        self._prefill.forget(worker)
        self._decode.forget(worker)
        self._versions.settled(worker)
