"""The shortcut for chunks of text gives the bytes that the long way gives."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_gateway import TOKENIZER

from relevo.gateway.generation.prompts import Prompt
from relevo.gateway.generation.reply_writer import Usage
from relevo.gateway.http.sse import encode_event
from relevo.gateway.openai.chat import ChatShape
from relevo.gateway.openai.completions import CompletionShape
from relevo.gateway.openai.writer import OpenAIWriter, usage_json
from relevo.gateway.text.parts import Delta, TextPart

COMMON: dict[str, Any] = {"created": 1, "fingerprint": "f", "tokenizer": TOKENIZER, "num_logprobs": None}


USED = Usage(num_prompt_tokens=3, num_cached_tokens=2, num_output_tokens=7)


def chat(name: str) -> ChatShape:
    return ChatShape(id=name, model=name, prompt_token_ids=None, **COMMON)


def completion(name: str) -> CompletionShape:
    prompts = [Prompt((1,)), Prompt((2,))]
    return CompletionShape(
        id=name, model=name, prompts=prompts, num_choices_per_prompt=1, return_token_ids=False, **COMMON
    )


@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    name=st.sampled_from(["plain", 'qu"ote', "\x00text\x00", "\u2028é🎉"]),
    make=st.sampled_from([chat, completion]),
    usage=st.sampled_from(["none", "null", "each"]),
    index=st.integers(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_a_framed_chunk_is_the_whole_chunk(text: str, name: str, make: Any, usage: str, index: int) -> None:
    """Red when a chunk gains a field that depends on more than the choice, or when a client's own words are taken for
    the place of the text."""
    shape = make(name)
    writer = OpenAIWriter(shape, 2, lambda: USED, include_usage=usage != "none", continuous_usage=usage == "each")
    delta = Delta(index=index, parts=(TextPart(text),), tokens=())
    whole = shape.delta(delta)
    told = {"none": {}, "null": {"usage": None}, "each": {"usage": usage_json(USED)}}[usage]
    expected = encode_event(whole | told)
    assert writer.delta(delta) == expected
    assert writer.delta(delta) == expected  # from the frame that is there now


def test_nothing_to_tell_is_no_chunk() -> None:
    for shape in (chat("a"), completion("a")):
        assert OpenAIWriter(shape, 1, lambda: USED).delta(Delta(index=0, parts=(), tokens=())) == b""
