"""The shortcut for chunks of text gives the bytes that the long way gives; the outbox loses nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_gateway import TOKENIZER

from relevo.gateway.http.sse import encode_event
from relevo.gateway.openai.chat import ChatFormat
from relevo.gateway.openai.chunks import ChunkEncoder
from relevo.gateway.openai.completions import CompletionFormat
from relevo.gateway.openai.prompts import Prompt
from relevo.gateway.text.generation import TextDelta
from relevo.orchestrator.outbox import Outbox

COMMON: dict[str, Any] = {"created": 1, "fingerprint": "f", "tokenizer": TOKENIZER, "num_logprobs": None}


def chat(name: str) -> ChatFormat:
    return ChatFormat(id=name, model=name, prompt_token_ids=None, **COMMON)


def completion(name: str) -> CompletionFormat:
    prompts = [Prompt([1]), Prompt([2])]
    return CompletionFormat(
        id=name, model=name, prompts=prompts, num_choices_per_prompt=1, return_token_ids=False, **COMMON
    )


def delta(text: str) -> TextDelta:
    return TextDelta(prompt_index=0, sample_index=0, text=text, tokens=(), text_offsets=())


@given(
    text=st.text(st.characters(exclude_categories=["Cs"])),
    name=st.sampled_from(["plain", 'qu"ote', "\x00text\x00", "\u2028é🎉"]),
    make=st.sampled_from([chat, completion]),
    usage=st.sampled_from([None, {}, {"completion_tokens": 7}]),
    index=st.integers(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_a_framed_chunk_is_the_whole_chunk(text: str, name: str, make: Any, usage: Any, index: int) -> None:
    """Red when a chunk gains a field that depends on more than the choice, or when a client's own words are taken for
    the place of the text. `{}` stands for: usage is told, and is null."""
    answer_format = make(name)
    usage_now = None if usage is None else (lambda: usage or None)
    encoder = ChunkEncoder(answer_format, usage_now)
    whole = answer_format.delta(index, delta(text))
    if whole is not None and usage is not None:
        whole["usage"] = usage or None
    expected = encode_event(whole) if whole is not None else b""
    assert encoder.delta(index, delta(text)) == expected
    assert encoder.delta(index, delta(text)) == expected  # from the frame that is there now


@pytest.mark.parametrize("is_put_first", [True, False])
async def test_an_outbox_gives_in_order_and_survives_a_reader_that_leaves(is_put_first: bool) -> None:
    outbox: Outbox[int] = Outbox()
    leaving = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    leaving.cancel()
    if is_put_first:
        outbox.put(1)  # it has not left yet: the item must not go with it
    await asyncio.gather(leaving, return_exceptions=True)
    if not is_put_first:
        outbox.put(1)
    outbox.put(2)
    assert [await outbox.take(), await outbox.take()] == [1, 2]
