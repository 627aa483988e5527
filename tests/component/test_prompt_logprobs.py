"""Log probabilities of a prompt, from the step loop to the answer: every token once, whoever computed it.

The fake engine derives them from the KV that it reads back, so a block that is not as it should be changes them.
"""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import httpx
import pytest
from in_process_stack import in_process_stack, until
from scripted_gateway import (
    TOKENIZER,
    CountingClock,
    RecordingMetrics,
    events,
    ids,
    rig,
    says,
    scripted_app,
    served_model,
    streamed_text,
)

from relevo.engine.fake_runner import FAKE_MODEL, FakeModel
from relevo.gateway.generation import bounds
from relevo.gateway.openai.logprobs import token_text
from relevo.gateway.text.served_models import ServedModels
from relevo.policy.routing.worker_choice import WorkerView

TEXT = "the log probabilities of this very prompt are told"
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "unified": {"roles": {"u": "unified"}},
    "split over memory": {"roles": {"d": "decode", "p": "prefill"}},
    "split over a network": {"roles": {"d": "decode", "p": "prefill"}, "far": ["p"]},
}


@pytest.fixture(autouse=True)
def every_prompt_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerView, "has_measured_costs", property(lambda view: False))


def client_of(stack: Any) -> httpx.AsyncClient:
    served = served_model(stack.gateways[0].dispatcher)
    app = scripted_app(ServedModels([served]), RecordingMetrics(), clock=CountingClock())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


def expected(text: str, num_best: int) -> tuple[list[float], list[list[tuple[int, float]]], list[int]]:
    """Of all tokens but the first: log probabilities, the best ones, ranks."""
    scores = FakeModel(vocab_size=FAKE_MODEL.vocab_size).reference_scores(ids(text), num_best)
    logprobs, ranks = array("d", scores.logprobs).tolist(), array("i", scores.ranks).tolist()
    best_ids, best = array("i", scores.best_ids).tolist(), array("d", scores.best_logprobs).tolist()
    rows = [
        list(zip(best_ids[i : i + num_best], best[i : i + num_best], strict=True))
        for i in range(0, len(best_ids), max(1, num_best))
    ]
    return logprobs, rows, ranks


def names(pairs: list[tuple[int, float]]) -> dict[str, float]:
    return {token_text(TOKENIZER, token_id): logprob for token_id, logprob in pairs}


@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_echo_tells_them_in_every_topology_also_of_a_prompt_that_is_cached(topology: str) -> None:
    """Red if tokens of a cached prefix had none, if a chunk's were lost or told twice, or if a split changed one."""
    logprobs, best, _ = expected(TEXT, 2)
    body = {"prompt": TEXT, "echo": True, "logprobs": 2, "max_tokens": 3, "temperature": 0}
    async with in_process_stack(**TOPOLOGIES[topology], num_gateways=1) as stack, client_of(stack) as client:
        plain = (await client.post("/v1/completions", json={**body, "echo": False, "logprobs": None})).json()
        for _ in range(2):
            answer = (await client.post("/v1/completions", json=body)).json()
            choice = answer["choices"][0]
            told = choice["logprobs"]
            assert choice["text"] == TEXT + plain["choices"][0]["text"]
            assert told["tokens"][: len(TEXT)] == list(TEXT)
            assert told["token_logprobs"][: len(TEXT)] == [None, *logprobs]
            assert told["top_logprobs"][0] is None
            for place, pairs in enumerate(best, start=1):
                own = {TEXT[place]: logprobs[place - 1]}
                assert told["top_logprobs"][place] == {**own, **names(pairs)}
            assert told["text_offset"][: len(TEXT)] == list(range(len(TEXT)))
            assert {len(told[name]) for name in told} == {len(TEXT) + 3}
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        again = (await client.post("/v1/completions", json={**body, "echo": False, "logprobs": None})).json()
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "it writes the cache nevertheless"
        assert again["choices"][0]["text"] == plain["choices"][0]["text"]
        await until(lambda: all(worker.is_clean for worker in stack.workers.values()))


async def test_nothing_is_generated_where_nothing_is_asked_for() -> None:
    """Red if the token that the engine draws were shown or charged."""
    async with in_process_stack({"u": "unified"}, num_gateways=1) as stack, client_of(stack) as client:
        body = {"prompt": [TEXT, "ab"], "echo": True, "logprobs": 0, "max_tokens": 0}
        answer = (await client.post("/v1/completions", json=body)).json()
        assert [choice["text"] for choice in answer["choices"]] == [TEXT, "ab"]
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 2
        assert answer["usage"]["completion_tokens"] == 0
        for choice, text in zip(answer["choices"], body["prompt"], strict=True):
            logprobs, _, _ = expected(text, 0)
            assert choice["logprobs"]["token_logprobs"] == [None, *logprobs]
            assert all(len(top) == 1 for top in choice["logprobs"]["top_logprobs"][1:])
        streamed = events(await client.post("/v1/completions", json={**body, "stream": True}))
        assert [streamed_text(streamed, index) for index in range(2)] == body["prompt"] and streamed[-1] == "[DONE]"


@pytest.mark.parametrize("num_best", [0, 3])
async def test_prompt_logprobs_are_told_by_id_with_ranks(num_best: int) -> None:
    logprobs, best, ranks = expected(TEXT, num_best)
    async with in_process_stack({"u": "unified"}, num_gateways=1) as stack, client_of(stack) as client:
        body = {"prompt": TEXT, "prompt_logprobs": num_best, "max_tokens": 1, "n": 2}
        choices = (await client.post("/v1/completions", json=body)).json()["choices"]
        assert len(choices) == 2 and choices[0]["prompt_logprobs"] == choices[1]["prompt_logprobs"]
        told = choices[0]["prompt_logprobs"]
        assert choices[0]["logprobs"] is None and choices[0]["text"] not in ("", TEXT)
    assert told[0] is None and len(told) == len(TEXT)
    for place, entry in enumerate(told[1:]):
        own = str(ids(TEXT[place + 1])[0])
        assert (entry[own]["logprob"], entry[own]["rank"]) == (logprobs[place], ranks[place])
        assert entry[own]["decoded_token"] == TEXT[place + 1]
        for rank, (token_id, logprob) in enumerate(best[place] if num_best else [], start=1):
            assert entry[str(token_id)]["logprob"] == logprob and entry[str(token_id)]["rank"] == rank


async def test_a_chat_tells_them_of_the_rendered_prompt() -> None:
    rendered = f"user:{TEXT}\nassistant:"
    logprobs, _, _ = expected(rendered, 1)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": TEXT}], "prompt_logprobs": 1, "max_tokens": 2}
    async with in_process_stack({"d": "decode", "p": "prefill"}, num_gateways=1) as stack, client_of(stack) as client:
        whole = (await client.post("/v1/chat/completions", json=body)).json()
        first = events(await client.post("/v1/chat/completions", json={**body, "stream": True}))[0]
    for told in (whole["prompt_logprobs"], first["prompt_logprobs"]):
        assert [entry[str(ids(rendered)[i])]["logprob"] for i, entry in enumerate(told) if entry] == logprobs


async def test_streams_of_several_prompts_open_each_with_its_own() -> None:
    """Red if a choice opened with the first delta of another one, when its prompt's are not known yet."""
    prompts = ["a short one", TEXT * 3]
    body = {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 4, "stream": True}
    async with in_process_stack({"u": "unified"}, num_gateways=1) as stack, client_of(stack) as client:
        payloads = events(await client.post("/v1/completions", json=body))
    for index, prompt in enumerate(prompts):
        choices = [c for p in payloads if isinstance(p, dict) for c in p["choices"] if c["index"] == index]
        assert choices[0]["text"] == prompt
        assert choices[0]["logprobs"]["token_logprobs"] == [None, *expected(prompt, 1)[0]]
        generated = [c["logprobs"] for c in choices[1:] if c["logprobs"]]
        assert generated[0]["text_offset"][0] == len(prompt)


async def test_many_at_once_have_each_their_own_under_pressure() -> None:
    """The pool holds a few of them, so some are preempted or wait; red if what is computed again is told again."""
    prompts = [TEXT[i:] + str(i) for i in range(12)]
    async with in_process_stack({"u": "unified"}, num_gateways=1, num_blocks=32) as stack, client_of(stack) as client:
        bodies = [{"prompt": p, "echo": True, "logprobs": 1, "max_tokens": 30, "ignore_eos": True} for p in prompts]
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        assert stack.workers["u"].scheduler.num_preemptions > 0
    for prompt, answer in zip(prompts, answers, strict=True):
        told = answer.json()["choices"][0]["logprobs"]["token_logprobs"]
        assert told[: len(prompt)] == [None, *expected(prompt, 1)[0]] and len(told) == len(prompt) + 30


async def test_a_worker_that_tells_none_ends_the_request() -> None:
    """Red if an answer went out whose prompt has no log probabilities though they were asked for."""
    answer = await rig(says("x")).complete(echo=True, logprobs=1)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "worker_failed")
    assert (await rig(says("x")).complete(prompt="a", echo=True, logprobs=1)).status_code == 200, "one token has none"


async def test_how_many_may_be_asked_for_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_PROMPT_SCORES", 2 * 6 * 3)
    body = {"prompt": ["abcdef", "abcdef"], "prompt_logprobs": 3}
    refused = await rig(says("x")).complete(**body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")
    assert "at most 36" in refused.json()["error"]["message"]
