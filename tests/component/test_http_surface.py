"""Everything around generation: health, models, tokenisation, keys, origins, methods, ids, counting."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from scripted_gateway import EOS, MAX_MODEL_LEN, MODEL, Rig, ids, rig, says, status_of

from relevo import __version__
from relevo.gateway.http.auth import ApiKeys
from relevo.orchestrator.ports import EngineStatus

KEYS = ApiKeys.of(["sk-one", "sk-two"])


def rig_with_status(status: EngineStatus) -> Rig:
    r = rig()
    r.generator.engine_status = status
    return r


async def test_health_follows_the_workers() -> None:
    alive = await rig().get("/health")
    assert alive.status_code == 200
    roles = {"unified": {"workers": 1, "ready": 1}}
    assert alive.json() == {"status": "ok", "models": {MODEL: {"ready": True, "roles": roles}}}
    for status in (status_of(ready=False, reason="worker w0 restarts"), EngineStatus(ready=False, reason="no workers")):
        dead = await rig_with_status(status).get("/health")
        assert dead.status_code == 503 and dead.json()["reason"] == f"{MODEL}: {status.reason}"


async def test_ready_means_that_a_request_would_be_served() -> None:
    """Red if /ready looked at workers instead of the whole: a lone prefill worker serves nobody."""
    assert (await rig().get("/ready")).json()["ready"] is True
    one_alive = EngineStatus(ready=False, reason="no decode worker", workers=status_of(ready=True).workers)
    r = rig_with_status(one_alive)
    response = await r.get("/ready")
    said = response.json()
    assert (response.status_code, said["ready"], said["reason"]) == (503, False, f"{MODEL}: no decode worker")
    assert [worker["ready"] for worker in said["workers"]] == [True]
    assert (await r.get("/health")).status_code == 200


async def test_models() -> None:
    r = rig()
    listed = (await r.get("/v1/models")).json()
    assert listed["object"] == "list" and [card["id"] for card in listed["data"]] == [MODEL, "alias/of-tiny"]
    card = (await r.get("/v1/models/alias/of-tiny")).json()
    assert card == listed["data"][1]
    assert (card["object"], card["max_model_len"], card["created"]) == ("model", MAX_MODEL_LEN, 1_700_000_000)
    for missing in ("/v1/models/X", "/v1/models/"):
        response = await r.get(missing)
        assert response.status_code == 404 and response.json()["error"]["code"] == "model_not_found"


async def test_an_alias_is_answered_under_its_own_name() -> None:
    assert (await rig(says("x")).chat(model="alias/of-tiny")).json()["model"] == "alias/of-tiny"


async def test_version_root_and_metrics() -> None:
    r = rig()
    assert (await r.get("/version")).json() == {"version": __version__}
    assert (await r.get("/")).status_code == 200
    async with r.client() as client:
        assert (await client.head("/")).status_code == 200
    scraped = await r.get("/metrics")
    assert scraped.text == "up 1\n" and scraped.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_tokenize_and_detokenize() -> None:
    r = rig()
    body = (await r.post("/tokenize", {"prompt": "né", "return_token_strs": True})).json()
    assert body == {
        "count": 3,
        "max_model_len": MAX_MODEL_LEN,
        "tokens": ids("né"),
        "token_strs": ["n", "bytes:\\xc3", "bytes:\\xa9"],
    }
    assert (await r.post("/detokenize", {"tokens": body["tokens"]})).json() == {"prompt": "né"}
    messages = [{"role": "user", "content": "hi"}]
    chat = (await r.post("/tokenize", {"model": MODEL, "messages": messages})).json()
    assert chat["tokens"] == ids("user:hi\nassistant:") and chat["token_strs"] is None
    continued = (await r.post("/tokenize", {"messages": messages, "add_generation_prompt": False})).json()
    assert continued["tokens"] == ids("user:hi\n")


@pytest.mark.parametrize(
    "headers", [{"authorization": "Bearer sk-two"}, {"authorization": "bearer  sk-one"}, {"x-api-key": "sk-two"}]
)
async def test_a_key_opens_in_either_header(headers: dict[str, str]) -> None:
    response = await rig(api_keys=KEYS).get("/v1/models", **headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer sk-three"}, {"authorization": "Basic sk-one"}, {"x-api-key": "sk-on"},
     {"authorization": "Bearer "}, {"x-api-key": "clé".encode("latin-1").decode("latin-1")}],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/models", "/v1/nothing", "/v1/chat/completions", "/tokenize", "/detokenize"])
async def test_without_a_valid_key_nothing_guarded_answers(path: str, headers: dict[str, str]) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    async with rig(api_keys=KEYS).client() as client:
        response = await client.request("GET" if "nothing" in path else "POST", path, headers=encoded)  # type: ignore[arg-type]
    assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key" and "sk-" not in response.text


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/metrics", "/"])
async def test_probes_need_no_key(path: str) -> None:
    assert (await rig(api_keys=KEYS).get(path)).status_code == 200


async def test_keys_are_tenants_and_share_no_blocks() -> None:
    r = rig(says("x"), api_keys=KEYS)
    for key in ("sk-one", "sk-two", "sk-one"):
        await r.post("/v1/completions", {"prompt": "hi"}, **{"x-api-key": key})
    first, second, third = (request.salt for request in r.generator.requests)
    assert first == third != second


def test_only_digests_are_kept() -> None:
    assert ApiKeys.of(["sk-one", ""]) == ApiKeys((hashlib.sha256(b"sk-one").hexdigest(),))


async def test_other_origins_get_nothing_by_default() -> None:
    async with rig(says("x")).client(origin="http://elsewhere") as client:
        response = await client.get("/v1/models")
        preflight = await client.options("/v1/models", headers={"access-control-request-method": "GET"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert preflight.status_code == 405 and not [n for n in preflight.headers if n.startswith("access-control")]


async def test_named_origins_are_allowed_without_a_key_on_the_preflight() -> None:
    r = rig(api_keys=KEYS, allowed_origins=("http://app",))
    async with r.client() as client:
        asked = {"origin": "http://app", "access-control-request-method": "POST"}
        preflight = await client.options("/v1/models", headers=asked)
        refused = await client.get("/v1/models", headers={"origin": "http://app"})
        foreign = await client.get("/health", headers={"origin": "http://elsewhere"})
    assert preflight.status_code == 200 and preflight.headers["access-control-allow-origin"] == "http://app"
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "http://app"
    assert "access-control-allow-origin" not in foreign.headers


async def test_unknown_paths_and_methods_have_the_same_error_shape() -> None:
    r = rig()
    missing = await r.get("/v2/models")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "unknown_path"
    wrong = await r.get("/v1/chat/completions")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    assert (await r.post("/health", {})).headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(("given", "kept"), [("abc-123", True), ("a b", False), ("x" * 129, False)])
async def test_the_request_id_is_echoed_or_made(given: str, kept: bool) -> None:
    r = rig(says("x"))
    body: dict[str, Any] = {"prompt": "hi"}
    response = await r.post("/v1/completions", body, **{"x-request-id": given})
    request_id = response.headers["x-request-id"]
    assert (request_id == given) is kept and response.json()["id"] == f"cmpl-{request_id}"
    assert r.generator.requests[0].request_id != request_id  # clients repeat theirs, the engine's must be unique
    failed = await r.get("/nothing", **{"x-request-id": given})
    assert (failed.headers["x-request-id"] == given) is kept


async def test_responses_are_counted_by_route_not_by_path() -> None:
    """Red if raw paths became label values: anybody could then grow the metrics without end."""
    r = rig(says("x"))
    await r.chat(stream=True)
    await r.get("/v1/models/alias/of-tiny")
    await r.get("/random/123")
    await r.get("/v1/completions")
    assert r.metrics.responses == [
        ("/v1/chat/completions", "POST", 200),
        ("/v1/models/*", "GET", 200),
        ("unknown", "GET", 404),
        ("unknown", "GET", 405),
    ]


@pytest.mark.parametrize(("path", "status"), [("/api/v1/models", 401), ("/v1/models", 401), ("/api/health", 200)])
async def test_a_prefix_of_a_proxy_is_taken_off_before_keys_and_routes(path: str, status: int) -> None:
    """Red if a prefix let a guarded path pass without a key, or hid a route."""
    r = rig(api_keys=KEYS)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": path, "root_path": "/api", "headers": [], "query_string": b""}
    await r.app(scope, receive, send)
    assert sent[0]["status"] == status


async def test_special_tokens_can_be_shown() -> None:
    script = [(0, [*ids("a"), EOS, *ids("b")], None), *says("c")]
    for skip, expected in ((True, "abc"), (False, "a<|end|>bc")):
        body = (await rig(script).complete(ignore_eos=True, skip_special_tokens=skip)).json()
        assert body["choices"][0]["text"] == expected


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}),
        ("/v1/responses", {"input": "Hi"}),
    ],
)
async def test_no_stream_is_gathered_or_kept_on_its_way(path: str, fields: dict[str, Any]) -> None:
    """Red if an API's stream lacks what tells proxies to pass each event on, and caches to keep none."""
    response = await rig(says("Hey")).post(path, {"model": MODEL, "stream": True, **fields})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert (response.headers["x-accel-buffering"], response.headers["cache-control"]) == ("no", "no-cache")
