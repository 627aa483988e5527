"""One command, three processes: a prompt computed by one worker and continued by another, over real HTTP.

The engine is the fake one, whose tokens are a function of the KV content it reads: a wrong, missing or foreign block
changes the answer.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from openai import OpenAI
from stack import Stack, stack


def prompt_of(num_tokens: int, seed: int = 0) -> list[int]:
    """A prompt of its own per seed: no two share a block."""
    rng = Random(seed)
    return [rng.randrange(256) for _ in range(num_tokens)]


def test_each_role_does_its_part(split: Stack) -> None:
    """Red when prompts are computed on the decode worker, or tokens on the prefill worker."""
    before = split.metrics()
    split.complete(prompt_of(300, seed=1), max_tokens=20, ignore_eos=True)
    split.wait_idle()
    after = split.metrics()

    def grown(name: str, role: str) -> float:
        def total(values: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> float:
            return sum(v for (n, labels), v in values.items() if n == name and dict(labels).get("role") == role)

        return total(after) - total(before)

    assert grown("relevo:prefill_tokens_total", "prefill") == 300
    assert grown("relevo:prefill_tokens_total", "decode") == 0
    assert grown("relevo:decode_tokens_total", "prefill") == 1
    assert grown("relevo:decode_tokens_total", "decode") == 19
    assert grown("relevo:kv_transfer_bytes_total", "prefill") > 0


@pytest.mark.parametrize("length", [1, 15, 16, 17, 255, 256, 257, 512, 1000])
@pytest.mark.parametrize("num_tokens", [1, 2, 17])
def test_split_equals_unified(split: Stack, unified: Stack, length: int, num_tokens: int) -> None:
    """Block edges, chunk edges, and an answer that ends on the prefill worker."""
    asked = {"prompt": prompt_of(length, seed=length), "max_tokens": num_tokens, "logprobs": 2, "n": 2, "seed": 5}
    one, other = split.complete(**asked), unified.complete(**asked)
    assert one["choices"] == other["choices"]
    assert one["usage"] == other["usage"]


def test_many_at_once_equal_one_by_one(split: Stack, unified: Stack) -> None:
    prompts = [prompt_of(40 + 31 * i, seed=100 + i) for i in range(24)]
    with ThreadPoolExecutor(24) as pool:
        together = list(pool.map(lambda p: split.complete(p, max_tokens=40)["choices"], prompts))
    assert together == [unified.complete(p, max_tokens=40)["choices"] for p in prompts]
    split.wait_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_cached_tokens_are_whole_blocks_of_what_was_seen(split: Stack, unified: Stack, stream: bool) -> None:
    """Told alike in a stream, in a whole answer and in the ledger; red when KV that was handed over counts as a hit."""
    prompt = prompt_of(100, seed=999 + stream)
    changed = [*prompt[:97], 1, 2, 3]
    for stack_ in (split, unified):
        before = stack_.recorded_cached_tokens()
        assert [told_as_cached(stack_, p, stream=stream) for p in (prompt, prompt, changed)] == [0, 96, 96]
        assert stack_.recorded_cached_tokens() - before == 192


def told_as_cached(running: Stack, prompt: list[int], *, stream: bool) -> int:
    if not stream:
        return int(running.complete(prompt, max_tokens=4)["usage"]["prompt_tokens_details"]["cached_tokens"])
    client = OpenAI(base_url=running.url + "/v1", api_key="none")
    options = {"max_tokens": 4, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.completions.create(model=running.model, prompt=prompt, **options))  # type: ignore[call-overload]
    return int(chunks[-1].usage.prompt_tokens_details.cached_tokens)


def test_the_official_client_streams(split: Stack) -> None:
    client = OpenAI(base_url=split.url + "/v1", api_key="none")
    messages = [{"role": "user", "content": "Say something"}]
    fields = {"model": split.model, "messages": messages, "max_tokens": 30, "temperature": 0}
    whole = client.chat.completions.create(**fields)  # type: ignore[call-overload]
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))  # type: ignore[call-overload]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_stop_string_ends_the_work_on_every_worker(split: Stack) -> None:
    text = split.complete(prompt_of(64, seed=3), max_tokens=60, ignore_eos=True)["choices"][0]["text"]
    stop = text[10:13]
    answer = split.complete(prompt_of(64, seed=3), max_tokens=60, ignore_eos=True, stop=[stop])
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["text"] == text[: text.index(stop)]
    split.wait_idle()


@pytest.mark.parametrize(
    "flags", [("--kv-transport", "tcp"), ("--kv-transport", "tcp,shm"), ("--topology", "2p1d", "--cores", "0,1,2")]
)
def test_other_ways_to_hand_over(flags: tuple[str, ...], unified: Stack) -> None:
    import os

    if "--cores" in flags and len(os.sched_getaffinity(0)) < 3:
        pytest.skip("2p1d needs three cores")
    with stack("fake", "--topology", "1p1d", "--num-kv-blocks", "512", "--max-model-len", "2048", *flags) as other:
        for length in (1, 16, 33, 600):
            asked = {"prompt": prompt_of(length, seed=40 + length), "max_tokens": 25}
            assert other.complete(**asked)["choices"] == unified.complete(**asked)["choices"]
        other.wait_idle()
        assert other.metric("relevo:kv_transfer_bytes_total") > 0


def test_a_small_pool_preempts_and_still_tells_the_truth(unified: Stack) -> None:
    """12 blocks, eight requests that want more: somebody is preempted and computed again."""
    flags = ("--topology", "1p1d", "--num-kv-blocks", "12", "--max-model-len", "160")
    with stack("fake", *flags) as tight:
        prompts = [prompt_of(20 + i, seed=60 + i) for i in range(8)]
        with ThreadPoolExecutor(8) as pool:
            asked = {"max_tokens": 60, "ignore_eos": True}
            answers = list(pool.map(lambda p: tight.complete(p, **asked)["choices"], prompts))
        assert answers == [unified.complete(p, **asked)["choices"] for p in prompts]
        assert tight.metric("vllm:num_preemptions_total") > 0
        tight.wait_idle()
