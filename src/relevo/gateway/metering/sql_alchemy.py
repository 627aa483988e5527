"""PostgreSQL, or whatever else SQLAlchemy speaks to, as the database of metering. Needs the extra `relevo[postgres]`.

Connections come from SQLAlchemy's pool for every call and are tested first, so that a server which was restarted is
found again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relevo.gateway.metering.database import DatabaseError, Parameters, Row, Statement

CONNECT_TIMEOUT_S = 5  # arbitrary


class SqlAlchemyDatabase:
    """`url` as SQLAlchemy writes them; `postgresql://` uses psycopg 3. Raises DatabaseError."""

    def __init__(self, url: str) -> None:
        try:
            import sqlalchemy
        except ImportError as error:
            raise DatabaseError("SQLAlchemy is not installed; run: pip install 'relevo[postgres]'") from error
        self._failures = (sqlalchemy.exc.SQLAlchemyError, OSError)
        try:
            parsed = sqlalchemy.engine.make_url(url)
            if parsed.drivername in ("postgres", "postgresql"):
                parsed = parsed.set(drivername="postgresql+psycopg")
            is_postgres = parsed.get_backend_name() == "postgresql"
            options = {"connect_timeout": CONNECT_TIMEOUT_S} if is_postgres else {}
            self._engine = sqlalchemy.create_engine(parsed, pool_pre_ping=True, connect_args=options)
        except ImportError as error:
            raise DatabaseError(f"a driver is missing ({error}); run: pip install 'relevo[postgres]'") from error
        except self._failures as error:
            raise DatabaseError(f"{error}") from error
        self._text = sqlalchemy.text
        self.name = parsed.render_as_string(hide_password=True)

    def connect(self) -> SqlAlchemyConnection:
        connection = SqlAlchemyConnection(self._engine, self._text, self._failures)
        connection.read("SELECT 1")
        return connection


class SqlAlchemyConnection:
    def __init__(self, engine: Any, text: Any, failures: tuple[type[Exception], ...]) -> None:
        self._engine = engine
        self._text = text
        self._failures = failures

    def write(self, statements: Sequence[Statement]) -> None:
        try:
            with self._engine.begin() as transaction:
                if self._engine.dialect.name == "sqlite":  # its driver would begin only after a change of the tables
                    transaction.execute(self._text("BEGIN IMMEDIATE"))
                for sql, parameters in statements:
                    transaction.execute(self._text(sql), [dict(one) for one in parameters] or None)
        except self._failures as error:
            raise DatabaseError(_first_line(error)) from error

    def read(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        try:
            with self._engine.connect() as connection:
                return [tuple(row) for row in connection.execute(self._text(sql), dict(parameters or {}))]
        except self._failures as error:
            raise DatabaseError(_first_line(error)) from error

    def close(self) -> None:
        self._engine.dispose()


def _first_line(error: Exception) -> str:
    """SQLAlchemy's messages go on with the statement and its parameters."""
    return str(getattr(error, "orig", None) or error).strip().split("\n")[0]
