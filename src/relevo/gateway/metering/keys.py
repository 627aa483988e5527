"""API keys in the database: made, listed, revoked. Only a digest of a key is kept; the key itself is shown once.

Every change raises the revision, so that a gateway sees with one cheap query whether its copy is still right.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, fields, replace
from decimal import Decimal

from relevo.core.errors import InvalidRequest
from relevo.gateway.http.auth import digest_of
from relevo.gateway.metering.database import Connection, Statement
from relevo.policy.admission.key_limits import KeyLimits, Period
from relevo.policy.billing.pricing import plain

KEY_START = "rv-"
_PREFIX_CHARS = 9  # of a key, shown in lists; tells keys apart, 36 of 256 random bits
_NEXT_REVISION: Statement = ("UPDATE relevo_facts SET value = value + 1 WHERE name = 'keys_revision'", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A row of `api_keys`. Times are Unix milliseconds."""

    key_id: str
    digest: str  # SHA-256, hex
    prefix: str
    name: str
    tenant: str
    is_admin: bool
    limits: KeyLimits
    created_at_ms: int
    expires_at_ms: int | None = None
    revoked_at_ms: int | None = None
    best_priority: int = 0  # the least number that a request may ask for; below 0 is served before others

    def state(self, now_ms: int) -> str:
        if self.revoked_at_ms is not None:
            return "revoked"
        return "expired" if self.expires_at_ms is not None and now_ms >= self.expires_at_ms else "active"


_PLAIN_COLUMNS = tuple(field.name for field in fields(KeyRecord) if field.name != "limits")
_COLUMNS = (*_PLAIN_COLUMNS, "tokens_per_minute", "budget", "budget_period")
_INSERT = f"INSERT INTO api_keys ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM api_keys ORDER BY created_at_ms, key_id"


def create_key(
    connection: Connection,
    *,
    name: str,
    tenant: str | None,
    limits: KeyLimits,
    is_admin: bool,
    expires_at_ms: int | None,
    now_ms: int,
    best_priority: int = 0,
) -> tuple[str, KeyRecord]:
    """The new key, which cannot be had again, and its record. Without a tenant the key is one of its own.

    Raises DatabaseError.
    """
    key = KEY_START + secrets.token_urlsafe(32)
    key_id = "key-" + secrets.token_hex(6)
    record = KeyRecord(
        key_id=key_id,
        digest=digest_of(key),
        prefix=key[:_PREFIX_CHARS],
        name=name,
        tenant=tenant or key_id,
        is_admin=is_admin,
        limits=limits,
        created_at_ms=now_ms,
        expires_at_ms=expires_at_ms,
        best_priority=best_priority,
    )
    columns = {column: value for column, value in asdict(record).items() if column != "limits"}
    columns["is_admin"] = int(is_admin)
    columns |= {
        "tokens_per_minute": limits.tokens_per_minute,
        "budget": None if limits.budget is None else plain(limits.budget),
        "budget_period": str(limits.budget_period),
    }
    connection.write([(_INSERT, (columns,)), _NEXT_REVISION])
    return key, record


def list_keys(connection: Connection) -> list[KeyRecord]:
    """All that were ever made, oldest first. Raises DatabaseError."""
    return [_record(dict(zip(_COLUMNS, row, strict=True))) for row in connection.read(_SELECT)]


def revoke_key(connection: Connection, named: str, now_ms: int) -> KeyRecord:
    """`named`: key id or shown prefix of exactly one key. Revoking twice changes nothing.

    Raises InvalidRequest if it names none or several; DatabaseError.
    """
    found = [record for record in list_keys(connection) if named in (record.key_id, record.prefix)]
    if len(found) != 1:
        several = "no key has" if not found else f"{len(found)} keys have"
        raise InvalidRequest(f"{several} the id or prefix {named!r}; see: relevo keys list")
    if found[0].revoked_at_ms is not None:
        return found[0]
    revoke = "UPDATE api_keys SET revoked_at_ms = :now_ms WHERE key_id = :key_id"
    connection.write([(revoke, ({"now_ms": now_ms, "key_id": found[0].key_id},)), _NEXT_REVISION])
    return replace(found[0], revoked_at_ms=now_ms)


def keys_revision(connection: Connection) -> int:
    """Raises DatabaseError."""
    ((revision,),) = connection.read("SELECT value FROM relevo_facts WHERE name = 'keys_revision'")
    assert isinstance(revision, int)
    return revision


def _record(row: dict[str, str | int | None]) -> KeyRecord:
    limits = KeyLimits(
        tokens_per_minute=row["tokens_per_minute"],  # type: ignore[arg-type]  # the column's type
        budget=None if row["budget"] is None else Decimal(str(row["budget"])),
        budget_period=Period(str(row["budget_period"])),
    )
    columns = {name: row[name] for name in _PLAIN_COLUMNS} | {"is_admin": bool(row["is_admin"])}
    return KeyRecord(limits=limits, **columns)  # type: ignore[arg-type]  # the columns' types
