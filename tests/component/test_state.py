"""GET /v1/state: the server as one JSON object."""

from __future__ import annotations

import msgspec
from scripted_gateway import MODEL, Rig, rig

from relevo.gateway.console.state import State
from relevo.gateway.http.auth import ApiKeys


async def state_of(r: Rig, **headers: str) -> State:
    response = await r.get("/v1/state", **headers)
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content, type=State)


async def test_it_says_what_there_is_today() -> None:
    """Red if a member is missing, or has another type than the struct says."""
    state = await state_of(rig())
    assert [(model.name, model.is_ready, model.topology) for model in state.models] == [(MODEL, True, "unified")]
    assert [(worker.worker_id, worker.is_ready, worker.why_not_ready) for worker in state.workers] == [("w0", True, "")]
    assert state.viewer.sees_all and not state.viewer.is_admin
    assert state.plan is None and state.nodes == ()


async def test_with_keys_nothing_is_told_without_one() -> None:
    """Red if the route is open."""
    r = rig(api_keys=ApiKeys.of(["secret"]))
    assert (await r.get("/v1/state")).status_code == 401
    assert not (await state_of(r, authorization="Bearer secret")).viewer.sees_all
