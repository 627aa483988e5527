"""GET /health and GET /ready: is the server alive, and would it serve a request, in all and per model.

One model that cannot serve does not take the others out of rotation: the server is ready while any model is, once all
have started. `?model=NAME` asks about one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from relevo.gateway.call import Call
from relevo.gateway.ports import EngineStatus
from relevo.gateway.replies import json_response


async def health(call: Call) -> Response:
    """200 while at least one worker lives. Query: `model`.

    A ledger that cannot be written does not make it 503: a restart would lose the rows that wait.
    """
    statuses = _statuses(call)
    said: dict[str, Any] = {"status": "ok", "models": _models(statuses)}
    reason = _why_not_all_serve(statuses)
    if not any(worker.ready for status in statuses.values() for worker in status.workers):
        said |= {"status": "unavailable", "reason": reason or "no worker is alive"}
        return json_response(said, 503)
    if reason := call.context.meter.failure or reason:
        said |= {"status": "degraded", "reason": reason}
    return json_response(said)


async def ready(call: Call) -> Response:
    """200 while requests are served. Query: `model`, then 200 exactly when a request to it would be served."""
    statuses = _statuses(call)
    meter_failure = call.context.meter.failure
    have_started = all(worker.epoch > 0 for status in statuses.values() for worker in status.workers)
    is_ready = have_started and any(status.ready for status in statuses.values()) and not meter_failure
    said: dict[str, Any] = {"ready": is_ready, "models": _models(statuses), "workers": _workers(statuses)}
    if not is_ready:
        said["reason"] = _why_not_all_serve(statuses) or meter_failure or "no worker is ready"
    return json_response(said, 200 if is_ready else 503)


def _statuses(call: Call) -> dict[str, EngineStatus]:
    """Of each model asked about, by its name. Raises ModelNotFound."""
    asked = call.request.query_params.get("model")
    models = call.context.models
    return {served.name: served.generator.status() for served in ([models.find(asked)] if asked else models)}


def _models(statuses: Mapping[str, EngineStatus]) -> dict[str, Any]:
    return {name: _model(status) for name, status in statuses.items()}


def _model(status: EngineStatus) -> dict[str, Any]:
    """`roles`: how many workers there are of each, and how many of them take requests."""
    roles: dict[str, dict[str, int]] = {}
    for worker in status.workers:
        role = roles.setdefault(worker.role, {"workers": 0, "ready": 0})
        role["workers"] += 1
        role["ready"] += worker.ready
    said: dict[str, Any] = {"ready": status.ready, "roles": roles}
    return said if status.ready else said | {"reason": status.reason or "no worker is ready"}


def _workers(statuses: Mapping[str, EngineStatus]) -> list[dict[str, Any]]:
    return [
        {
            "worker_id": worker.worker_id,
            "model": name,
            "role": worker.role,
            "ready": worker.ready,
            "epoch": worker.epoch,
            "pid": worker.pid,
            "address": worker.address,
        }
        for name, status in statuses.items()
        for worker in status.workers
    ]


def _why_not_all_serve(statuses: Mapping[str, EngineStatus]) -> str:
    """Empty if every model serves."""
    reasons = [
        f"{name}: {status.reason or 'no worker is ready'}" for name, status in statuses.items() if not status.ready
    ]
    return "; ".join(reasons)
