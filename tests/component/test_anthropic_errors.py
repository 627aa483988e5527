"""Errors and silences of /v1/messages: Anthropic's shape for every status, the last event of a stream, and pings."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import orjson
import pytest
from anthropic.types import ErrorResponse
from anthropic_client import ask, body_of, events, marked
from scripted_gateway import Hang, Rig, ids, raw_call, rig, says

from relevo.core import errors
from relevo.gateway.anthropic.errors import ANTHROPIC_ERRORS
from relevo.gateway.anthropic.events import PING, PING_S
from relevo.gateway.anthropic.routes import ANTHROPIC_ROUTES
from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.http.errors import TooManyConnections
from relevo.gateway.http.stopping import Stopping
from relevo.gateway.routes import route_table

MESSAGES = "/v1/messages"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.InvalidRequest("no"), 400, "invalid_request_error"),
        (errors.Unauthorized("no"), 401, "authentication_error"),
        (errors.Forbidden("no"), 403, "permission_error"),
        (errors.ModelNotFound("no"), 404, "not_found_error"),
        (errors.RequestTooLarge("no"), 413, "request_too_large"),
        (errors.KeyLimitReached("no"), 429, "rate_limit_error"),
        (errors.BudgetSpent("no"), 429, "rate_limit_error"),
        (errors.Overloaded("no"), 529, "overloaded_error"),
        (errors.InternalError("no"), 500, "api_error"),
        (errors.StepFailed("no"), 500, "api_error"),
        (errors.NoWorker("no"), 503, "api_error"),
        (errors.ServerStopping("no"), 503, "api_error"),
        (errors.DeadlineExceeded("no"), 504, "timeout_error"),
        (TooManyConnections("no"), 503, "api_error"),
    ],
)
def test_every_error_has_a_status_and_a_type_of_its_own(error: errors.RelevoError, status: int, kind: str) -> None:
    reply = ANTHROPIC_ERRORS.reply(error, "r1")
    told = {"type": "error", "error": {"type": kind, "message": "no"}, "request_id": "r1"}
    assert (reply.status, orjson.loads(reply.body)) == (status, told)
    assert reply.headers["request-id"] == "r1"
    assert events(ANTHROPIC_ERRORS.stream_event(error, "r1").decode()) == [("error", told)]


@pytest.mark.parametrize(
    ("method", "path", "body", "context", "status", "kind"),
    [
        ("POST", MESSAGES, b"{", {}, 400, "invalid_request_error"),
        ("POST", MESSAGES, b"[]", {}, 400, "invalid_request_error"),
        ("POST", MESSAGES, b"x" * 99, {"max_body_bytes": 9}, 413, "request_too_large"),
        ("POST", MESSAGES, b"{}", {"api_keys": ApiKeys.of(["secret"])}, 401, "authentication_error"),
        ("POST", f"{MESSAGES}/batches", b"{}", {}, 404, "not_found_error"),
        ("GET", f"{MESSAGES}/batches/b1/results", b"", {}, 404, "not_found_error"),
        ("GET", MESSAGES, b"", {}, 405, "invalid_request_error"),
        ("POST", f"{MESSAGES}/count_tokens", b"{", {}, 400, "invalid_request_error"),
    ],
)
async def test_an_error_before_the_handler_has_the_same_shape(
    method: str, path: str, body: bytes, context: dict[str, Any], status: int, kind: str
) -> None:
    """Red if a path of this API, or one below it, answered in another's words."""
    headers = {"x-request-id": "r1", "content-type": "application/json"}
    async with marked(**context).client(**headers) as client:
        response = await client.request(method, path, content=body)
    told = response.json()
    assert (response.status_code, told["type"], told["error"]["type"]) == (status, "error", kind), response.text
    assert (told["request_id"], response.headers.get_list("request-id")) == ("r1", ["r1"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"), [(errors.Overloaded("full"), 529), (errors.KeyLimitReached("spent"), 429)]
)
async def test_an_error_before_the_first_event_keeps_its_status(
    error: errors.RelevoError, status: int, stream: bool
) -> None:
    response = await ask(marked([error]), {"x-request-id": "r1"}, stream=stream)
    assert response.status_code == status and response.json()["error"]["message"] == error.message
    assert "retry-after" in response.headers and response.headers.get_list("request-id") == ["r1"]


async def test_unknown_models_are_not_found() -> None:
    response = await ask(marked(), model="claude-haiku")
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize("num_chars", [183, 184, 500])
async def test_a_prompt_that_is_too_long_is_said_with_both_numbers(num_chars: int) -> None:
    """Red if a word changed: agents compact a conversation when they read this sentence, and by how much."""
    r = marked(says("ok"), max_model_len=200)
    response = await ask(r, messages=[{"role": "user", "content": "x" * (num_chars - 1)}])
    num_tokens = len("<user>\n<assistant>") + num_chars - 1
    assert response.status_code == 400
    most = 199 if num_tokens == 200 else 200
    message = f"prompt is too long: {num_tokens} tokens > {most} maximum"
    assert response.json()["error"] == {"type": "invalid_request_error", "message": message}


@pytest.mark.parametrize("error", [errors.StepFailed("it broke"), ValueError("a fault of the engine's")])
async def test_an_error_in_the_middle_is_the_last_event(error: Exception) -> None:
    """Red if a stream that broke off looked complete, or ended without a word."""
    told = events((await ask(marked([(0, ids("ab"), None), error]), {"x-request-id": "r1"}, stream=True)).text)
    names = [name for name, _ in told]
    assert names == ["message_start", "content_block_start", "content_block_delta", "error"]
    last = ErrorResponse.model_validate(told[-1][1])
    assert (last.error.type, last.request_id) == ("api_error", "r1")


async def test_a_server_that_stops_ends_a_stream_with_an_error() -> None:
    stopping = Stopping()
    r = marked([(0, ids("ab"), None), Hang()], stopping=stopping)

    async def stay() -> dict[str, Any]:
        await r.generator.hanging.wait()
        stopping.cut()
        return await asyncio.Event().wait() or {}

    async with asyncio.timeout(10):
        sent = await raw_call(r.app, body_of(stream=True), stay, MESSAGES)
    told = events(b"".join(message.get("body", b"") for message in sent).decode())
    assert told[-1][0] == "error" and told[0][0] == "message_start"


async def streamed_through_a_silence(r: Rig) -> list[str]:
    """Names of the events, of a stream that goes on once a ping came."""
    sent: list[bytes] = []
    given = [{"type": "http.request", "body": b'{"model": "tiny", "max_tokens": 9, "stream": true, "messages": '
              b'[{"role": "user", "content": "hi"}]}', "more_body": False}]  # fmt: skip

    async def receive() -> Any:
        return given.pop() if given else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if message.get("body") == PING:
            r.generator.resume.set()

    scope = {"type": "http", "method": "POST", "path": MESSAGES, "headers": [], "query_string": b"beta=true"}
    async with asyncio.timeout(10):
        await r.app(scope, receive, send)
    return [name for name, _ in events(b"".join(sent).decode())]


@pytest.mark.parametrize("setting", [None, math.inf])
async def test_a_silence_is_broken_by_pings_whatever_the_setting(
    setting: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red if pings had to be turned on, or were comments, which clients of this API do not count."""
    monkeypatch.setattr("relevo.gateway.anthropic.messages.PING_S", 0.002)
    names = await streamed_through_a_silence(marked([(0, ids("a"), None), Hang(), *says("b")], sse_keepalive_s=setting))
    assert names[:3] == ["message_start", "content_block_start", "content_block_delta"]
    assert names[3] == "ping" and names[-1] == "message_stop"


async def test_a_prompt_that_takes_long_is_waited_for_with_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relevo.gateway.anthropic.messages.PING_S", 0.002)
    names = await streamed_through_a_silence(marked([Hang(), *says("b")]))
    assert names[0] == "ping" and names[-1] == "message_stop" and "message_start" in names


async def test_an_operator_may_have_them_more_often() -> None:
    names = await streamed_through_a_silence(marked([Hang(), *says("b")], sse_keepalive_s=0.002))
    assert names[0] == "ping"


def test_pings_come_before_clients_lose_patience() -> None:
    assert PING_S < 15


@pytest.mark.parametrize("key", [{"x-api-key": "secret"}, {"authorization": "Bearer secret"}])
async def test_a_key_is_taken_from_either_header(key: dict[str, str]) -> None:
    r = marked(says("ok"), api_keys=ApiKeys.of(["secret"]))
    headers = {**key, "anthropic-version": "2023-06-01", "anthropic-beta": "unheard-of-2031-01-01"}
    async with r.client(**headers) as client:
        response = await client.post(f"{MESSAGES}?beta=true", json=body_of())
        counted = await client.post(f"{MESSAGES}/count_tokens?beta=true", json=body_of())
    assert (response.status_code, counted.status_code) == (200, 200)


async def test_the_root_answers_a_probe_without_a_key() -> None:
    async with rig(api_keys=ApiKeys.of(["secret"])).client() as client:
        assert (await client.head("/")).status_code == 200


def test_an_edge_keeps_a_session_of_this_api_in_one_region() -> None:
    """Red if an edge scattered the turns of a conversation."""
    assert route_table().is_generation(MESSAGES)
    assert [route.path for route in ANTHROPIC_ROUTES if route.is_generation] == [MESSAGES]
