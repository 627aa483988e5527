"""The gateway's copy of the API keys, and who is behind a request.

Keys come from the command line (they never change) and from the database (`load` replaces them all). As soon as there
is any key, even one that is revoked or expired, every guarded path needs a valid one, and goes on to need one when they
are gone: neither revoking the last key nor losing the database opens the server. Does not know the database.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from relevo.core.errors import Unauthorized
from relevo.gateway.http.auth import UNKNOWN_KEY, ApiKeys, Caller, presented_digest, presented_key
from relevo.gateway.metering.keys import KeyRecord

log = logging.getLogger("relevo.gateway.keys")


class KeyRing:
    """An `Authenticator`. `now_ms`: Unix milliseconds; `admins`: keys of operators, which do not close the server."""

    def __init__(
        self, fixed: ApiKeys, now_ms: Callable[[], int], *, is_closed: bool = False, admins: ApiKeys | None = None
    ) -> None:
        """`is_closed`: a key is needed even where there is none."""
        self._fixed = fixed
        self.is_closed = is_closed or bool(fixed.digests)
        self._admins = admins or ApiKeys()
        self._now_ms = now_ms
        self._by_digest: dict[str, KeyRecord] = {}
        self._by_key_id: dict[str, KeyRecord] = {}

    def load(self, records: Iterable[KeyRecord]) -> None:
        had_keys = bool(self._by_digest)
        self._by_digest = {record.digest: record for record in records}
        self.is_closed = self.is_closed or bool(self._by_digest)
        if had_keys and not self._by_digest:
            log.error("the database has no API keys any more; it had some, so every request is refused")
        self._by_key_id = {record.key_id: record for record in self._by_digest.values()}

    def why_ended(self, caller: Caller) -> str:
        """Why the key of a running request may not be used any more; empty: it may."""
        record = self._by_key_id.get(caller.key_id)
        if record is None:
            known = not caller.key_id or self._fixed.has(caller.key_id) or self._admins.has(caller.key_id)
            return "" if known else "The API key of this request does not exist any more."
        state = record.state(self._now_ms())
        return "" if state == "active" else f"The API key {record.prefix}... is {state}."

    @property
    def records(self) -> Iterable[KeyRecord]:
        return self._by_digest.values()

    @property
    def is_open(self) -> bool:
        """Served without a key."""
        return not self.is_closed

    def identify(self, headers: Mapping[str, str]) -> Caller:
        if presented_key(headers) is not None:
            admin = self._admins.find(presented_digest(headers))
            if admin is not None:
                return replace(admin, is_admin=True)
        if self.is_open:
            return self._fixed.anonymous
        digest = presented_digest(headers)
        fixed = self._fixed.find(digest)
        if fixed is not None:
            return fixed
        record = self._by_digest.get(digest)
        if record is None:
            raise Unauthorized(UNKNOWN_KEY)
        state = record.state(self._now_ms())
        if state != "active":
            raise Unauthorized(f"The API key {record.prefix}... is {state}.")
        return Caller(
            tenant=record.tenant,
            key_id=record.key_id,
            is_admin=record.is_admin,
            best_priority=record.best_priority,
        )
