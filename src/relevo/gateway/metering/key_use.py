"""What each limited API key has used of its budget and of its minute, for those who look; nothing is decided by it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from relevo.gateway.metering.accounts import Accounts
from relevo.gateway.metering.keys import KeyRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUse:
    key_id: str
    prefix: str
    name: str
    tenant: str
    spent: Decimal | None  # in the present period, with what runs; None: the key has no budget
    budget: Decimal | None
    period: str
    tokens_per_minute: int | None
    remaining_tokens: int | None  # of the minute


def key_uses(accounts: Accounts, records: Iterable[KeyRecord], now_ns: int, now_ms: int) -> list[KeyUse]:
    """Of keys that may be used and have a limit."""
    found = []
    for record in records:
        if record.state(now_ms) != "active" or not accounts.is_limited(record.key_id):
            continue
        rate = accounts.rate(record.key_id, now_ns)
        found.append(
            KeyUse(
                key_id=record.key_id,
                prefix=record.prefix,
                name=record.name,
                tenant=record.tenant,
                spent=accounts.spent(record.key_id, now_ms) if record.limits.budget is not None else None,
                budget=record.limits.budget,
                period=record.limits.budget_period,
                tokens_per_minute=record.limits.tokens_per_minute,
                remaining_tokens=None if rate is None else rate.remaining_tokens,
            )
        )
    return found
