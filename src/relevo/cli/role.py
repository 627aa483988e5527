"""`relevo role`: give a worker another role while it runs."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from relevo.cli.admin import AdminKey, Gateway, NotDone, admin_key, ask, workers_of
from relevo.cli.database import DataDir
from relevo.core.errors import SettingsError
from relevo.core.role import parse_role
from relevo.core.urls import normalise_url

_POLL_S = 0.05


def role(
    worker: Annotated[str, typer.Argument(help="Worker id as /ready names it, e.g. decode-0.")],
    role: Annotated[
        str, typer.Argument(help="prefill, decode, unified, hybrid, standby, or P:D: the shares of a hybrid, e.g. 3:1.")
    ],
    reason: Annotated[str, typer.Option(help="Why, for the log.")] = "",
    url: Gateway = "http://127.0.0.1:8000",
    api_key: AdminKey = None,
    data_dir: DataDir = None,
    timeout_s: Annotated[float, typer.Option(help="How long to wait until the worker says that it has it.")] = 10.0,
) -> None:
    """Give a worker another role, without a restart. What runs on it goes on there; what comes next follows the roles.

    Cores of the machine are shared out anew: a worker on standby leaves its cores to the others.
    """
    url, wanted = normalise_url(url, "--url"), str(parse_role(role))
    known = {each["worker_id"]: each for each in workers_of(url)}
    if worker not in known:
        raise SettingsError(f"{url} has no worker {worker}; it has {', '.join(known)}")
    before = ask(url, "role", worker, admin_key(url, api_key, data_dir), {"role": wanted, "reason": reason})["before"]
    started_s = time.monotonic()
    while next(each["role"] for each in workers_of(url) if each["worker_id"] == worker) != wanted:
        if time.monotonic() - started_s > timeout_s:
            raise NotDone(f"{worker} has not taken up its role after {timeout_s:.0f} s; see the log of the server")
        time.sleep(_POLL_S)
    typer.echo(f"{worker}: {before} -> {wanted}, after {time.monotonic() - started_s:.2f} s")
