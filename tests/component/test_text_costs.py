"""What a long text costs others: too long is known before it is read, it is read on a thread, and bounded in sum."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_gateway import MAX_MODEL_LEN, TOKENIZER, rig, says

from relevo.core.errors import InvalidRequest
from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.http.body import MAX_JSON_ITEMS, check_num_items, parse_object
from relevo.gateway.http.byte_account import ByteAccount, room_for
from relevo.gateway.text import prompt_length
from relevo.gateway.text.prompt_length import CUT_TOKENS, PIECE_CHARS, encode_within
from relevo.gateway.text.text_work import INLINE_BYTES, TextWork

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
LONG = "a" * (INLINE_BYTES + 1)


class CountedTokenizer:
    """One token per byte; tells how much text it was given."""

    vocab_size = 257

    def __init__(self, longest_token_bytes: int | None) -> None:
        self.longest_token_bytes = longest_token_bytes
        self.num_chars = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.num_chars += len(text)
        return list(text.encode())

    def decode(self, token_ids: Any) -> str:
        return bytes(token_ids).decode()

    def token_to_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


def test_a_text_that_cannot_fit_by_its_bytes_is_not_tokenised() -> None:
    tokenizer = CountedTokenizer(longest_token_bytes=8)
    assert encode_within(tokenizer, "a" * 8_000_001, 1000, add_special_tokens=True) == 1_000_001
    assert tokenizer.num_chars == 0


def test_a_text_that_cannot_fit_is_left_where_that_is_certain() -> None:
    """Red if tokenising goes on after the first piece that is too much: 8 MB took 11 to 24 s before their 400."""
    tokenizer = CountedTokenizer(longest_token_bytes=None)
    found = encode_within(tokenizer, "a" * 8_000_000, 1000, add_special_tokens=True)
    assert isinstance(found, int) and 1000 < found < 8_000_000
    assert tokenizer.num_chars == PIECE_CHARS


def test_a_text_that_fits_is_tokenised_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it was looked at before: its tokens do not depend on the pieces."""
    monkeypatch.setattr(prompt_length, "PIECE_CHARS", 4)
    monkeypatch.setattr(prompt_length, "BYTES_PER_TOKEN", 0)
    text = "naïve text, 中文 too " * 20
    num_tokens = len(TOKENIZER.encode(text))
    assert num_tokens < CUT_TOKENS * len(text) // 4
    assert encode_within(TOKENIZER, text, num_tokens, add_special_tokens=True) == TOKENIZER.encode(text)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "a" * 100_000}]}),
        (TEXT, {"prompt": "a" * 100_000}),
        (TEXT, {"prompt": [5] * 100_000}),
        (TEXT, {"prompt": ["a", "a" * 100_000]}),
    ],
    ids=["chat", "text", "ids", "one of several"],
)
async def test_a_prompt_that_is_far_too_long_says_so_in_the_sentence_that_agents_know(
    path: str, body: dict[str, Any]
) -> None:
    r = rig(says("x"))
    error = (await r.post(path, body)).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith(f"This model's maximum context length is {MAX_MODEL_LEN} tokens. However, your ")
    assert "input tokens. Please reduce the length of the input messages." in error["message"]


class CountedTextWork(TextWork):
    """Notes on which thread everything ran that was given to it, and how long it was said to be."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes: list[int] = []

    async def run(self, num_bytes: int, work: Any, tenant: str = "") -> Any:
        self.num_bytes.append(num_bytes)
        return await super().run(num_bytes, work, tenant)


LARGE: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "user", "content": LONG}]}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}] * 1000}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [{"function": {"name": LONG}}]}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "metadata": {"user_id": LONG}}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "x": [1] * 10_000}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "logit_bias": {str(i): 1 for i in range(10_000)}}),
    (TEXT, {"prompt": LONG}),
    (TEXT, {"prompt": [1] * 10_000}),
    (TEXT, {"prompt": "a", "stop": [LONG]}),
    ("/tokenize", {"prompt": LONG, "return_token_strs": True}),
    ("/tokenize", {"messages": [{"role": "user", "content": LONG}]}),
    ("/detokenize", {"tokens": [1] * 10_000}),
]


@pytest.mark.parametrize(("path", "body"), LARGE, ids=lambda value: str(value)[:60])
async def test_what_costs_more_for_a_longer_body_leaves_the_event_loop(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red if JSON, schema, template, tokens, sampling or the answer's tokens are worked on by the event loop."""
    texts, threads = CountedTextWork(), set()
    for name in ("parse_object", "check_schema"):
        original = getattr(__import__("relevo.gateway.http.call", fromlist=[name]), name)

        def noted(*args: Any, original: Any = original) -> Any:
            threads.add(threading.current_thread())
            return original(*args)

        monkeypatch.setattr(f"relevo.gateway.http.call.{name}", noted)
    r = rig(says("x"), text_work=texts)
    await r.post(path, body)
    assert texts.num_bytes == [len(orjson.dumps(body))] or texts.num_bytes[0] > INLINE_BYTES
    assert threads and threading.main_thread() not in threads


async def test_bodies_in_memory_are_bounded_in_sum_and_given_back() -> None:
    """Red if every connection may hold a body of the largest size, or if a body is counted after it is gone."""
    memory = ByteAccount(1000)
    r = rig(says("x"), body_memory=memory)
    assert memory.take(900)
    refused = await r.post(TEXT, {"prompt": "a" * 150})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (429, "overloaded") and "1000 bytes" in error["message"]
    assert refused.headers["retry-after"]
    memory.give_back(900)
    assert (await r.post(TEXT, {"prompt": "a" * 150})).status_code == 200
    assert (await r.post(TEXT, {"prompt": 5})).status_code == 400
    assert memory.num_held == 0


async def test_bodies_of_one_tenant_leave_room_for_those_of_others() -> None:
    """Red if a tenant that sends large bodies slowly keeps every other from sending any."""
    memory = ByteAccount(8000)
    r = rig(says("x"), body_memory=memory, api_keys=ApiKeys.of(["sk-a", "sk-b"]))
    body = {"prompt": "a" * 150}
    tenant = ApiKeys.of(["sk-a"]).identify({"x-api-key": "sk-a"}).tenant
    num_taken = 0
    while memory.take(10, tenant):
        num_taken += 10
    assert num_taken == 7000, "alone it may have all but an eighth"
    statuses = [(await r.post(TEXT, body, authorization=f"Bearer {key}")).status_code for key in ("sk-a", "sk-b")]
    assert statuses == [429, 200]
    assert memory.num_held == num_taken
    memory.give_back(num_taken, tenant)
    assert (await r.post(TEXT, body, authorization="Bearer sk-a")).status_code == 200


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=30), st.integers(1, 20))
def test_an_owner_that_holds_nothing_finds_room_after_others_that_took_all_they_could(
    owners: list[str], num_bytes: int
) -> None:
    memory = ByteAccount(100_000)
    for owner in owners:
        for size in (2**power for power in range(17, -1, -1)):
            while memory.take(size, owner):
                pass
    assert memory.take(num_bytes, "new") and memory.num_held <= 100_000


@given(st.integers(1, 10**9))
def test_the_largest_body_fits_into_the_least_account(largest: int) -> None:
    assert ByteAccount(room_for(largest)).take(largest, "tenant")


async def test_a_body_is_given_back_while_its_answer_is_made() -> None:
    """Red if a parsed or unparsed body stays for as long as its request runs."""
    from scripted_gateway import Hang

    memory = ByteAccount(10_000)
    r = rig([Hang()], body_memory=memory)
    asking = asyncio.create_task(r.post(TEXT, {"prompt": "a" * 100}))
    await r.generator.hanging.wait()
    assert memory.num_held == 0
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_texts_without_a_context_to_fit_have_a_bound_of_their_own(path: str) -> None:
    r = rig(says("x"), max_tokenize_bytes=1000)
    body = {"prompt": "a" * 1000} if path == "/tokenize" else {"tokens": [1] * 1000}
    refused = await r.post(path, body)
    assert refused.status_code == 413 and "1000 bytes" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * MAX_JSON_ITEMS + b"1]",
        b"[" + b"{}," * MAX_JSON_ITEMS + b"1]",
        b"[" + b'"a",' * (MAX_JSON_ITEMS + 1) + b"1]",
        b'{"a":"' + b'\\"' * (MAX_JSON_ITEMS * 2) + b'","b":[' + b"[]," * MAX_JSON_ITEMS + b"1]}",
    ],
    ids=["lists", "objects", "texts", "behind escaped quotes"],
)
def test_a_body_of_too_many_parts_is_refused_before_it_is_parsed(body: bytes) -> None:
    """Red if 8 MB of empty lists are parsed: nothing else runs for seconds then, on whatever thread that is."""
    with pytest.raises(InvalidRequest, match=f"more than {MAX_JSON_ITEMS} texts, names, lists and objects"):
        check_num_items(body)


@pytest.mark.parametrize(
    "text",
    ["{[" * MAX_JSON_ITEMS, '"' * (MAX_JSON_ITEMS * 2 + 2), '\\"[\\' * MAX_JSON_ITEMS, "\\" * 100],
    ids=["brackets", "quotes", "escapes", "backslashes"],
)
def test_what_stands_inside_a_text_is_not_counted(text: str) -> None:
    check_num_items(orjson.dumps({"messages": [{"role": "user", "content": text}], "end": []}))


@pytest.mark.parametrize("field", ["model", "tool_choice", "service_tier"])
async def test_an_error_does_not_repeat_megabytes(field: str) -> None:
    """Red if a refused value comes back whole: what is sent once would be held, logged and sent again."""
    response = await rig(says("x")).post(CHAT, {"messages": [{"role": "user", "content": "a"}], field: "a" * 500_000})
    assert len(response.content) < 2000


@pytest.mark.parametrize("start", [-19, 0, 19])
def test_a_number_of_too_many_digits_is_found_across_the_border_of_two_looks(start: int) -> None:
    place = 256 * 1024 + start
    body = b'{"pad":"'.ljust(place - 6, b"x") + b'","n":' + b"9" * 60 + b"}"
    with pytest.raises(InvalidRequest, match="more than 128 bits"):
        parse_object(body)
