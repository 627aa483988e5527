"""Bodies and queries that are well-formed and mean harm, or nothing: each is refused in words, none is a failure."""

from __future__ import annotations

import gzip
from typing import Any

import msgspec
import orjson
import pytest
from scripted_gateway import rig, says

from relevo.core.errors import InvalidRequest
from relevo.gateway.anthropic.schemas import MessagesFields
from relevo.gateway.metering.usage_query import parse_moment
from relevo.gateway.openai.schemas import ChatFields, CompletionFields, DetokenizeFields, TokenizeFields
from relevo.gateway.responses.schemas import ResponseFields

NOW_MS = 1_796_000_000_000
USER = {"role": "user", "content": "hi"}


def nested(num_levels: int, kind: str) -> Any:
    value: Any = 1
    for _ in range(num_levels):
        value = [value] if kind == "lists" else {"k": value}
    return value


@pytest.mark.parametrize("kind", ["lists", "objects"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_messages_and_tools_that_are_nested_too_deeply_are_refused(path: str, kind: str) -> None:
    """Red if something walks them as deep as they are: the interpreter's stack ends before the parser's limit."""
    deep = nested(700, kind)
    function = {"type": "function", "function": {"name": "f", "parameters": {"properties": deep}}}
    for body in ({"messages": [USER | {"extra": deep}]}, {"messages": [USER], "tools": [function]}):
        answer = await rig(says("x")).post(path, {"model": "tiny", **body})
        assert answer.status_code == 400, answer.text
        assert "levels deep" in answer.json()["error"]["message"]


async def test_a_tool_schema_as_deep_as_people_write_them_is_taken() -> None:
    function = {"type": "function", "function": {"name": "f", "parameters": nested(60, "objects")}}
    assert (await rig(says("x")).chat(tools=[function])).status_code == 200


async def test_a_variable_of_the_template_may_be_called_self() -> None:
    """Red if names of variables meet names of parameters."""
    answer = await rig(says("x")).chat(chat_template_kwargs={"self": 1})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("moment", ["999999d", "0001-01-01T00:00+23:59", "9999-12-31T23:59-23:59"])
def test_a_moment_outside_the_calendar_is_refused(moment: str) -> None:
    """Red if it is found out when the answer tells it."""
    with pytest.raises(InvalidRequest, match=r"'since' is .* between the years 1 and 9999"):
        parse_moment(moment, NOW_MS, "since")


async def test_usage_since_the_ends_of_the_calendar() -> None:
    for moment in ("0001-01-01", "9999-12-31T23:59:59Z"):
        answer = await rig().get(f"/v1/usage?since={moment}")
        assert answer.status_code == 200 and answer.json()["since"][:4] == moment[:4]


async def test_a_compressed_body_is_refused_as_such() -> None:
    """Red if it were called broken JSON: the client would look for the mistake in its JSON."""
    body = gzip.compress(b'{"prompt": "hi"}')
    async with rig(says("x")).client() as client:
        answer = await client.post("/v1/completions", content=body, headers={"content-encoding": "gzip"})
        plain = await client.post(
            "/v1/completions", content=b'{"prompt": "hi"}', headers={"content-encoding": "identity"}
        )
    assert answer.status_code == 400 and "Content-Encoding 'gzip'" in answer.json()["error"]["message"]
    assert plain.status_code == 200, plain.text


async def test_zero_is_not_the_same_as_not_asked_for() -> None:
    """Red if 0 passed for False: `truncate_prompt_tokens` of 0 asks for something that is not offered."""
    answer = await rig(says("x")).post("/v1/completions", {"prompt": "hi", "truncate_prompt_tokens": 0})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "truncate_prompt_tokens"
    assert (
        await rig(says("x")).post("/v1/completions", {"prompt": "hi", "truncate_prompt_tokens": False})
    ).status_code == 200
    assert (await rig(says("x")).post("/v1/completions", {"prompt": "hi", "prompt_logprobs": False})).status_code == 200


HUGE = ("1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 39, "1" + "0" * 4999, "1e999", "-1e400")


@pytest.mark.parametrize("number", HUGE, ids=[f"{each[:4]}... {len(each)}" for each in HUGE])
@pytest.mark.parametrize(
    ("path", "schema", "needed"),
    [
        ("/v1/completions", CompletionFields, {"prompt": "hi"}),
        ("/v1/chat/completions", ChatFields, {"messages": [USER]}),
        ("/v1/messages", MessagesFields, {"messages": [USER], "max_tokens": 2}),
        ("/v1/responses", ResponseFields, {"model": "tiny", "input": "hi"}),
        ("/tokenize", TokenizeFields, {"prompt": "hi"}),
        ("/detokenize", DetokenizeFields, {"tokens": [1]}),
    ],
)
async def test_a_number_that_nothing_holds_is_refused_in_every_field(
    path: str, schema: type[msgspec.Struct], needed: dict[str, Any], number: str
) -> None:
    """Red if a field took an integer as long as it came, or a place in a list or object did."""
    async with rig(says("x")).client() as client:
        for name in schema.__struct_encode_fields__:
            rest = orjson.dumps({key: value for key, value in needed.items() if key != name})[1:-1]
            for shape in ("%s", "[%s]", '{"1": %s}'):
                body = b'{"%b": %b%b%b}' % (name.encode(), (shape % number).encode(), b"," if rest else b"", rest)
                answer = await client.post(path, content=body, headers={"content-type": "application/json"})
                assert answer.status_code == 400, (name, shape, answer.text)


async def test_a_tool_may_have_any_number_in_its_schema() -> None:
    """Red if the bound on fields reached into what others have written."""
    function = {"name": "f", "parameters": {"properties": {"x": {"type": "integer", "maximum": 2**64 - 1}}}}
    text = orjson.dumps({"messages": [USER], "tools": [{"type": "function", "function": function}]})
    body = text.replace(str(2**64 - 1).encode(), str(2**128).encode())
    async with rig(says("x")).client() as client:
        answer = await client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
