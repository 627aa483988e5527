"""The official client's own state machines read what the Responses API answers."""

from __future__ import annotations

from typing import Any, cast

import httpx
import openai
import pytest
from answers_of_items import FUNCTION, Marked
from openai import AsyncOpenAI
from pydantic import BaseModel
from scripted_gateway import MODEL, Rig, rig, says

from relevo.core.request import FinishReason
from relevo.gateway.generation import prepare
from relevo.gateway.generation.grammar import Holding


class Tide(BaseModel):
    port: str
    metres: float


def client(r: Rig) -> AsyncOpenAI:
    transport = httpx.ASGITransport(r.app)
    return AsyncOpenAI(
        base_url="http://gateway/v1",
        api_key="k",
        max_retries=0,
        http_client=httpx.AsyncClient(transport=transport, base_url="http://gateway"),
    )


async def test_the_stream_helper_follows_every_item() -> None:
    """Red if an event came for an item or a part that the helper does not know, or at another place."""
    r = rig(says('?hm.Hi @tide {"port":"Brest"}'), make_parser=Marked)
    tools = cast(Any, [FUNCTION])
    async with client(r).responses.stream(model=MODEL, input="hi", tools=tools) as events:
        seen = [event.type async for event in events]
        final = await events.get_final_response()
    assert seen[-1] == "response.completed"
    assert final.output_text == "Hi "
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]


async def test_the_stream_helper_reads_an_incomplete_response() -> None:
    r = rig(says("Hi the", end=FinishReason.LENGTH))
    async with client(r).responses.stream(model=MODEL, input="hi", max_output_tokens=6) as events:
        seen = [event async for event in events]
    last = seen[-1]
    assert last.type == "response.incomplete"
    assert (last.response.status, last.response.output_text) == ("incomplete", "Hi the")


async def test_parse_reads_an_answer_in_a_given_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """That an answer has the form is the grammar's; which form is asked for is read here."""
    asked: list[Any] = []

    def held(served: Any, prompt: Any, output_format: Any, tokens: Any) -> Holding:
        asked.append(output_format)
        return Holding()

    monkeypatch.setattr(prepare, "grammar_of", held)
    r = rig(says('{"port":"Brest","metres":7.5}'))
    parsed = await client(r).responses.parse(model=MODEL, input="hi", text_format=Tide)
    assert parsed.output_parsed == Tide(port="Brest", metres=7.5)
    (form,) = asked
    assert (form.kind, form.is_strict, form.param) == ("json_schema", True, "text.format")
    assert set(form.value["properties"]) == {"port", "metres"}


async def test_a_response_is_created_fetched_gone_on_with_and_deleted() -> None:
    sdk = client(rig(says("ok")))
    first = await sdk.responses.create(model=MODEL, input="hi")
    assert (await sdk.responses.retrieve(first.id)).output_text == "ok"
    second = await sdk.responses.create(model=MODEL, input="and", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    items = await sdk.responses.input_items.list(second.id)
    assert [item.type for item in items.data] == ["message"]
    await sdk.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(first.id)


async def test_the_count_of_input_tokens_is_what_usage_says() -> None:
    sdk = client(rig(says("ok")))
    tools = cast(Any, [FUNCTION])
    first = await sdk.responses.create(model=MODEL, input="hi")
    asked: dict[str, Any] = {
        "input": "and this",
        "instructions": "Be brief.",
        "tools": tools,
        "previous_response_id": first.id,
    }
    counted = await sdk.responses.input_tokens.count(model=MODEL, **asked)
    response = await sdk.responses.create(model=MODEL, **asked)
    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens
