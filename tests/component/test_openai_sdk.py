"""The official OpenAI client against a real server on a loopback port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pydantic
import pytest
import uvicorn
from scripted_gateway import MODEL, TOKENIZER, Hang, Rig, ids, rig, says

from relevo.core import errors
from relevo.gateway.http.auth import ApiKeys

MESSAGES = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def served(r: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(r.app, log_level="error", lifespan="on")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="sk-one", max_retries=0, timeout=30) as client:
                yield client
        finally:
            server.should_exit = True
            await serving


async def test_chat_whole_and_streamed() -> None:
    r = rig(says("Hi 👋!"), num_cached=3, api_keys=ApiKeys.of(["sk-one"]))
    async with served(r) as client:
        whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES)  # type: ignore[call-overload]
        assert whole.choices[0].message.content == "Hi 👋!" and whole.choices[0].finish_reason == "stop"
        assert whole.usage.prompt_tokens_details.cached_tokens == 3
        text, usage = "", None
        stream = await client.chat.completions.create(  # type: ignore[call-overload]
            model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            usage = chunk.usage or usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        assert text == "Hi 👋!" and usage == whole.usage
        assert [model.id async for model in client.models.list()] == [MODEL, "alias/of-tiny"]


async def test_the_stream_accumulator_of_the_sdk_takes_our_chunks() -> None:
    async with (
        served(rig(says("Hello"))) as client,
        client.chat.completions.stream(model=MODEL, messages=MESSAGES, logprobs=True) as stream,  # type: ignore[list-item]
    ):
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "Hello"
    assert final.choices[0].logprobs is not None and len(final.choices[0].logprobs.content or ()) == 6


async def test_every_form_of_message_that_the_sdk_can_send() -> None:
    """Red when a typed message of the SDK is refused, or loses text on the way to the template."""
    r = rig(says("ok"))
    messages = [
        {"role": "developer", "content": "be brief", "name": "boss"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "name": "ada"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "refusal": None},
        {"role": "user", "content": "again"},
    ]
    async with served(r) as client:
        answer = await client.chat.completions.create(  # type: ignore[call-overload]
            model=MODEL, messages=messages, max_completion_tokens=3, user="u", store=False, metadata={"k": "v"},
            parallel_tool_calls=False, service_tier="auto", reasoning_effort="low", verbosity="low", seed=-1,
            response_format={"type": "text"}, stop=None, logit_bias={}, extra_body={"top_k": 5, "x_unknown": [1]},
            prompt_cache_key="k", safety_identifier="s", modalities=["text"],
        )  # fmt: skip
    assert answer.choices[0].message.content == "ok"
    prompt = TOKENIZER.decode(r.generator.requests[0].prompt_token_ids)
    assert prompt == "developer:be brief\nuser:one\ntwo\nassistant:no\nuser:again\nassistant:"
    assert (r.generator.requests[0].sampling.max_tokens, r.generator.requests[0].sampling.top_k) == (3, 5)


async def test_a_schema_of_the_sdk_holds_the_answer() -> None:
    class Verdict(pydantic.BaseModel):
        answer: str

    r = rig(says('{"answer":"yes"}'))
    async with served(r) as client:
        parsed = await client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Verdict)  # type: ignore[arg-type]
    assert parsed.choices[0].message.parsed == Verdict(answer="yes")
    assert r.generator.requests[0].sampling.grammar is not None


async def test_what_is_not_served_is_not_found() -> None:
    async with served(rig()) as client:
        with pytest.raises(openai.NotFoundError, match="was not made for embeddings"):
            await client.embeddings.create(model=MODEL, input="hi")
        with pytest.raises(openai.NotFoundError, match="There is nothing at"):
            await client.images.generate(model=MODEL, prompt="hi")


async def test_completions_with_several_prompts() -> None:
    async with served(rig(says("ok"))) as client:
        answer = await client.completions.create(model=MODEL, prompt=["a", "b"], n=1, logprobs=1)
        assert [choice.text for choice in answer.choices] == ["ok", "ok"]
        assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.text_offset == [0, 1, 2]


async def test_errors_become_the_exceptions_of_the_sdk() -> None:
    async with served(rig(says("x"), api_keys=ApiKeys.of(["sk-one"]))) as client:
        with pytest.raises(openai.NotFoundError, match="The model `X` does not exist"):
            await client.chat.completions.create(model="X", messages=MESSAGES)  # type: ignore[call-overload]
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, n=0)  # type: ignore[call-overload]
        assert caught.value.param == "n"
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="sk-bad").models.list()


async def test_an_overloaded_server_is_retried_after_the_time_it_names() -> None:
    answers = iter([[errors.Overloaded("full", retry_after_s=0.001)], says("ok")])
    r = rig(lambda request: next(answers))
    async with served(r) as client:
        answer = await client.with_options(max_retries=1).completions.create(model=MODEL, prompt="hi", stream=False)
        assert answer.choices[0].text == "ok"
    assert [status for _, _, status in r.metrics.responses] == [429, 200]


async def test_a_broken_stream_raises_in_the_sdk() -> None:
    """Red if a broken stream ended like a complete one."""
    r = rig([(0, ids("ab"), None), errors.WorkerLost("worker d0 is gone")])
    async with served(r) as client:
        text = ""
        with pytest.raises(openai.APIError, match="worker d0 is gone"):
            async for chunk in await client.completions.create(model=MODEL, prompt="hi", stream=True):
                text += chunk.choices[0].text
    assert text == "ab"


async def test_a_closed_connection_reaches_the_engine() -> None:
    r = rig([(0, ids("ab"), None), Hang()])
    async with served(r) as client:
        stream = await client.completions.create(model=MODEL, prompt="hi", stream=True)
        async for _ in stream:
            break
        await stream.close()
        async with asyncio.timeout(10):
            await r.generator.idle.wait()
    assert r.metrics.records[0].outcome == "aborted"
