"""A path below /v1 is answered without it too, as the same path: its handler, its keys, its errors, its sessions."""

from __future__ import annotations

import pytest
from scripted_gateway import MODEL, rig, says

from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.http.route import Route, RouteTable
from relevo.gateway.routes import ROUTES, route_table

VERSIONED = [route for route in ROUTES if route.path.startswith("/v1/")]


@pytest.mark.parametrize("route", VERSIONED, ids=lambda route: f"{route.method} {route.path}")
def test_every_versioned_path_is_at_its_short_name(route: Route) -> None:
    """Red if short names are a list: then a new path is missing in it."""
    table = route_table()
    path = route.path.replace("*", "some/name")
    short = path.removeprefix("/v1")
    assert table.find(route.method, short) == table.find(route.method, path)
    assert table.is_generation(short) == table.is_generation(path)
    assert table.is_guarded(short) == table.is_guarded(path)
    assert table.error_format(short) is table.error_format(path)


async def test_short_names_answer_as_the_long_ones_and_are_counted_as_them() -> None:
    r = rig(says("hello"))
    messages = {"messages": [{"role": "user", "content": "hi"}]}
    short = (await r.post("/chat/completions", messages)).json()
    long = (await r.post("/v1/chat/completions", messages)).json()
    assert short["choices"] == long["choices"] and short["usage"] == long["usage"]
    assert (await r.post("/completions", {"prompt": "hi"})).json()["choices"][0]["text"] == "hello"
    assert (await r.get("/models/alias/of-tiny")).json() == (await r.get("/v1/models/alias/of-tiny")).json()
    assert {handler for handler, _, _ in r.metrics.responses} == {
        *("/v1/chat/completions", "/v1/completions", "/v1/models/*"),
    }


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/models", "/models/x", "/usage", "/chat/other"])
async def test_a_short_name_asks_for_the_key_of_the_long_one(path: str) -> None:
    """Red if only the paths as they are written in the table are guarded."""
    r = rig(says("x"), api_keys=ApiKeys.of(["secret"]))
    for answer in (await r.get(path), await r.post(path, {"model": MODEL})):
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"


async def test_nothing_else_is_below_or_above_the_version() -> None:
    """Red if a path without /v1 were found with it, or one with /v1 twice."""
    r = rig()
    for path in ("/v1/health", "/v1/v1/models", "/v1/tokenizer", "/nothing"):
        assert (await r.get(path)).status_code == 404


def test_a_path_of_many_slashes_is_looked_up_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when how its error looks takes a step per slash: anybody may send one, and all others wait for it."""
    table, looked_up = route_table(), list[str]()
    find = RouteTable._at

    def noted(self: RouteTable, path: str) -> tuple[dict[str, Route], str]:
        looked_up.append(path)
        return find(self, path)

    monkeypatch.setattr(RouteTable, "_at", noted)
    assert table.error_format("/v1/messages" + "/" * 10_000) is table.error_format("/v1/messages")
    assert len(looked_up) < 20
