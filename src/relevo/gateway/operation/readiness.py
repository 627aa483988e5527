"""GET /health and GET /ready: is the server alive, and would it serve a request, in all and per model.

One model that cannot serve does not take the others out of rotation: the server is ready while any model is, once all
have started; a gateway that was restarted waits for none. `?model=NAME` asks about one. Where several gateways share a
port, /ready asks all of them: a worker is ready when every gateway may send to it. Process ids and addresses are told
to admin keys, and to every client where the operator says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from relevo.core.errors import Unauthorized
from relevo.gateway.http.call import Call
from relevo.gateway.http.context import GatewayContext
from relevo.gateway.http.replies import json_response
from relevo.orchestrator.ports import EngineStatus

OF_PROCESSES = frozenset(("pid", "address"))  # of a worker: of use to its operator, and to an attacker


async def health(call: Call) -> Response:
    """200 while at least one worker lives, as this gateway sees it. Query: `model`.

    A ledger that cannot be written does not make it 503: a restart would lose the rows that wait.
    """
    statuses = _statuses(call.context, call.request.query_params.get("model"))
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
    asked = call.request.query_params.get("model")
    said, others = readiness(call.context, asked), call.context.others
    if others is not None and not call.context.stopping.is_draining:  # which is answered at once
        said = _with_others(said, others.gateway_id, await others.readiness(), is_of_one_model=asked is not None)
    if not (call.context.expose_processes or _is_admin(call)):
        said = {**said, "workers": [_without_process(worker) for worker in said["workers"]]}
    response = json_response(said, 200 if said["ready"] else 503)
    if not said["ready"]:
        response.headers["Retry-After"] = "1"
    return response


def _is_admin(call: Call) -> bool:
    """Whether this comes with an admin's key. Probes come without any, and are answered too."""
    try:
        return call.context.api_keys.identify(call.request.headers).is_admin
    except Unauthorized:
        return False


def _without_process(worker: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in worker.items() if name not in OF_PROCESSES}


def readiness(context: GatewayContext, asked: str | None = None) -> dict[str, Any]:
    """What this gateway says of itself, of the model `asked` about or of all. Raises ModelNotFound."""
    statuses = _statuses(context, asked)
    meter_failure = context.meter.failure
    have_started = context.is_restarted or all(
        worker.epoch > 0 for status in statuses.values() for worker in status.workers
    )
    is_stopping = context.stopping.is_draining
    is_ready = have_started and any(status.ready for status in statuses.values()) and not (meter_failure or is_stopping)
    said: dict[str, Any] = {"ready": is_ready, "models": _models(statuses), "workers": _workers(statuses)}
    if not is_ready:
        stopping = "the server is being stopped" if is_stopping else ""
        said["reason"] = stopping or _why_not_all_serve(statuses) or meter_failure or "no worker is ready"
    return said


def _with_others(
    own: dict[str, Any], own_id: str, others: Mapping[str, dict[str, Any] | None], *, is_of_one_model: bool
) -> dict[str, Any]:
    """Ready if all that answer are: a gateway that does not answer does not accept either."""
    answers = {own_id: own} | {name: said for name, said in others.items() if said is not None}
    unready = {}
    for name, said in sorted(answers.items()):
        is_ready = all(said["models"][m]["ready"] for m in own["models"]) if is_of_one_model else said["ready"]
        if not is_ready:
            unready[name] = said.get("reason", "the model is not ready")
    merged = {**own, "ready": not unready, "workers": [_seen_by_all(worker, answers) for worker in own["workers"]]}
    merged["gateways"] = [
        {"gateway_id": name, "answers": name in answers, "ready": name in answers and name not in unready}
        for name in sorted({own_id, *others})
    ]
    if unready:
        merged["reason"] = "; ".join(f"{name}: {reason}" for name, reason in unready.items())
    return merged


def _seen_by_all(worker: dict[str, Any], answers: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Ready when every gateway may send to it, in the incarnation that all of them have seen."""
    name = (worker["model"], worker["worker_id"])
    seen = [w for said in answers.values() for w in said["workers"] if (w["model"], w["worker_id"]) == name]
    return worker | {"ready": all(w["ready"] for w in seen), "epoch": min(w["epoch"] for w in seen)}


def _statuses(context: GatewayContext, asked: str | None) -> dict[str, EngineStatus]:
    """Of each model asked about, by its name. Raises ModelNotFound."""
    models = context.models
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
