"""Both generating endpoints over a scripted engine: texts, counts, formats, and that a stream equals a whole answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_gateway import EOS, MAX_MODEL_LEN, MODEL, Hang, events, facts, ids, rig, says, streamed_text

from relevo.core.request import FinishReason

CHAT_PROMPT = "user:hi\nassistant:"


async def test_a_whole_chat_answer_has_every_member_clients_rely_on() -> None:
    r = rig(says("Hello"), num_cached=5)
    body = (await r.chat()).json()
    choice = body["choices"][0]
    assert body["object"] == "chat.completion" and body["model"] == MODEL
    assert body["id"].startswith("chatcmpl-") and body["system_fingerprint"].startswith("relevo-")
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello", "refusal": None, "annotations": []},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    assert body["usage"]["prompt_tokens"] == len(CHAT_PROMPT)
    assert body["usage"]["completion_tokens"] == len("Hello") + 1  # the end token counts
    assert body["usage"]["total_tokens"] == len(CHAT_PROMPT) + len("Hello") + 1
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
    assert r.generator.requests[0].prompt_token_ids == tuple(ids(CHAT_PROMPT))


async def test_a_chat_stream_opens_with_the_role_and_ends_with_usage_and_done() -> None:
    r = rig(says("Hey"), num_cached=2)
    response = await r.chat(stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache" and response.headers["x-accel-buffering"] == "no"
    payloads = events(response)
    deltas = [p["choices"][0]["delta"] for p in payloads[:-2]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "H"}, {"content": "e"}, {"content": "y"}, {}]
    assert [p["choices"][0]["finish_reason"] for p in payloads[:-2]] == [None, None, None, None, "stop"]
    assert all(p["usage"] is None for p in payloads[:-2])
    assert payloads[-2]["choices"] == [] and payloads[-2]["usage"]["completion_tokens"] == 4
    assert payloads[-2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
    assert payloads[-1] == "[DONE]"
    assert len({p["id"] for p in payloads[:-1]}) == 1


async def test_usage_is_not_in_a_stream_that_did_not_ask_for_it() -> None:
    payloads = events(await rig(says("Hey")).chat(stream=True))
    assert all("usage" not in p for p in payloads[:-1]) and payloads[-1] == "[DONE]"


async def test_continuous_usage_counts_up() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    payloads = events(await rig(says("abc")).chat(stream=True, stream_options=options))[:-1]
    counts = [p["usage"]["completion_tokens"] for p in payloads]
    assert counts == sorted(counts) and counts[-1] == 4


async def test_tokens_of_one_step_are_one_chunk() -> None:
    payloads = events(await rig(says("abcdef", tokens_per_step=3)).complete(stream=True))
    assert [p["choices"][0]["text"] for p in payloads[:-1]] == ["abc", "def", ""]


async def test_choices_are_told_apart_and_usage_is_summed() -> None:
    """Red if completion tokens were counted for one choice only, or the prompt once per choice."""
    script = [step for pair in zip(says("one"), says("two", sample=1), strict=True) for step in pair]
    whole = (await rig(script).chat(n=2, temperature=0)).json()
    assert [c["message"]["content"] for c in whole["choices"]] == ["one", "two"]
    assert whole["usage"]["completion_tokens"] == 8 and whole["usage"]["prompt_tokens"] == len(CHAT_PROMPT)
    payloads = events(await rig(script).chat(n=2, stream=True))
    assert (streamed_text(payloads, 0), streamed_text(payloads, 1)) == ("one", "two")


async def test_a_character_split_over_tokens_is_never_sent_in_halves() -> None:
    payloads = events(await rig(says("a👩‍🚀é")).chat(stream=True))
    texts = [p["choices"][0]["delta"].get("content", "") for p in payloads[:-1]]
    assert "".join(texts) == "a👩‍🚀é" and not any("\ufffd" in text for text in texts)


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_string_across_tokens_ends_the_request_early(include: bool) -> None:
    """Red if text of the stop string leaks, if later tokens count, or if the engine goes on."""
    r = rig([*says("Hello END", end=FinishReason.LENGTH)[:-1], (0, ids("D!"), None), Hang()])
    body = (await r.complete(stop=["END", "never"], include_stop_str_in_output=include)).json()
    assert body["choices"][0]["text"] == ("Hello END" if include else "Hello ")
    assert body["choices"][0]["finish_reason"] == "stop" and body["choices"][0]["stop_reason"] == "END"
    assert body["usage"]["completion_tokens"] == len("Hello END")
    assert r.generator.num_open == 0 and r.generator.num_closed_early == 1
    assert r.metrics.records[0].outcome == "finished"


async def test_a_held_back_tail_is_sent_when_no_stop_string_comes() -> None:
    payloads = events(await rig(says("so EN")).complete(stream=True, stop="END"))
    assert streamed_text(payloads) == "so EN"


async def test_stop_strings_wait_for_min_tokens() -> None:
    body = (await rig(says("x.y.z.")).complete(stop=".", min_tokens=4)).json()
    assert body["choices"][0]["text"] == "x.y" and body["usage"]["completion_tokens"] == 4


async def test_one_choice_stops_by_text_and_the_other_goes_on() -> None:
    script = [(0, ids("a."), None), (1, ids("bc"), None), (0, ids("zz"), None), *says("de", sample=1)]
    body = (await rig(script).complete(n=2, stop=".")).json()
    assert [c["text"] for c in body["choices"]] == ["a", "bcde"]
    assert body["usage"]["completion_tokens"] == 2 + 2 + 3


async def test_a_stop_token_is_not_shown_and_is_named() -> None:
    script = [(0, [*ids("ab"), *ids("Z")], FinishReason.STOP)]
    choice = (await rig(script).complete(stop_token_ids=ids("Z"))).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", ids("Z")[0])


async def test_length_is_told() -> None:
    body = (await rig(says("abc", end=FinishReason.LENGTH)).complete(max_tokens=3)).json()
    assert body["choices"][0]["finish_reason"] == "length" and body["usage"]["completion_tokens"] == 3


async def test_chat_logprobs() -> None:
    script = says("é", end=FinishReason.LENGTH)
    body = (await rig(script).chat(logprobs=True, top_logprobs=2)).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9]]
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2]
    assert content[0]["logprob"] == -0.5 and content[0]["top_logprobs"][0]["logprob"] == -0.5
    payloads = events(await rig(script).chat(logprobs=True, top_logprobs=2, stream=True))[:-1]
    streamed = [e for p in payloads for e in (p["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == content
    whole_zero = (await rig(script).chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in whole_zero] == [[], []]


async def test_completion_logprobs_have_offsets_into_the_text() -> None:
    choice = (await rig(says("aéb", end=FinishReason.LENGTH)).complete(logprobs=1)).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "b"]
    assert logprobs["text_offset"] == [0, 1, 1, 2] and logprobs["token_logprobs"] == [-0.5] * 4
    assert [set(top) for top in logprobs["top_logprobs"]] == [{t} for t in logprobs["tokens"]]


async def test_token_ids_are_returned_on_request() -> None:
    whole = (await rig(says("ab")).chat(return_token_ids=True)).json()
    assert whole["prompt_token_ids"] == ids(CHAT_PROMPT) and whole["choices"][0]["token_ids"] == [*ids("ab"), EOS]
    payloads = events(await rig(says("ab")).complete(return_token_ids=True, stream=True))[:-1]
    streamed = [i for p in payloads for i in p["choices"][0].get("token_ids", [])]
    assert streamed == [*ids("ab"), EOS] and payloads[0]["choices"][0]["prompt_token_ids"] == ids("hi")


async def test_several_prompts_of_either_kind_and_echo() -> None:
    def script(request: Any) -> Any:
        return says(TOKENS_TO_TEXT[request.prompt_token_ids].upper())

    for prompt in (["ab", "cd"], [ids("ab"), ids("cd")]):
        r = rig(script)
        body = (await r.complete(prompt=prompt, echo=True)).json()
        assert [c["text"] for c in body["choices"]] == ["abAB", "cdCD"]
        assert [c["index"] for c in body["choices"]] == [0, 1]
        assert body["usage"]["prompt_tokens"] == 4 and body["usage"]["completion_tokens"] == 6
        assert len({request.request_id for request in r.generator.requests}) == 2
        assert [record.outcome for record in r.metrics.records] == ["finished", "finished"]
        payloads = events(await rig(script).complete(prompt=prompt, echo=True, stream=True))
        assert [streamed_text(payloads, 0), streamed_text(payloads, 1)] == ["abAB", "cdCD"]


TOKENS_TO_TEXT = {tuple(ids(text)): text for text in ("ab", "cd")}


async def test_what_the_engine_is_asked() -> None:
    r = rig(says("x"), generation_defaults={"temperature": 0.6, "top_k": 40, "top_p": None})
    await r.chat(max_tokens=7, max_completion_tokens=9, seed=-1, logit_bias={"5": 2}, stop_token_ids=[3], top_p=0.5)
    sampling = r.generator.requests[0].sampling
    assert (sampling.max_tokens, sampling.seed, sampling.logit_bias) == (9, 2**64 - 1, {5: 2.0})
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 40, 0.5)
    assert sampling.stop_token_ids == (3,) and sampling.num_logprobs is None
    assert r.generator.requests[0].eos_token_ids == (EOS,)


async def test_defaults_seed_and_room() -> None:
    """Red if an absent seed were constant: equal requests would then draw equal texts."""
    r = rig(says("x"))
    await r.chat()
    await r.chat(max_tokens=10_000, temperature=None, top_logprobs=0)
    first, second = (request.sampling for request in r.generator.requests)
    assert first.max_tokens == second.max_tokens == MAX_MODEL_LEN - len(CHAT_PROMPT)
    assert first.temperature == 1.0 and first.seed != second.seed


async def test_max_tokens_of_a_completion_is_16_unless_told() -> None:
    r = rig(says("x"))
    await r.post("/v1/completions", {"prompt": "hi"})
    assert r.generator.requests[0].sampling.max_tokens == 16


async def test_salt_separates_what_must_not_share_blocks() -> None:
    r = rig(says("x"))
    for salt in (None, "a", "b", "a"):
        await r.chat(cache_salt=salt)
    none, a, b, again = (request.salt for request in r.generator.requests)
    assert none == b"" and a == again and len({none, a, b}) == 3


async def test_tools_reach_the_template_unless_the_client_says_none() -> None:
    r = rig(says("x"))
    tools = [{"type": "function", "function": {"name": "f"}}]
    await r.chat(tools=tools)
    await r.chat(tools=tools, tool_choice="none")
    with_tools, without = (bytes(request.prompt_token_ids) for request in r.generator.requests)
    assert len(with_tools) > len(without) == len(CHAT_PROMPT)


async def test_the_record_of_a_request_holds_its_counts_and_times() -> None:
    r = rig(says("abc"), num_cached=4)
    await r.chat(stream=True, max_tokens=50)
    [record] = r.metrics.records
    assert (record.outcome, record.finish_reason, record.n, record.max_tokens) == ("finished", "stop", 1, 50)
    assert (record.num_prompt_tokens, record.num_cached_tokens, record.num_output_tokens) == (len(CHAT_PROMPT), 4, 4)
    times = record.times
    assert len(times.token_at_ns) == 4
    assert times.accepted_at_ns < times.token_at_ns[0] < times.token_at_ns[-1] < times.finished_at_ns
    assert record.facts == facts(len(CHAT_PROMPT), 4)


@settings(max_examples=40, deadline=None)
@given(
    text=st.text(alphabet="ab.é👍\n", max_size=12),
    stop=st.sampled_from([None, "b", ".\n", "é", ["ab", "👍"]]),
    tokens_per_step=st.integers(1, 5),
    end=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
async def test_a_stream_says_what_a_whole_answer_says(
    text: str, stop: Any, tokens_per_step: int, end: FinishReason
) -> None:
    script = says(text or "a", end=end, tokens_per_step=tokens_per_step)
    fields = {"stop": stop, "logprobs": 1}
    whole = (await rig(script).complete(**fields)).json()
    payloads = events(await rig(script).complete(stream=True, stream_options={"include_usage": True}, **fields))
    choice = whole["choices"][0]
    assert streamed_text(payloads) == choice["text"]
    assert payloads[-3]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert payloads[-3]["choices"][0]["stop_reason"] == choice["stop_reason"]
    assert payloads[-2]["usage"] == whole["usage"]
    parts = [p["choices"][0]["logprobs"] for p in payloads[:-2] if p["choices"][0]["logprobs"]]
    assert [t for part in parts for t in part["tokens"]] == choice["logprobs"]["tokens"]
    assert [o for part in parts for o in part["text_offset"]] == choice["logprobs"]["text_offset"]
