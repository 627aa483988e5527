"""`relevo drain`: replace workers, or take nodes out, one after the other without failing a request."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from relevo.cli.admin import AdminKey, Gateway, NotDone, admin_key, ask, workers_of
from relevo.cli.database import DataDir
from relevo.cli.nodes import nodes_of
from relevo.cli.quiet import Quiet
from relevo.core.errors import SettingsError
from relevo.core.urls import normalise_url
from relevo.telemetry.progress import Progress, shown

_POLL_S = 0.1
_STILL_HERE = ("joined", "unheard")


def drain(
    workers: Annotated[
        list[str] | None,
        typer.Argument(
            help="Worker ids as /ready names them, e.g. decode-0, or nodes of a cluster, as `relevo nodes` does."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every worker, one after the other.")] = False,
    model: Annotated[str | None, typer.Option(help="Every worker of that model, one after the other.")] = None,
    leave: Annotated[bool, typer.Option("--leave", help="Nodes leave for good: they are not waited for.")] = False,
    url: Gateway = "http://127.0.0.1:8000",
    api_key: AdminKey = None,
    data_dir: DataDir = None,
    timeout_s: Annotated[float, typer.Option(help="How long to wait for each worker to be back.")] = 120.0,
    quiet: Quiet = False,
) -> None:
    """Take workers out of rotation, let them finish or hand on what they run, and wait until they are back.

    The gateway is asked, with an admin key: one of its --admin-key, one made with `relevo keys create --admin`, or the
    operator's own, which the server keeps in its data folder.
    """
    url = normalise_url(url, "--url")
    known = {worker["worker_id"]: worker for worker in workers_of(url)}
    chosen = [name for name in known if every or known[name]["model"] == model] or list(workers or [])
    if chosen and not known.keys() & set(chosen):
        _drain_nodes(url, chosen, admin_key(url, api_key, data_dir), timeout_s, list(known), for_good=leave)
        return
    if leave:
        raise SettingsError("--leave is for nodes of a cluster; workers come back, which is what their drain is for")
    if model is not None and not any(worker["model"] == model for worker in known.values()):
        models = ", ".join(dict.fromkeys(worker["model"] for worker in known.values()))
        raise SettingsError(f"{url} has no model {model}; it has {models}")
    if not chosen:
        raise SettingsError(f"name a worker ({', '.join(known)}), a --model, or give --all")
    unknown = [worker_id for worker_id in chosen if worker_id not in known]
    if unknown:
        raise SettingsError(f"{url} has no worker {unknown[0]}; it has {', '.join(known)}")
    key = admin_key(url, api_key, data_dir)
    for worker_id in chosen:
        with shown() as progress:
            progress.begin(f"waiting until {worker_id} has left and is back")
            took_s = _replace(url, worker_id, key, timeout_s, progress)
        typer.echo(f"{worker_id} drained and back after {took_s:.1f} s")


def _drain_nodes(
    url: str, names: list[str], key: str | None, timeout_s: float, workers: list[str], *, for_good: bool
) -> None:
    """One after the other; each is done when its head says that it has left."""
    try:
        known = {node["name"]: node for node in nodes_of(url, key)}
    except NotDone as error:
        raise NotDone(f"{url} has no worker {names[0]}; it has {', '.join(workers)}; nodes: {error.message}") from error
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SettingsError(f"{url} has no worker and no node {unknown[0]}; its nodes are {', '.join(known) or 'none'}")
    for name in names:
        started_s = time.monotonic()
        with shown() as progress:
            progress.begin(f"waiting until {name} has left")
            ask(url, "drain-node", name, key, {"for_good": for_good})
            while any(node["name"] == name and node["state"] in _STILL_HERE for node in nodes_of(url, key)):
                if time.monotonic() - started_s > timeout_s:
                    raise NotDone(f"{name} has not left after {timeout_s:.0f} s; see its log")
                progress.look()
                time.sleep(_POLL_S)
        typer.echo(f"{name} has left after {time.monotonic() - started_s:.1f} s")


def _replace(url: str, worker_id: str, key: str | None, timeout_s: float, progress: Progress) -> float:
    started_s = time.monotonic()
    before = _worker(url, worker_id)
    if not before["ready"]:
        raise NotDone(f"{worker_id} is not ready; wait until it is")
    ask(url, "drain", worker_id, key)
    while True:
        now = _worker(url, worker_id)
        if now["ready"] and now["epoch"] > before["epoch"]:
            return time.monotonic() - started_s
        if time.monotonic() - started_s > timeout_s:
            raise NotDone(f"{worker_id} is not back after {timeout_s:.0f} s; see the log of the server")
        progress.look()
        time.sleep(_POLL_S)


def _worker(url: str, worker_id: str) -> dict[str, Any]:
    return next(worker for worker in workers_of(url) if worker["worker_id"] == worker_id)
