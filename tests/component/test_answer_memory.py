"""What a whole answer keeps while it is made: as JSON, bounded for one answer and in sum over all."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from scripted_gateway import Hang, raw_call, rig, says

from relevo.core.errors import AnswerTooLarge, Overloaded
from relevo.core.request import FinishReason
from relevo.gateway.generation.finished_choice import LogprobParts
from relevo.gateway.generation.kept_answer import STEP_BYTES, KeptAnswer
from relevo.gateway.http.byte_account import ByteAccount

TEXT = "/v1/completions"
COSTLY = {"prompt": "a", "max_tokens": 190, "logprobs": 20}


def test_parts_put_together_are_the_whole() -> None:
    parts = LogprobParts()
    for number in range(3):
        parts.add({"content": [{"token": str(number)}], "tokens": [], "refusal": None})
    whole = parts.whole({"content": [], "tokens": [], "refusal": None})
    assert orjson.loads(orjson.dumps(whole)) == {
        "content": [{"token": "0"}, {"token": "1"}, {"token": "2"}],
        "tokens": [],
        "refusal": None,
    }


def test_an_answer_that_grows_without_end_is_told_what_to_ask_for() -> None:
    kept = KeptAnswer(ByteAccount(10**9), max_bytes=1000)
    kept.grow(1000)
    with pytest.raises(AnswerTooLarge, match=r"larger than 1000 bytes.*'stream': true"):
        kept.grow(1)


def test_answers_are_bounded_in_sum_and_give_back_what_they_took() -> None:
    memory = ByteAccount(3 * STEP_BYTES)
    first, second = KeptAnswer(memory), KeptAnswer(memory)
    first.grow(3 * STEP_BYTES)
    second.grow(2 * STEP_BYTES)
    with pytest.raises(Overloaded, match="'stream': true"):
        second.grow(STEP_BYTES)
    for kept in (first, second, second):
        kept.give_back()
    assert memory.num_held == 0


async def test_log_probabilities_of_many_choices_do_not_pile_up() -> None:
    """Red if a whole answer is not counted as it grows, or stays counted when it has failed or was sent."""
    memory = ByteAccount(STEP_BYTES)
    script = [step for sample in range(16) for step in says("x" * 180, sample=sample, end=FinishReason.LENGTH)]
    r = rig(script, answer_memory=memory)
    refused = await r.post(TEXT, COSTLY | {"n": 16})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
    assert memory.num_held == 0
    assert (await r.post(TEXT, {"prompt": "a", "n": 16})).status_code == 200


async def test_what_an_answer_keeps_is_its_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if tokens or their alternatives are kept as objects: they took 1 GB for 128 choices."""
    kept: list[int] = []
    grow = KeptAnswer.grow

    def noted(self: KeptAnswer, num_bytes: int) -> None:
        kept.append(num_bytes)
        grow(self, num_bytes)

    monkeypatch.setattr(KeptAnswer, "grow", noted)
    body: dict[str, Any] = (await rig(says("x" * 100)).post(TEXT, COSTLY)).json()
    shown = len(orjson.dumps(body["choices"][0]["logprobs"]))
    assert 0.9 * shown < sum(kept) < 2 * shown


async def test_a_client_that_leaves_gives_its_answer_back() -> None:
    memory = ByteAccount(10 * STEP_BYTES)
    ended = [step for sample in range(8) for step in says("x" * 180, sample=sample, end=FinishReason.LENGTH)]
    r = rig([*ended, Hang()], answer_memory=memory)
    asking = asyncio.create_task(r.post(TEXT, COSTLY | {"n": 9}))
    await r.generator.hanging.wait()
    assert memory.num_held > 0
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await r.generator.idle.wait()
    assert memory.num_held == 0


async def test_what_comes_after_a_client_has_left_is_given_back_too() -> None:
    """Red if the memory is given back before the engine has been told: each step takes more of it, one comes a turn."""
    memory = ByteAccount(1000 * STEP_BYTES)
    steps = [step for sample in range(20) for step in says("x" * 180, sample=sample, tokens_per_step=190)]
    r = rig([*steps[:1], Hang(), *steps[1:]], answer_memory=memory)

    async def leave_in_the_middle() -> dict[str, Any]:
        await r.generator.hanging.wait()
        r.generator.resume.set()
        return {"type": "http.disconnect"}

    async with asyncio.timeout(10):
        await raw_call(r.app, COSTLY | {"n": 20}, leave_in_the_middle, TEXT)
    assert r.metrics.responses[0][2] == 499 and r.generator.num_closed_early == 1
    assert memory.num_held == 0
