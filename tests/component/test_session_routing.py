"""What reaches the router of a session, what is kept out of the prompt, and the reasons a client may ask for."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_gateway import MODEL, TOKENIZER, Rig, events, ids, rig, says

from relevo.gateway.http.auth import ApiKeys
from relevo.policy.routing.affinity import affinity_of

SYSTEM = {"role": "system", "content": "code"}
USER = {"role": "user", "content": "hi"}


def sessions(r: Rig) -> list[bytes]:
    return [request.session for request in r.generator.requests]


async def chat(r: Rig, messages: list[Any], headers: dict[str, str] | None = None, **fields: Any) -> Any:
    body = {"model": MODEL, "messages": messages} | fields
    return await r.post("/v1/chat/completions", body, **(headers or {}))


async def test_turns_of_one_conversation_share_a_session() -> None:
    r = rig(says("ok"))
    await chat(r, [SYSTEM, USER])
    await chat(r, [SYSTEM, USER, {"role": "assistant", "content": "ok"}, USER])
    await chat(r, [SYSTEM, {"role": "user", "content": "other"}])
    first, second, other = sessions(r)
    assert first == second != other


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"x-session-affinity": "s"}, {}),
        ({"x-session-id": "s"}, {}),
        ({}, {"session_id": "s"}),
        ({}, {"prompt_cache_key": "s"}),
        ({}, {"promptCacheKey": "s"}),
        ({}, {"metadata": {"user_id": '{"session_id": "s"}'}}),
        ({"x-opencode-session": "s"}, {}),
        ({"x-mine": "s"}, {}),
    ],
)
async def test_a_named_session_is_the_same_by_every_name(headers: dict[str, str], fields: dict[str, Any]) -> None:
    """Red when a field or header that clients send does not reach the router."""
    r = rig(says("ok"), affinity_headers=("x-mine",))
    await chat(r, [USER], headers, **fields)
    named = affinity_of({"x-session-affinity": "s"}, {}, tenant="", model=MODEL)
    assert sessions(r) == [named.key]


async def test_completions_have_sessions_too() -> None:
    r = rig(says("ok"))
    await r.complete(prompt="abc")
    await r.complete(prompt="abc")
    await r.complete(prompt="abd")
    first, second, other = sessions(r)
    assert first == second != other


async def test_two_tenants_never_share_a_session_or_a_block() -> None:
    r = rig(says("ok"), api_keys=ApiKeys.of(["one", "two"]))
    for key in ("one", "two"):
        await chat(r, [USER], {"x-api-key": key, "x-session-affinity": "s"})
    first, second = r.generator.requests
    assert first.session != second.session
    assert first.salt != second.salt


async def test_nonces_and_markers_do_not_reach_the_prompt() -> None:
    """Red when an agent's billing line or rolling cache marker makes every prompt new."""

    def messages(nonce: str) -> list[Any]:
        line = {"type": "text", "text": f"x-anthropic-billing-header: cch={nonce}"}
        text = {"type": "text", "text": "code", "cache_control": {"type": "ephemeral", "ttl": nonce}}
        return [{"role": "system", "content": [line, text]}, USER]

    r = rig(says("ok"))
    await chat(r, messages("1"))
    await chat(r, messages("2"))
    first, second = r.generator.requests
    assert first.prompt_token_ids == second.prompt_token_ids
    assert first.session == second.session
    assert TOKENIZER.decode(first.prompt_token_ids).startswith("system:code")


@pytest.mark.parametrize("stream", [False, True])
async def test_reasons_are_told_to_those_who_ask(stream: bool) -> None:
    r = rig(says("ok"), route="decode w0: because of 32")
    told = await chat(r, [USER], {"x-relevo-explain": "1"}, stream=stream)
    assert told.headers["x-relevo-route"] == "decode w0: because of 32 | session content"
    assert "x-relevo-route" not in (await chat(r, [USER], stream=stream)).headers
    if stream:
        assert events(told)[-1] == "[DONE]"


async def test_every_prompt_of_a_request_has_its_reasons() -> None:
    r = rig(says("ok"), route="decode w0: x")
    body = {"model": MODEL, "prompt": ["a", "b"], "max_tokens": 5}
    told = await r.post("/v1/completions", body, **{"x-relevo-explain": "1"})
    assert told.headers["x-relevo-route"] == "decode w0: x | session content || decode w0: x | session content"
    assert [list(request.prompt_token_ids) for request in r.generator.requests] == [ids("a"), ids("b")]
