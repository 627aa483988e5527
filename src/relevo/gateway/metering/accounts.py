"""One `KeyAccount` per limited API key, and keeping what it has spent true to the ledger.

Spent is the ledger's sum up to a moment a little ago plus what ended here since: our own rows are counted exactly once,
and those of other servers on the same database arrive with that delay. The gateways of one server tell each other what
runs and what ends (`on_taken`, `on_running`, `on_spent`), so they count together at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from relevo.gateway.metering.keys import KeyRecord
from relevo.policy.admission.key_limits import Charge, KeyAccount, KeyLimits, RateView, Refused, period_start_s
from relevo.policy.billing.pricing import exact_sum

SETTLED_AFTER_MS = 15_000  # longer than a row may be replaced after it was written (meter.COMMIT_TIMEOUT_S)
_UNLIMITED = KeyLimits()


@dataclass(slots=True)
class _Kept:
    account: KeyAccount
    recent: deque[tuple[int, Decimal]] = field(default_factory=deque)  # ended at ms, cost; of this server's gateways
    is_corrected: bool = False  # the ledger has been asked at least once
    was_used: bool = False  # since it was asked


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentQuestion:
    """What a key has spent in the ledger in [since_ms, until_ms)."""

    key_id: str
    since_ms: int
    until_ms: int


class Accounts:
    def __init__(self) -> None:
        self._by_key: dict[str, _Kept] = {}
        # tokens of a key's minute; `is_urgent`: another request may be let in or not because of it
        self.on_taken: Callable[[str, int, bool], None] = lambda key_id, num_tokens, is_urgent: None
        self.on_running: Callable[[str, Decimal], None] = lambda key_id, cost: None  # of all that runs here, up to now
        self.on_spent: Callable[[str, int, Decimal], None] = lambda key_id, ended_at_ms, cost: None  # by one that ended
        self._elsewhere: dict[str, dict[str, Decimal]] = {}  # by gateway: what a key's requests there have used

    def load(self, records: Iterable[KeyRecord], now_ns: int, now_ms: int) -> None:
        """Take the limits of all keys as they are now."""
        limited = {record.key_id: record.limits for record in records if record.limits != _UNLIMITED}
        self._by_key = {key_id: kept for key_id, kept in self._by_key.items() if key_id in limited}
        for key_id, limits in limited.items():
            kept = self._by_key.get(key_id)
            if kept is None:
                account = KeyAccount(limits, now_ns, now_ms / 1000)
                for gateway_id, costs in self._elsewhere.items():
                    account.runs_elsewhere(gateway_id, costs.get(key_id, Decimal(0)))
                self._by_key[key_id] = _Kept(account)
            elif kept.account.limits != limits:
                kept.account.change_limits(limits, now_ns, now_ms / 1000)
                kept.is_corrected = False

    def try_charge(self, key_id: str, num_tokens: int, cost: Decimal, now_ns: int, now_ms: int) -> Charge | Refused:
        """A key without limits is charged nothing; limits that it gets later count its running requests whole."""
        kept = self._by_key.get(key_id)
        if kept is None:
            return Charge()
        charge = kept.account.try_charge(num_tokens, cost, now_ns, now_ms / 1000)
        if isinstance(charge, Charge):
            self.on_taken(key_id, charge.num_tokens, True)
            self._tell_running(key_id, kept)
        return charge

    def is_limited(self, key_id: str) -> bool:
        return key_id in self._by_key

    def progress(
        self, key_id: str, charge: Charge, num_tokens: int, cost: Decimal, now_ns: int, now_ms: int
    ) -> Refused | None:
        """What a request has used up to now. Refused: it has to end."""
        kept = self._by_key.get(key_id)
        if kept is None:
            return None
        taken = num_tokens - charge.num_tokens
        refused = kept.account.progress(charge, num_tokens, cost, now_ns, now_ms / 1000)
        self.on_taken(key_id, taken, False)
        self._tell_running(key_id, kept)
        return refused

    def settle(
        self, key_id: str, charge: Charge, num_tokens: int, cost: Decimal, now_ns: int, ended_at_ms: int
    ) -> None:
        kept = self._by_key.get(key_id)
        if kept is None:
            return
        taken = num_tokens - charge.num_tokens
        kept.account.settle(charge, num_tokens, cost, now_ns, ended_at_ms / 1000)
        kept.recent.append((ended_at_ms, cost))
        kept.was_used = True
        self.on_taken(key_id, taken, True)
        self._tell_running(key_id, kept)
        if kept.account.limits.budget is not None:
            self.on_spent(key_id, ended_at_ms, cost)

    def _tell_running(self, key_id: str, kept: _Kept) -> None:
        if kept.account.limits.budget is not None:
            self.on_running(key_id, kept.account.running)

    def running(self) -> dict[str, Decimal]:
        """By key: what its running requests have used here; for a gateway that begins to listen."""
        return {
            key_id: kept.account.running
            for key_id, kept in self._by_key.items()
            if kept.account.limits.budget is not None and kept.account.running
        }

    def runs_elsewhere(self, gateway_id: str, costs: Mapping[str, Decimal]) -> None:
        """What the running requests of keys have used at another gateway up to now."""
        told = self._elsewhere.setdefault(gateway_id, {})
        for key_id, cost in costs.items():
            told.pop(key_id, None)
            if cost:
                told[key_id] = cost
            if (kept := self._by_key.get(key_id)) is not None:
                kept.account.runs_elsewhere(gateway_id, cost)

    def spent_elsewhere(self, key_id: str, ended_at_ms: int, cost: Decimal) -> None:
        """A request has ended at another gateway of this server; its row comes to the same ledger."""
        kept = self._by_key.get(key_id)
        if kept is not None:
            kept.account.spent_elsewhere(cost, ended_at_ms / 1000)
            kept.recent.append((ended_at_ms, cost))
            kept.was_used = True

    def forget_elsewhere(self, gateway_id: str) -> None:
        """It is not heard any more: what runs there is not known."""
        for key_id in self._elsewhere.pop(gateway_id, {}):
            if (kept := self._by_key.get(key_id)) is not None:
                kept.account.runs_elsewhere(gateway_id, Decimal(0))

    def taken_elsewhere(self, key_id: str, num_tokens: int, now_ns: int) -> None:
        """Another gateway let the key take so many tokens, or gave them back."""
        kept = self._by_key.get(key_id)
        if kept is not None:
            kept.account.taken_elsewhere(num_tokens, now_ns)

    def rate(self, key_id: str, now_ns: int) -> RateView | None:
        kept = self._by_key.get(key_id)
        return None if kept is None else kept.account.rate(now_ns)

    def spent(self, key_id: str, now_ms: int) -> Decimal | None:
        """In the present period, with what runs; None: the key has no limits."""
        kept = self._by_key.get(key_id)
        return None if kept is None else kept.account.used(now_ms / 1000)

    def questions(self, now_ms: int, oldest_pending_ms: int | None, *, only_new: bool) -> list[SpentQuestion]:
        """What to ask the ledger. `only_new`: only for keys it was never asked about."""
        until_ms = min(now_ms - SETTLED_AFTER_MS, now_ms if oldest_pending_ms is None else oldest_pending_ms)
        asked = []
        for key_id, kept in self._by_key.items():
            limits = kept.account.limits
            if limits.budget is not None and (not kept.is_corrected or (kept.was_used and not only_new)):
                since_ms = period_start_s(limits.budget_period, now_ms / 1000) * 1000
                is_new = not kept.is_corrected and not kept.recent  # all that ended before now is in the ledger
                asked.append(SpentQuestion(key_id=key_id, since_ms=since_ms, until_ms=now_ms if is_new else until_ms))
        return asked

    def correct(self, questions: Sequence[SpentQuestion], answers: Sequence[Decimal], now_ms: int) -> None:
        for question, answer in zip(questions, answers, strict=True):
            kept = self._by_key.get(question.key_id)
            if kept is None:
                continue
            settled_ms = min(question.until_ms, now_ms - SETTLED_AFTER_MS)
            kept.recent = deque(entry for entry in kept.recent if entry[0] >= settled_ms)
            since_ms = max(question.until_ms, question.since_ms)
            own = exact_sum(cost for ended_at_ms, cost in kept.recent if ended_at_ms >= since_ms)
            kept.account.correct(exact_sum((answer, own)), now_ms / 1000)
            kept.is_corrected, kept.was_used = True, False
