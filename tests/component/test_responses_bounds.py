"""What a short request may make of stored and sealed text: never more than a bound, whatever it refers to."""

from __future__ import annotations

from typing import Any

import pytest
from answers_of_items import Marked, respond
from scripted_gateway import MODEL, rig, says
from test_responses_input import EVERYTHING, last_prompt
from test_responses_state import status, talks

from relevo.gateway.answers.memory import MemoryAnswers
from relevo.gateway.responses import history, messages

REFERENCE = {"type": "item_reference"}


class CountedAnswers(MemoryAnswers):
    num_found = 0

    async def find(self, tenant: str, answer_id: str) -> Any:
        self.num_found += 1
        return await super().find(tenant, answer_id)


async def refused(r: Any, items: list[Any]) -> dict[str, Any]:
    code, told = await status(r, "POST", "/v1/responses", {"model": MODEL, "input": items})
    assert code == 400, told
    error: dict[str, Any] = told["error"]
    return error


async def test_an_item_that_is_referred_to_twice_is_said_once() -> None:
    """Red if each reference brought the item anew: a body of 8 MB would be a conversation of terabytes."""
    r = talks(".ok")
    (item,) = (await respond(r, "q"))["output"]
    await respond(r, [{"role": "user", "content": "q"}, *([REFERENCE | {"id": item["id"]}] * 50)])
    assert last_prompt(r) == "user:q\nassistant:ok\n"


async def test_what_one_request_refers_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if stored responses were read without end: each may have as much as a body."""
    answers = CountedAnswers()
    r = talks(".ok", answers=answers)
    made = [(await respond(r, "q" * 300))["output"][0]["id"] for _ in range(5)]
    items = [REFERENCE | {"id": item_id} for item_id in made]
    await respond(r, items)
    assert answers.num_found == 5
    monkeypatch.setattr(history, "MAX_BEFORE_CHARS", 3000)
    error = await refused(r, items)
    assert error["param"] == "input" and "more than 3000 characters" in error["message"]
    assert answers.num_found < 10
    monkeypatch.setattr(history, "MAX_REFERRED", 4)
    num_before = answers.num_found
    assert "items of 5 responses, and at most 4" in (await refused(r, items))["message"]
    assert answers.num_found == num_before


@pytest.mark.parametrize("item_id", [None, 1, {"type": "x"}, ["a"]])
async def test_a_reference_names_its_item_by_a_string(item_id: Any) -> None:
    assert "'id' that is a string" in (await refused(talks(".ok"), [REFERENCE | {"id": item_id}]))["message"]


async def test_sealed_reasoning_is_bounded_by_what_it_opens_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if a short seal could be sent a thousand times: it is packed, and opens to a thousand long texts."""
    r = rig(says("?" + "a" * 1000 + ".yes"), make_parser=Marked, chat_template=EVERYTHING, max_model_len=50_000)
    sealed = (await respond(r, "q", include=["reasoning.encrypted_content"], store=False))["output"][0]
    bare = {"type": "reasoning", "summary": [], "encrypted_content": sealed["encrypted_content"]}
    assert len(bare["encrypted_content"]) < 200
    monkeypatch.setattr(messages, "MAX_OPENED_CHARS", 2500)
    await respond(r, [{"role": "user", "content": "q"}, bare, bare])
    assert f"({'a' * 1000}\n{'a' * 1000})" in last_prompt(r)
    error = await refused(r, [{"role": "user", "content": "q"}, bare, bare, bare])
    assert error["param"] == "input[3].encrypted_content" and "more than 2500" in error["message"]


@pytest.mark.parametrize("limit", ["0", "101", "-1", "x", "", "000000100" + "9" * 5000, "0000000019999", "²"])
async def test_a_limit_of_a_page_is_a_number_within_its_bounds(limit: str) -> None:
    """Red if only its first digits were looked at: the rest were too many for any number, a failure."""
    r = talks(".ok")
    made = (await respond(r, "q"))["id"]
    code, told = await status(r, "GET", f"/v1/responses/{made}/input_items?limit={limit}")
    assert (code, told["error"]["param"]) == (400, "limit")
