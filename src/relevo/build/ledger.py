"""Where the usage database is and what prices hold: decided before anything starts, told to the gateway."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from relevo.build.configs import PriceConfig
from relevo.build.documents import read_document
from relevo.build.operator_key import operator_key
from relevo.build.traffic_key import TRAFFIC_FOLDER, check_traffic_bytes, traffic_key
from relevo.core.errors import DatabaseUnreachable, SettingsError, StartError
from relevo.gateway.http.auth import digest_of
from relevo.gateway.metering.database import Connection, Database, DatabaseError, MemoryDatabase, SqliteDatabase
from relevo.gateway.metering.journal import JournalError, check_journal_folder
from relevo.gateway.metering.keys import keys_revision, list_keys
from relevo.gateway.metering.keys_marker import KeysMarker
from relevo.gateway.metering.schema import prepare
from relevo.gateway.metering.sql_alchemy import SqlAlchemyDatabase
from relevo.policy.billing.pricing import parse_prices, plain

if TYPE_CHECKING:  # the gateway opens its database through this module and needs neither
    from relevo.build.plan import ServePlan
    from relevo.build.resolve import ModelAsk
    from relevo.settings import Settings

DATABASE_FILE = "relevo.db"
JOURNAL_FOLDER = "journal"


def database_location(data_dir: str | None, database_url: str | None) -> str:
    """`memory`, the URL, or the path of the SQLite file. Raises SettingsError."""
    if database_url:
        if database_url != "memory" and "://" not in database_url:
            raise SettingsError(
                f"--database-url {database_url} is neither `memory` nor a URL such as postgresql://user@host/name; a "
                f"folder for the SQLite file is named with --data-dir"
            )
        return database_url
    return str(data_folder(data_dir) / DATABASE_FILE)


def open_database(location: str, *, fsync: bool = False) -> Database:
    """Raises DatabaseError."""
    if location == "memory":
        return MemoryDatabase()
    if "://" in location:
        return SqlAlchemyDatabase(location)
    return SqliteDatabase(Path(location), fsync=fsync)


def open_prepared(location: str) -> Connection:
    """A connection to a database that has its tables. Raises StartError in one sentence with the way out."""
    try:
        connection = open_database(location).connect()
        prepare(connection)
    except DatabaseError as error:
        raise (DatabaseUnreachable if "://" in location else StartError)(
            f"the usage database cannot be used: {error}; choose another --data-dir or --database-url, or "
            f"--database-url memory to keep nothing"
        ) from error
    return connection


def with_metering(plan: ServePlan, settings: Settings) -> ServePlan:
    """The plan with prices read and the database tried. Raises StartError, SettingsError."""
    location = database_location(settings.data_dir, settings.database_url)
    if location == "memory" and settings.ledger_timelines:
        raise SettingsError(
            f"--ledger-timelines {settings.ledger_timelines} keeps requests in the usage database, and "
            "--database-url memory keeps nothing; leave one of them away"
        )
    check_traffic_bytes(settings.traffic_log_bytes, location)
    notes = check_keys(location, settings)
    journal_dir = "" if location == "memory" else str(data_folder(settings.data_dir) / JOURNAL_FOLDER)
    if journal_dir:
        notes += _check_journal(Path(journal_dir), location)
    admin_hashes = plan.gateway.admin_key_hashes
    sealing_key = secrets.token_hex(32)
    if location != "memory" and "://" not in location:
        key = operator_key(Path(location).parent)
        admin_hashes = (*admin_hashes, digest_of(key))
        sealing_key = digest_of(f"seal:{key}")  # the same after the next start
    gateway = msgspec.structs.replace(
        plan.gateway,
        admin_key_hashes=admin_hashes,
        sealing_key=sealing_key,
        database=location,
        ledger_fsync=settings.ledger_fsync,
        require_keys=settings.require_keys,
        journal_dir=journal_dir,
        **_traffic_log(settings),
        prices={name: price for model in plan.models for name, price in _prices(model.ask).items()},
    )
    note = "usage is kept in memory only" if location == "memory" else f"usage and API keys: {location_name(location)}"
    return replace(plan, gateway=gateway, notes=(*plan.notes, note, *notes))


def _traffic_log(settings: Settings) -> dict[str, str]:
    """Raises StartError."""
    if not settings.traffic_log_bytes:
        return {}
    folder = traffic_folder(settings.data_dir)
    return {"traffic_log_dir": str(folder), "traffic_log_key": traffic_key(folder)}


def traffic_folder(data_dir: str | None) -> Path:
    return data_folder(data_dir) / TRAFFIC_FOLDER


def keys_marker(data_dir: str | None, location: str) -> KeysMarker:
    """Raises SettingsError, DatabaseError."""
    return KeysMarker(data_folder(data_dir), open_database(location).name)


def check_keys(location: str, settings: Settings) -> tuple[str, ...]:
    """Notes for the operator. Raises StartError if the database cannot be used, or where keys are needed and there are
    none."""
    connection = open_prepared(location)
    try:
        return _check_keys(connection, location, settings)
    except DatabaseError as error:
        raise StartError(f"the API keys cannot be read: {error}") from error
    finally:
        connection.close()


def _check_keys(connection: Connection, location: str, settings: Settings) -> tuple[str, ...]:
    if list_keys(connection):
        if location == "memory":
            return ()
        marker = keys_marker(settings.data_dir, location)
        try:
            marker.leave()
        except OSError as error:
            return (f"{marker.path} cannot be written ({error.strerror}): if the keys are lost, only --require-keys "
                    "keeps the server closed",)  # fmt: skip
        return ()
    if settings.api_key:
        return ()
    name, make_one = location_name(location), "make a key with `relevo keys create`, or give --api-key"
    if settings.require_keys:
        raise StartError(f"--require-keys: there are no API keys in {name}; {make_one}")
    if location == "memory":
        return ()
    marker = keys_marker(settings.data_dir, location)
    if marker.exists:
        raise StartError(
            f"there are no API keys in {name}, and there were some; restore the database, {make_one}; to serve "
            f"every client without keys, remove {marker.path}"
        )
    if keys_revision(connection):
        raise StartError(
            f"there are no API keys in {name}, and there were some, which were removed from its table; {make_one}"
        )
    return ()


def _check_journal(folder: Path, location: str) -> tuple[str, ...]:
    try:
        check_journal_folder(folder)
    except JournalError as error:
        name = location_name(location)
        return (f"{error}: usage rows that {name} has not taken when the server ends are lost; make it writable, or "
                "choose another --data-dir",)  # fmt: skip
    return ()


def location_name(location: str) -> str:
    """For people: a URL without user and password."""
    scheme, separator, rest = location.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if separator else location


def data_folder(data_dir: str | None) -> Path:
    if data_dir:
        try:
            return Path(data_dir).expanduser().absolute()
        except RuntimeError as error:
            raise SettingsError(f"--data-dir {data_dir}: there is no such home folder; write the whole path") from error
    state = os.environ.get("XDG_STATE_HOME") or ""  # only absolute paths are valid there
    try:
        home = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise SettingsError(
            "there is no home folder for the usage database; name a folder with --data-dir, or keep nothing with "
            "--database-url memory"
        ) from error
    return home / "relevo"


def _prices(ask: ModelAsk) -> dict[str, PriceConfig]:
    """Of every name of the model. Raises SettingsError."""
    path, names = ask.settings.prices, ask.served_names
    if ask.price is None and path is None:
        return {}
    document = {names[0]: ask.price} if path is None or ask.price is not None else read_document(path, "--prices")
    return {
        name: PriceConfig(
            input_cost_per_token=plain(price.input_cost_per_token),
            cache_read_input_token_cost=plain(price.cache_read_input_token_cost),
            output_cost_per_token=plain(price.output_cost_per_token),
        )
        for name, price in parse_prices(document, names).items()
    }
