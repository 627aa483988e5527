"""`relevo drain`: replace workers one after the other without failing a request."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from typing import Annotated, Any

import typer

from relevo.core.errors import RelevoError, SettingsError
from relevo.core.urls import check_server_url

_POLL_S = 0.1


class DrainFailed(RelevoError):
    """The worker did not leave, or did not come back."""


def drain(
    workers: Annotated[list[str] | None, typer.Argument(help="Worker ids as /ready names them, e.g. decode-0.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every worker, one after the other.")] = False,
    model: Annotated[str | None, typer.Option(help="Every worker of that model, one after the other.")] = None,
    url: Annotated[str, typer.Option(help="The gateway.")] = "http://127.0.0.1:8000",
    timeout_s: Annotated[float, typer.Option(help="How long to wait for each worker to be back.")] = 120.0,
) -> None:
    """Take workers out of rotation, let them finish or hand on what they run, and wait until they are back.

    Each gets SIGTERM, so this runs on the machine of the workers and as their user.
    """
    check_server_url(url, "--url")
    known = {worker["worker_id"]: worker for worker in _workers(url)}
    chosen = [name for name in known if every or known[name]["model"] == model] or list(workers or [])
    if model is not None and not any(worker["model"] == model for worker in known.values()):
        models = ", ".join(dict.fromkeys(worker["model"] for worker in known.values()))
        raise SettingsError(f"{url} has no model {model}; it has {models}")
    if not chosen:
        raise SettingsError(f"name a worker ({', '.join(known)}), a --model, or give --all")
    unknown = [worker_id for worker_id in chosen if worker_id not in known]
    if unknown:
        raise SettingsError(f"{url} has no worker {unknown[0]}; it has {', '.join(known)}")
    for worker_id in chosen:
        took_s = _replace(url, worker_id, timeout_s)
        typer.echo(f"{worker_id} drained and back after {took_s:.1f} s")


def _replace(url: str, worker_id: str, timeout_s: float) -> float:
    started_s = time.monotonic()
    before = _worker(url, worker_id)
    if not before["ready"]:
        raise DrainFailed(f"{worker_id} is not ready; wait until it is")
    if "pid" not in before:
        raise DrainFailed(f"{url} does not name its processes; start it with --expose-processes")
    try:
        os.kill(before["pid"], signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has just ended by itself and is being replaced
    except PermissionError as error:
        raise DrainFailed(
            f"process {before['pid']} of {worker_id} is not ours; run this as the user of the server"
        ) from error
    while True:
        now = _worker(url, worker_id)
        if now["ready"] and now["epoch"] > before["epoch"]:
            return time.monotonic() - started_s
        if time.monotonic() - started_s > timeout_s:
            raise DrainFailed(f"{worker_id} is not back after {timeout_s:.0f} s; see the log of the server")
        time.sleep(_POLL_S)


def _worker(url: str, worker_id: str) -> dict[str, Any]:
    return next(worker for worker in _workers(url) if worker["worker_id"] == worker_id)


def _workers(url: str) -> list[dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/ready", timeout=10) as answer:
            body = answer.read()
    except urllib.error.HTTPError as error:
        body = error.read()  # not ready, but it still lists its workers
    except (OSError, ValueError) as error:
        raise SettingsError(f"no gateway answers at {url} ({error}); give its address with --url") from error
    try:
        workers: list[dict[str, Any]] = json.loads(body)["workers"]
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{url} is not a Relevo gateway; give its address with --url") from error
    return workers
