"""The official Anthropic client against a real server on a loopback port; and what an agent was seen to send."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pydantic
import pytest
import uvicorn
from anthropic_client import WEATHER, events, joined, marked
from scripted_gateway import MODEL, TOKENIZER, Rig, ids, says

from relevo.core import errors
from relevo.core.request import FinishReason
from relevo.gateway.http.auth import ApiKeys

ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def served(r: Rig, **client: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(r.app, log_level="error", lifespan="on"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            options = {"api_key": "sk-one", "max_retries": 0, "timeout": 30} | client
            async with anthropic.AsyncAnthropic(base_url=url, **options) as opened:
                yield opened
        finally:
            server.should_exit = True
            await serving


async def test_whole_streamed_and_counted() -> None:
    r = marked(says('?hm.Hi 👋@w{"a": [1]}'), num_cached=3, api_keys=ApiKeys.of(["sk-one"]))
    async with served(r) as client:
        whole = await client.messages.create(**ASKED, tools=[WEATHER])
        async with client.messages.stream(**ASKED, tools=[WEATHER]) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        counted = await client.messages.count_tokens(model=MODEL, messages=ASKED["messages"], tools=[WEATHER])
    assert text == "Hi 👋" and [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert (final.stop_reason, final.stop_sequence, final.usage) == (whole.stop_reason, None, whole.usage)
    assert counted.input_tokens == whole.usage.input_tokens + 3


async def test_the_accumulator_of_the_sdk_takes_a_call_that_was_cut() -> None:
    r = marked(says('@w{"a": [1, "b', end=FinishReason.LENGTH))
    async with served(r) as client, client.messages.stream(**ASKED, tools=[WEATHER]) as stream:
        final = await stream.get_final_message()
    assert final.stop_reason == "max_tokens" and final.content[0].type == "tool_use"


async def test_a_turn_may_be_sent_back_as_it_came() -> None:
    """Red if a message of ours were not one that we take."""
    r = marked(says('?hm.Hi@w{"a": [1]}'))
    async with served(r) as client:
        first = await client.messages.create(**ASKED, tools=[WEATHER])
        call = first.content[-1]
        assert call.type == "tool_use"
        turns: list[Any] = [*ASKED["messages"], first.to_param()]
        turns.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sun"}]})
        await client.messages.create(**{**ASKED, "messages": turns}, tools=[WEATHER])
    prompt = TOKENIZER.decode(r.generator.requests[-1].prompt_token_ids)
    assert '<assistant>(hm)Hi[toolu_0 w {"a": [1]}]\n<tool w toolu_0>sun\n<assistant>' in prompt


async def test_an_answer_as_a_pydantic_model_is_asked_for_by_its_schema() -> None:
    """Red if the wish for a format were dropped in silence: it is held, or refused by its name."""

    class Point(pydantic.BaseModel):
        x: int

    async with served(marked(says('{"x": 1}'))) as client:
        try:
            parsed = await client.messages.parse(**ASKED, output_format=Point)
        except anthropic.BadRequestError as error:
            assert "output_config.format" in error.message
        else:
            assert parsed.parsed_output == Point(x=1)


@pytest.mark.parametrize(
    ("script", "fields", "kind"),
    [
        ([errors.Overloaded("full")], {}, anthropic.InternalServerError),
        ([errors.KeyLimitReached("spent")], {}, anthropic.RateLimitError),
        (says("x"), {"model": "nosuch"}, anthropic.NotFoundError),
        (says("x"), {"max_tokens": 0}, anthropic.BadRequestError),
        ([(0, ids("a"), None), errors.StepFailed("it broke")], {"stream": True}, anthropic.APIStatusError),
    ],
)
async def test_errors_are_the_sdks_own(script: Any, fields: dict[str, Any], kind: type[Exception]) -> None:
    """Red if the SDK could not read an error, or lost the id by which it is found in a log."""
    async with served(marked(script)) as client:
        with pytest.raises(kind) as caught:
            answer = await client.messages.create(**{**ASKED, **fields})
            async for _ in answer:
                pass
    error = caught.value
    assert isinstance(error, anthropic.APIStatusError) and error.request_id
    assert isinstance(error.body, dict) and error.body["error"]["message"]


async def test_models_are_listed_and_shown_to_the_sdk() -> None:
    """Red if this API's clients were shown OpenAI's list, or OpenAI's clients this one."""
    async with served(marked()) as client:
        page = await client.models.list()
        shown = await client.models.retrieve("alias/of-tiny")
        with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
            await client.models.retrieve("nosuch")
    assert [(model.id, model.type, model.lifecycle) for model in page.data] == [
        (MODEL, "model", "active"),
        ("alias/of-tiny", "model", "active"),
    ]
    assert (page.has_more, page.first_id, page.last_id) == (False, MODEL, "alias/of-tiny")
    assert shown.display_name == "alias/of-tiny" and shown.created_at.year == 2023
    assert (await marked().get("/v1/models")).json()["object"] == "list"


async def test_a_wrong_key_is_told() -> None:
    async with served(marked(api_keys=ApiKeys.of(["sk-one"])), api_key="sk-two") as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(**ASKED)


async def test_a_token_is_taken_as_a_key() -> None:
    r = marked(says("x"), api_keys=ApiKeys.of(["sk-one"]))
    async with served(r, api_key=None, auth_token="sk-one") as client:
        assert (await client.messages.create(**ASKED)).content[0].type == "text"


def recorded_requests(client: str) -> list[dict[str, Any]]:
    """Of a folder `shared/data/clients` beside the checkout or above it. Skips the test where there is none."""
    for above in Path(__file__).resolve().parents:
        paths = sorted((above / "shared" / "data" / "clients" / client).glob("*post-v1-messages.json"))
        if paths:
            return [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    pytest.skip("no recorded requests: shared/data/clients is not beside the repository")


async def test_what_an_agent_was_seen_to_send_is_taken() -> None:
    """Red if one turn of a real session were refused, or a second turn did not begin with the prompt of the first."""
    r = marked(says("?hm.Hi@B{}"), names=("smollm2",), max_model_len=200_000)
    answers = []
    for recorded in recorded_requests("claude-code"):
        async with r.client(**recorded["headers"]) as client:
            answers.append(await client.post(recorded["path"], json=recorded["body"]))
    assert [response.status_code for response in answers] == [200, 200]
    assert [block["type"] for block in joined(events(answers[0].text))] == ["thinking", "text", "tool_use"]
    first, second = (TOKENIZER.decode(request.prompt_token_ids) for request in r.generator.requests)
    shared = first.partition("thinking:True")[0]
    assert second.startswith(shared) and "x-anthropic-billing-header" not in first
    assert r.generator.requests[0].session == r.generator.requests[1].session
