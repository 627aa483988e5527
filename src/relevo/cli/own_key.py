"""The operator's own key, for commands that ask a server which this user runs on this machine."""

from __future__ import annotations

from pathlib import Path

from relevo.build.ledger import database_location
from relevo.build.operator_key import read_operator_key
from relevo.cli.http import is_loopback, is_own_listener
from relevo.core.errors import RelevoError, StartError


class NotOwnServer(RelevoError):
    """Another user listens there, who would learn the key."""


def own_key(url: str, data_dir: str | None) -> str | None:
    """That of this user's server on this machine. It is not sent to any other: another user may have taken the port.

    None: there is none, and the server says what it wants. Raises NotOwnServer.
    """
    if not is_loopback(url):
        return None
    if not is_own_listener(url):
        raise NotOwnServer(
            f"what listens at {url} is not this user's, so the operator's own key is not sent there; give an admin key "
            "with --api-key if it is meant"
        )
    try:
        return read_operator_key(Path(database_location(data_dir, None)).parent)
    except StartError:
        return None
