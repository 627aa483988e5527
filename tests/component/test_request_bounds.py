"""How much a request may hold of one thing: at the bound it is served, above it the answer says the bound."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_gateway import VOCAB_SIZE, rig, says

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}]} | fields


BOUNDS: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [  # path, at the bound, above it, param, said
    (CHAT, chat(stop=["a"] * 64), chat(stop=["a"] * 65), "stop", "65 stop strings; at most 64"),
    (CHAT, chat(stop="a" * 4096), chat(stop="a" * 4097), "stop", "4097 characters in all; at most 4096"),
    (CHAT, chat(stop=["a" * 2000] * 2), chat(stop=["a" * 2000] * 3), "stop", "6000 characters in all; at most 4096"),
    (CHAT, chat(stop_token_ids=[1] * 128), chat(stop_token_ids=[1] * 129), "stop_token_ids", "129 token ids; at most"),
    (
        CHAT,
        chat(logit_bias={str(i): 1 for i in range(min(VOCAB_SIZE, 1024))}),
        chat(logit_bias={str(i): 1 for i in range(1025)}),
        "logit_bias",
        "1025 token ids; at most 1024",
    ),
    (TEXT, {"prompt": ["a"]}, {"prompt": ["a"] * 257}, "prompt", "257 prompts; at most 256"),
    (TEXT, {"prompt": "a", "n": 128}, {"prompt": ["a"] * 3, "n": 128}, "n", "384 choices; at most 256"),
]


@pytest.mark.parametrize(("path", "within", "above", "param", "said"), BOUNDS, ids=lambda value: str(value)[:40])
async def test_a_request_that_holds_too_much_is_told_the_bound(
    path: str, within: dict[str, Any], above: dict[str, Any], param: str, said: str
) -> None:
    r = rig(says("x"))
    error = (await r.post(path, above)).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request", param) and said in error["message"], error
    assert r.generator.requests == []
    if within.get("n", 1) == 1:
        assert (await r.post(path, within)).status_code == 200


async def test_what_all_prompts_share_is_resolved_once() -> None:
    """Red if a bias is read once per prompt: 256 of them made one request cost a quarter of a second."""
    r = rig(says("x"))
    await r.post(TEXT, {"prompt": ["a"] * 8, "logit_bias": {"5": 1}, "stop_token_ids": [3, 3, 4]})
    first, *others = [request.sampling for request in r.generator.requests]
    assert first.stop_token_ids == (3, 4) and len(others) == 7
    assert all(other.logit_bias is first.logit_bias for other in others)
