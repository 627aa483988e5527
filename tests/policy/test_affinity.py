"""Which requests count as one session, and what is kept out of the key and the prompt."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from relevo.policy.routing.affinity import Affinity, affinity_of, without_markers

CHAT: dict[str, Any] = {
    "messages": [{"role": "system", "content": "You code."}, {"role": "user", "content": "Fix it."}],
    "tools": [{"type": "function", "function": {"name": "ls"}}],
}


def key(headers: dict[str, str] | None = None, body: dict[str, Any] | None = None, **named: Any) -> Affinity:
    fields = {"tenant": "t", "model": "m"} | named
    return affinity_of(headers or {}, CHAT if body is None else body, **fields)


PRECEDENCE: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({"x-session-affinity": "a"}, {}, "x-session-affinity"),
    ({"x-session-id": "a"}, {}, "x-session-id"),
    ({}, {"session_id": "a"}, "body.session_id"),
    ({}, {"prompt_cache_key": "a"}, "body.prompt_cache_key"),
    ({}, {"promptCacheKey": "a"}, "body.promptCacheKey"),
    ({"x-claude-code-agent-id": "a"}, {}, "x-claude-code-agent-id"),
    ({"x-claude-code-session-id": "a"}, {}, "x-claude-code-session-id"),
    ({"x-opencode-session": "a"}, {}, "x-opencode-session"),
    ({"x-affinity": "a"}, {}, "x-affinity"),
    ({"session-id": "a"}, {}, "session-id"),
    ({"thread-id": "a"}, {}, "thread-id"),
    ({"session_id": "a"}, {}, "session_id"),
    ({"conversation_id": "a"}, {}, "conversation_id"),
    ({"x-openwebui-chat-id": "a"}, {}, "x-openwebui-chat-id"),
    ({"x-dynamo-session-id": "a"}, {}, "x-dynamo-session-id"),
    ({"x-smg-routing-key": "a"}, {}, "x-smg-routing-key"),
    ({"x-litellm-session-id": "a"}, {}, "x-litellm-session-id"),
    ({"x-any-agent-session-id": "a"}, {}, "x-any-agent-session-id"),
    ({"x-some-session-id": "a"}, {}, "x-some-session-id"),
    ({"x-correlation-id": "a"}, {}, "x-correlation-id"),
    ({}, {"metadata": {"user_id": '{"session_id": "a"}'}}, "body.metadata.user_id"),
    ({"x-my-own": "a"}, {}, "x-my-own"),
    ({}, {}, "content"),
]


@pytest.mark.parametrize("rank", range(len(PRECEDENCE)))
def test_the_first_signal_of_the_documented_order_wins(rank: int) -> None:
    """Each source beats everything after it. Red when two lines of the order are swapped."""
    headers: dict[str, str] = {}
    body: dict[str, Any] = {**CHAT, "metadata": {}}
    for later_headers, later_body, _ in PRECEDENCE[rank:]:
        headers |= dict.fromkeys(later_headers, "b")
        body |= {name: "b" if isinstance(v, str) else v for name, v in later_body.items()}
    own_headers, own_body, source = PRECEDENCE[rank]
    found = key(headers | own_headers, body | own_body, extra_headers=("X-My-Own",))
    assert found.source == source
    if source != "content":
        assert found.key == key({"x-session-affinity": "a"}).key


def test_a_tenant_cannot_name_another_ones_session() -> None:
    header = {"x-session-affinity": "ses_1"}
    assert key(header, tenant="a").key != key(header, tenant="b").key
    assert key(tenant="a").key != key(tenant="b").key


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"x-request-id": "1"}, {}),
        ({"x-client-request-id": "1"}, {}),
        ({"x-parent-session-id-of": "1", "my-session-id": "2"}, {}),
        ({"x-session-affinity": "  "}, {}),
        ({}, {"user": "me"}),
        ({}, {"session_id": 7}),
        ({}, {"metadata": {"user_id": "just a name"}}),
        ({}, {"metadata": {"user_id": "{broken"}}),
        ({}, {"metadata": {"user_id": '{"session_id": ' + "[" * 100_000}}),
        ({}, {"metadata": {"user_id": "[1]"}}),
    ],
)
def test_what_names_no_session_is_not_read(headers: dict[str, str], body: dict[str, Any]) -> None:
    assert key(headers, CHAT | body) == key()


def test_an_overlong_key_is_cut() -> None:
    assert key({"x-session-id": "a" * 255 + "b"}) == key({"x-session-id": "a" * 255 + "c"})


def test_a_growing_conversation_keeps_its_key_and_another_beginning_has_another() -> None:
    longer = CHAT | {"messages": [*CHAT["messages"], {"role": "assistant", "content": "Done."}]}
    assert key(body=longer) == key()
    for other in (
        CHAT | {"tools": []},
        CHAT | {"messages": [CHAT["messages"][0], {"role": "user", "content": "Fix that."}]},
        CHAT | {"messages": [{"role": "system", "content": "You sing."}, CHAT["messages"][1]]},
    ):
        assert key(body=other).key != key().key
    assert key(model="other").key != key().key
    assert key(body={"prompt": "abc"}).key != key(body={"prompt": "abd"}).key
    assert key(body={"prompt": [1] * 2000}).key == key(body={"prompt": [1] * 1500 + [2]}).key
    assert key(body={"prompt": [1, 2]}).key != key(body={"prompt": [1, 3]}).key
    tail = {"role": "user", "content": "same start " * 1000 + "other end"}
    assert key(body={"messages": [tail]}).key != key(body={"messages": [tail | {"content": "same start " * 1000}]}).key


def nonce(value: str) -> dict[str, Any]:
    return {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={value};"}


def with_markers(value: str) -> list[dict[str, Any]]:
    marked = {"type": "text", "text": "You code.", "cache_control": {"type": "ephemeral"}}
    return [
        {"role": "system", "content": [nonce(value), marked]},
        {"role": "user", "content": [{"type": "text", "text": "Fix it.", "cache_control": {"ttl": value}}]},
    ]


def test_nonces_and_markers_change_neither_key_nor_prompt() -> None:
    """Red when a billing nonce or a rolling cache marker reaches the template or the hash again."""
    messages = with_markers("a")
    before = copy.deepcopy(messages)
    assert without_markers(messages) == without_markers(with_markers("b"))
    assert messages == before
    assert key(body={"messages": messages}) == key(body={"messages": with_markers("b")})
    clean = without_markers(messages)
    assert clean[0]["content"] == [{"type": "text", "text": "You code."}]
    text = {"role": "system", "content": "x-anthropic-billing-header: cch=1\nYou code."}
    assert without_markers([text]) == [{"role": "system", "content": "You code."}]


def test_a_user_may_speak_of_billing_headers() -> None:
    message = {"role": "user", "content": "x-anthropic-billing-header: what is it?"}
    assert without_markers([message]) == [message]
