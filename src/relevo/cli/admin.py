"""What commands that ask a gateway for something as its operator have in common: its workers, the key, the words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import typer

from relevo.cli.http import fetch, read_json
from relevo.cli.own_key import own_key
from relevo.client.visible_text import one_line
from relevo.core.errors import RelevoError, SettingsError

Gateway = Annotated[str, typer.Option(help="The gateway.")]
AdminKey = Annotated[
    str | None,
    typer.Option(
        envvar="RELEVO_ADMIN_KEY",
        help="An admin key of the server. Default, for a server on this machine: its operator-key file.",
    ),
]


class NotDone(RelevoError):
    """The gateway did not do what it was asked for."""


def admin_key(url: str, api_key: str | None, data_dir: str | None) -> str | None:
    """The key that was given, or that of this user's server on this machine; None: the server says what it wants."""
    return api_key.split(",")[0].strip() if api_key else own_key(url, data_dir)


def workers_of(url: str) -> list[dict[str, Any]]:
    """As /ready lists them. Raises SettingsError."""
    try:
        _, body = fetch(f"{url}/ready")  # one that is not ready lists its workers too
    except (OSError, ValueError) as error:
        raise SettingsError(f"no gateway answers at {url} ({error}); give its address with --url") from error
    try:
        workers: list[dict[str, Any]] = read_json(body)["workers"]
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{url} is not a Relevo gateway; give its address with --url") from error
    return workers


def ask(
    url: str, action: str, worker_id: str, key: str | None, members: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """POST /admin/ACTION/WORKER, with these members in its body. Raises NotDone in the gateway's words."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    data = None
    if members is not None:
        headers["content-type"], data = "application/json", json.dumps(members).encode()
    try:
        status, body = fetch(f"{url}/admin/{action}/{quote(worker_id)}", method="POST", headers=headers, data=data)
    except (OSError, ValueError) as error:
        raise NotDone(f"{url} does not answer ({error})") from error
    try:
        said: dict[str, Any] = read_json(body)
        if status == 202:
            return said
        message = one_line(str(said["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        message = f"status {status}"
    if status in (401, 403):
        message += " Give it with --api-key or RELEVO_ADMIN_KEY, or name the server's folder with --data-dir."
    raise NotDone(f"{worker_id}: {message}")
