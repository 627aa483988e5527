"""The usage ledger: one row per admitted request, and sums over rows.

A row is named by its request id: writing it again replaces it, so a write whose outcome is unknown can be repeated.
Costs are summed from integer token counts per price, never from rounded numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum

from relevo.gateway.metering.database import Connection, Parameters, Statement, Value
from relevo.policy.billing.pricing import BilledTokens, ModelPrice, cost_of, exact_sum, plain

MS_PER_DAY = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """`prompt_tokens`, `cached_tokens` and `completion_tokens` are billed; for a finished request they are its usage.

    Times are Unix milliseconds; currency is decimal text.
    """

    request_id: str  # made here, unique
    response_id: str  # the `id` that the client saw
    key_id: str
    tenant: str
    model: str
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    unbilled_prompt_tokens: int
    unbilled_completion_tokens: int
    input_cost_per_token: str
    cache_read_input_token_cost: str
    output_cost_per_token: str
    cost: str
    started_at_ms: int
    ended_at_ms: int
    cause: str = ""  # one of core.outcome.Cause; empty: written before there were causes


_COLUMNS = tuple(field.name for field in fields(LedgerRow))
_INSERT = f"INSERT INTO usage_ledger ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) "
_ASSIGNMENTS = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[1:])
_PUT = f"{_INSERT} ON CONFLICT (request_id) DO UPDATE SET {_ASSIGNMENTS}"
_INSERT_MISSING = f"{_INSERT} ON CONFLICT (request_id) DO NOTHING"


def put_rows(rows: Iterable[LedgerRow]) -> Statement:
    return _PUT, [asdict(row) for row in rows]


def insert_missing_rows(rows: Iterable[LedgerRow]) -> Statement:
    """Rows whose request ids are there already change nothing."""
    return _INSERT_MISSING, [asdict(row) for row in rows]


class GroupBy(StrEnum):
    """What sums can be taken over."""

    KEY = "key"
    TENANT = "tenant"
    MODEL = "model"
    DAY = "day"  # of UTC, on which the request ended
    OUTCOME = "outcome"
    CAUSE = "cause"


_GROUP_SQL = {
    GroupBy.KEY: "key_id",
    GroupBy.TENANT: "tenant",
    GroupBy.MODEL: "model",
    GroupBy.DAY: f"ended_at_ms / {MS_PER_DAY}",
    GroupBy.OUTCOME: "outcome",
    GroupBy.CAUSE: "cause",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSum:
    """`group`: one text per name that was grouped by; a day is YYYY-MM-DD."""

    group: tuple[str, ...]
    num_requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    unbilled_prompt_tokens: int
    unbilled_completion_tokens: int
    cost: Decimal

    @property
    def cost_text(self) -> str:
        return plain(self.cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """Of requests that ended in [since_ms, until_ms), Unix milliseconds; None: no bound, any key."""

    since_ms: int | None = None
    until_ms: int | None = None
    key_id: str | None = None


def usage_sums(connection: Connection, group_by: Sequence[GroupBy], where: UsageFilter) -> list[UsageSum]:
    """One sum per group, in the order of the groups. Raises DatabaseError."""
    prices = "input_cost_per_token, cache_read_input_token_cost, output_cost_per_token"
    names = ", ".join([_GROUP_SQL[name] for name in group_by] + [prices])
    condition, parameters = _condition(where)
    rows = connection.read(
        f"SELECT {names}, COUNT(*), CAST(SUM(prompt_tokens) AS BIGINT), CAST(SUM(cached_tokens) AS BIGINT), "
        "CAST(SUM(completion_tokens) AS BIGINT), CAST(SUM(unbilled_prompt_tokens) AS BIGINT), "
        f"CAST(SUM(unbilled_completion_tokens) AS BIGINT) FROM usage_ledger{condition} GROUP BY {names}",
        parameters,
    )
    groups: dict[tuple[str, ...], list[UsageSum]] = {}
    for row in rows:
        group = tuple(_shown(name, value) for name, value in zip(group_by, row, strict=False))
        groups.setdefault(group, []).append(_one_price(group, row[len(group_by) :]))
    return [_together(group, groups[group]) for group in sorted(groups)]


@dataclass(frozen=True, slots=True)
class RequestLengths:
    """Of one admitted request: when it came, how long it was, and for whom. No text."""

    started_at_ms: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    ended_at_ms: int
    model: str
    tenant: str
    outcome: str


def request_lengths(connection: Connection, where: UsageFilter, model: str | None = None) -> list[RequestLengths]:
    """In the order of their coming; unbilled tokens were computed too and count. Raises DatabaseError."""
    condition, parameters = _condition(where)
    if model is not None:
        condition = f"{condition} AND model = :model" if condition else " WHERE model = :model"
        parameters = {**parameters, "model": model}
    rows = connection.read(
        "SELECT started_at_ms, prompt_tokens + unbilled_prompt_tokens, cached_tokens,"
        " completion_tokens + unbilled_completion_tokens, ended_at_ms, model, tenant, outcome"
        f" FROM usage_ledger{condition}"
        " ORDER BY started_at_ms, request_id",
        parameters,
    )
    return [_lengths(row) for row in rows]


def _lengths(row: Sequence[Value]) -> RequestLengths:
    started_at_ms, num_prompt, num_cached, num_output, ended_at_ms = (_integer(value) for value in row[:5])
    model, tenant, outcome = (str(value) for value in row[5:])
    return RequestLengths(
        started_at_ms=started_at_ms,
        num_prompt_tokens=num_prompt,
        num_cached_tokens=num_cached,
        num_output_tokens=num_output,
        ended_at_ms=ended_at_ms,
        model=model,
        tenant=tenant,
        outcome=outcome,
    )


def total_of(sums: Sequence[UsageSum]) -> UsageSum:
    return _together((), sums)


def _condition(where: UsageFilter) -> tuple[str, Parameters]:
    clauses = {"ended_at_ms >= :since_ms": where.since_ms, "ended_at_ms < :until_ms": where.until_ms}
    clauses_given = [sql for sql, value in clauses.items() if value is not None]
    if where.key_id is not None:
        clauses_given.append("key_id = :key_id")
    parameters = {name: value for name, value in asdict(where).items() if value is not None}
    return (" WHERE " + " AND ".join(clauses_given) if clauses_given else ""), parameters


def _shown(name: GroupBy, value: Value) -> str:
    if name is GroupBy.DAY:
        return datetime.fromtimestamp(_integer(value) * MS_PER_DAY / 1000, UTC).date().isoformat()
    return str(value)


def _one_price(group: tuple[str, ...], row: Sequence[Value]) -> UsageSum:
    per_input, per_cached, per_output = (Decimal(str(price)) for price in row[:3])
    num_requests, prompt, cached, completion, unbilled_prompt, unbilled_completion = (_integer(n) for n in row[3:])
    price = ModelPrice(
        input_cost_per_token=per_input, cache_read_input_token_cost=per_cached, output_cost_per_token=per_output
    )
    return UsageSum(
        group=group,
        num_requests=num_requests,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        unbilled_prompt_tokens=unbilled_prompt,
        unbilled_completion_tokens=unbilled_completion,
        cost=cost_of(price, BilledTokens(num_prompt=prompt, num_cached=cached, num_output=completion)),
    )


def _together(group: tuple[str, ...], parts: Sequence[UsageSum]) -> UsageSum:
    return UsageSum(
        group=group,
        num_requests=sum(part.num_requests for part in parts),
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        cached_tokens=sum(part.cached_tokens for part in parts),
        completion_tokens=sum(part.completion_tokens for part in parts),
        unbilled_prompt_tokens=sum(part.unbilled_prompt_tokens for part in parts),
        unbilled_completion_tokens=sum(part.unbilled_completion_tokens for part in parts),
        cost=exact_sum(part.cost for part in parts),
    )


def _integer(value: Value) -> int:
    assert isinstance(value, int), "counts are integers"
    return value
