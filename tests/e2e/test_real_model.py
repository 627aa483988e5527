"""The embedded model, the official client, the default command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import BadRequestError, OpenAI
from stack import Stack, stack

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def served() -> Iterator[Stack]:
    with stack("smollm2", "--topology", "1p1d", "--max-model-len", "2048") as running:
        yield running


def test_a_sensible_streamed_answer(served: Stack) -> None:
    client = OpenAI(base_url=served.url + "/v1", api_key="none")
    question = "What is the capital of France? Answer in one short sentence."
    stream = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": question}],
        max_tokens=30,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert chunks[-2].choices[0].finish_reason == "stop"
    usage = chunks[-1].usage
    assert usage is not None and usage.prompt_tokens > 30 and usage.completion_tokens < 30
    served.post("/v1/completions", {"prompt": [5] * 1500, "max_tokens": 2})  # so long that a handoff is worth it
    served.wait_idle()
    assert served.metric("relevo:prefill_tokens_total", role="prefill") > 0
    assert served.metric("relevo:decode_tokens_total", role="decode") > 0
    assert served.metric("relevo:kv_transfer_bytes_total", role="prefill") > 0


def test_a_second_turn_hits_the_first(served: Stack) -> None:
    """The answer's own blocks are hit too: they lie on the decode worker, where the next turn is decoded."""
    messages = [{"role": "user", "content": "List four colours and one thing that has each of them, with reasons."}]
    first = served.post("/v1/chat/completions", {"messages": messages, "max_tokens": 40, "temperature": 0})
    messages += [first["choices"][0]["message"], {"role": "user", "content": "Thanks."}]
    messages = [{"role": m["role"], "content": m["content"]} for m in messages]
    second = served.post("/v1/chat/completions", {"messages": messages, "max_tokens": 4, "temperature": 0})
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached % 16 == 0
    assert first["usage"]["prompt_tokens"] < cached < second["usage"]["prompt_tokens"]


def test_a_prompt_that_is_too_long_says_so_in_words_that_clients_match(served: Stack) -> None:
    client = OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)
    with pytest.raises(BadRequestError, match="maximum context length is 2048 tokens") as failure:
        client.completions.create(model="smollm2", prompt=[5] * 2100)
    assert failure.value.code == "context_length_exceeded"


def test_tokenize_and_detokenize_are_inverse(served: Stack) -> None:
    text = "naïve 漢字 🙂 x = 3.14"
    tokens = served.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    assert served.post("/detokenize", {"tokens": tokens})["prompt"] == text
