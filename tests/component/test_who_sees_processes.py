"""Process ids and socket addresses are told to who operates the server; probes learn whether it serves."""

from __future__ import annotations

from typing import Any

import pytest
from metered_gateway import metered
from scripted_gateway import rig, says, status_of

from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.operation.readiness import OF_PROCESSES


def worker_of(answer: Any) -> dict[str, Any]:
    return answer.json()["workers"][0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("ready", [True, False])
async def test_who_has_no_authority_is_not_told_processes_and_addresses(ready: bool) -> None:
    """Red if a pid or a socket's path can be had by anybody who reaches the port, ready or not, keys or none."""
    keys: dict[str, Any]
    headers: dict[str, str]
    for keys in ({}, {"api_keys": ApiKeys.of(["sk-tenant"])}):
        r = rig(**keys)
        r.generator.engine_status = status_of(ready=ready)
        for headers in ({}, {"authorization": "Bearer sk-tenant"}, {"authorization": "Bearer wrong"}):
            answer = await r.get("/ready", **headers)
            assert answer.status_code == (200 if ready else 503)
            assert set(worker_of(answer)) == {"worker_id", "model", "role", "ready", "epoch"}


async def test_where_the_operator_says_so_everybody_is_told_processes() -> None:
    assert set(worker_of(await rig(expose_processes=True).get("/ready"))) >= OF_PROCESSES


async def test_an_admin_key_is_told_processes_and_a_tenants_is_not() -> None:
    async with metered(says("a")) as m:
        admin, _ = await m.make_key(is_admin=True)
        tenant, _ = await m.make_key()
        assert set(worker_of(await m.rig.get("/ready", **{"x-api-key": admin}))) >= OF_PROCESSES
        assert not set(worker_of(await m.rig.get("/ready", **{"x-api-key": tenant}))) & OF_PROCESSES


async def test_metrics_ask_for_a_key_where_the_operator_says_so() -> None:
    r = rig(api_keys=ApiKeys.of(["sk-one"]), metrics_require_key=True)
    assert (await r.get("/metrics")).status_code == 401
    assert (await r.get("/metrics", authorization="Bearer sk-one")).status_code == 200
    assert (await r.get("/health")).status_code == 200, "probes bring no key"
    assert (await rig(api_keys=ApiKeys.of(["sk-one"])).get("/metrics")).status_code == 200
