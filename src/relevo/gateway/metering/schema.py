"""Tables of metering, kept answers and reports of requests: made when a database is opened first, brought up to date
when it is older."""

from __future__ import annotations

from relevo.gateway.metering.database import Connection, DatabaseError, Statement

SCHEMA_VERSION = 5

# one row per admitted request; amounts of currency are text, exact
_USAGE = """
CREATE TABLE IF NOT EXISTS usage_ledger (
    request_id TEXT PRIMARY KEY,
    response_id TEXT NOT NULL,
    key_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,
    outcome TEXT NOT NULL,
    prompt_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    unbilled_prompt_tokens BIGINT NOT NULL,
    unbilled_completion_tokens BIGINT NOT NULL,
    input_cost_per_token TEXT NOT NULL,
    cache_read_input_token_cost TEXT NOT NULL,
    output_cost_per_token TEXT NOT NULL,
    cost TEXT NOT NULL,
    started_at_ms BIGINT NOT NULL,
    ended_at_ms BIGINT NOT NULL,
    cause TEXT NOT NULL DEFAULT ''
)"""
_KEYS = """
CREATE TABLE IF NOT EXISTS api_keys (
    key_id TEXT PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    prefix TEXT NOT NULL,
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    is_admin BIGINT NOT NULL,
    tokens_per_minute BIGINT,
    budget TEXT,
    budget_period TEXT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    expires_at_ms BIGINT,
    revoked_at_ms BIGINT,
    best_priority BIGINT NOT NULL DEFAULT 0
)"""
_ANSWERS = """
CREATE TABLE IF NOT EXISTS kept_answers (
    answer_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    previous_id TEXT NOT NULL,
    asked TEXT NOT NULL,
    body TEXT NOT NULL,
    expires_at_ms BIGINT NOT NULL,
    num_chars BIGINT NOT NULL
)"""
_MAKE_ANSWERS: tuple[Statement, ...] = (
    (_ANSWERS, ()),
    ("CREATE INDEX IF NOT EXISTS kept_answers_by_end ON kept_answers (expires_at_ms, num_chars, answer_id)", ()),
)
# reports of ended requests, where they are asked for: `gateway.requests.store`
_REPORTS = """
CREATE TABLE IF NOT EXISTS request_reports (
    report_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    x_request_id TEXT NOT NULL,
    response_id TEXT NOT NULL,
    engine_request_id TEXT NOT NULL,
    ended_at_ms BIGINT NOT NULL,
    body TEXT NOT NULL
)"""
_MAKE_REPORTS: tuple[Statement, ...] = (
    (_REPORTS, ()),
    ("CREATE INDEX IF NOT EXISTS request_reports_by_time ON request_reports (ended_at_ms)", ()),
    ("CREATE INDEX IF NOT EXISTS request_reports_by_name ON request_reports (x_request_id)", ()),
    ("CREATE INDEX IF NOT EXISTS request_reports_by_response ON request_reports (response_id)", ()),
    ("CREATE INDEX IF NOT EXISTS request_reports_by_engine ON request_reports (engine_request_id)", ()),
)
_FACTS = "CREATE TABLE IF NOT EXISTS relevo_facts (name TEXT PRIMARY KEY, value BIGINT NOT NULL)"
_CREATE: tuple[Statement, ...] = (
    (_USAGE, ()),
    ("CREATE INDEX IF NOT EXISTS usage_ledger_by_key ON usage_ledger (key_id, ended_at_ms)", ()),
    ("CREATE INDEX IF NOT EXISTS usage_ledger_by_time ON usage_ledger (ended_at_ms)", ()),
    (_KEYS, ()),
    *_MAKE_ANSWERS,
    *_MAKE_REPORTS,
    (_FACTS, ()),
    (
        "INSERT INTO relevo_facts (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING",
        ({"name": "schema_version", "value": SCHEMA_VERSION}, {"name": "keys_revision", "value": 0}),
    ),
)
# what brings tables of a version to the next one; additions only, so that an older Relevo goes on while it runs
_UPGRADES: dict[int, tuple[Statement, ...]] = {
    1: (("ALTER TABLE api_keys ADD COLUMN best_priority BIGINT NOT NULL DEFAULT 0", ()),),
    2: (("ALTER TABLE usage_ledger ADD COLUMN cause TEXT NOT NULL DEFAULT ''", ()),),
    3: _MAKE_ANSWERS,
    4: _MAKE_REPORTS,
}


def prepare(connection: Connection) -> None:
    """Idempotent, also when several processes do it at once. Raises DatabaseError."""
    try:
        connection.write(_CREATE)
    except DatabaseError:
        connection.write(_CREATE)  # PostgreSQL: another server was making the same tables
    version = _version(connection)
    while version in _UPGRADES:
        version = _upgrade(connection, version)
    if version != SCHEMA_VERSION:
        raise DatabaseError(f"its tables have version {version}, this Relevo writes version {SCHEMA_VERSION}")


def _version(connection: Connection) -> int:
    ((version,),) = connection.read("SELECT value FROM relevo_facts WHERE name = 'schema_version'")
    assert isinstance(version, int)
    return version


def _upgrade(connection: Connection, version: int) -> int:
    """The version that the tables have now. Raises DatabaseError."""
    said = "UPDATE relevo_facts SET value = :value WHERE name = 'schema_version'"
    try:
        connection.write([*_UPGRADES[version], (said, ({"value": version + 1},))])
    except DatabaseError:
        if _version(connection) == version:  # else another process was first
            raise
    return _version(connection)
