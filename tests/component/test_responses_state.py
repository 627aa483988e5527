"""Responses that are kept: gone on with, shown again, listed, deleted, and seen by their tenant alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from answers_of_items import FUNCTION, Marked, events_of, respond, stream, without_ids
from metered_gateway import metered
from scripted_gateway import MODEL, Rig, rig, says
from test_responses_input import EVERYTHING, last_prompt

from relevo.core.errors import LedgerUnavailable
from relevo.gateway.answers.database import DatabaseAnswers
from relevo.gateway.answers.memory import MemoryAnswers
from relevo.gateway.answers.store import StoredAnswer
from relevo.gateway.http.auth import ApiKeys

CALLING = '?hm.Hi @tide {"port":"Brest"}'
RESULT = {"type": "function_call_output", "call_id": "call_0", "output": "high"}


def talks(*written: str, **parts: Any) -> Rig:
    """Each request is answered with the next of these."""
    left = list(written)
    settings = {"make_parser": Marked, "chat_template": EVERYTHING, "max_model_len": 5000}
    return rig(lambda request: says(left.pop(0) if len(left) > 1 else left[0]), **(settings | parts))


async def status(r: Rig, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, Any]]:
    async with r.client(**headers) as client:
        answer = await client.request(method, path, json=body)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_chained_prompt_is_the_one_that_is_written_out(streamed: bool) -> None:
    """Red if the stored turn lost its calls or its reasoning, or kept its instructions."""
    r = talks(CALLING, ".Now,", ".ok")

    async def turn(asked: Any, **fields: Any) -> dict[str, Any]:
        if streamed:
            last: dict[str, Any] = (await stream(r, asked, tools=[FUNCTION], **fields))[-1]["response"]
            return last
        return await respond(r, asked, tools=[FUNCTION], **fields)

    first = await turn("q", instructions="Old.")
    second = await turn([RESULT], previous_response_id=first["id"])
    await turn("And?", previous_response_id=second["id"], instructions="New.")
    chained = last_prompt(r)
    question = {"role": "user", "content": "q"}
    written_out = [question, *first["output"], RESULT, *second["output"], {"role": "user", "content": "And?"}]
    await turn(written_out, instructions="New.")
    assert last_prompt(r) == chained
    assert chained == (
        "<tool tide>system:New.\nuser:q\n"
        'assistant(hm):Hi <tide {"port": "Brest"}>\ntool/tide:high\nassistant:Now,\nuser:And?\n'
    )


async def test_what_is_fetched_is_what_was_answered() -> None:
    """Red if an id, a call's id or a place was another in the stream's end and when fetched."""
    r = talks(CALLING)
    last = (await stream(r, tools=[FUNCTION]))[-1]["response"]
    assert await status(r, "GET", f"/v1/responses/{last['id']}") == (200, last)
    whole = await respond(r, tools=[FUNCTION])
    assert await status(r, "GET", f"/v1/responses/{whole['id']}") == (200, whole)
    assert without_ids(whole) == without_ids(last)


async def test_a_response_of_store_false_is_not_kept() -> None:
    r = talks(".ok")
    response = await respond(r, store=False)
    assert response["store"] is False
    assert (await status(r, "GET", f"/v1/responses/{response['id']}"))[0] == 404
    body = {"model": MODEL, "input": "q", "previous_response_id": response["id"]}
    code, told = await status(r, "POST", "/v1/responses", body)
    assert (code, told["error"]["param"]) == (400, "previous_response_id")
    assert told["error"]["code"] == "previous_response_not_found"


async def test_a_server_that_stores_nothing_says_so() -> None:
    response = await respond(talks(".ok", answers=MemoryAnswers(0.0)))
    assert response["store"] is False


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/v1/responses/resp_nosuch", 404),
        ("GET", "/v1/responses/resp_nosuch/input_items", 404),
        ("GET", "/v1/responses/ID/other", 404),
        ("GET", "/v1/responses/ID?stream=true", 400),
        ("DELETE", "/v1/responses/resp_nosuch", 404),
        ("POST", "/v1/responses/resp_nosuch/cancel", 404),
        ("POST", "/v1/responses/ID/cancel", 400),
        ("POST", "/v1/responses/compact", 404),
        ("GET", "/v1/responses/ID/input_items?limit=0", 400),
        ("GET", "/v1/responses/ID/input_items?order=up", 400),
        ("GET", "/v1/responses/ID/input_items?after=msg_nosuch", 400),
    ],
)
async def test_what_is_not_there_or_has_ended_is_said_in_openai_s_words(method: str, path: str, code: int) -> None:
    r = talks(".ok")
    response = await respond(r)
    found, told = await status(r, method, path.replace("ID", response["id"]))
    assert found == code
    assert told["error"]["message"].endswith(".")


async def test_a_deleted_response_is_gone_and_what_goes_on_from_it_says_which_is_missing() -> None:
    r = talks(".ok")
    first = await respond(r)
    second = await respond(r, previous_response_id=first["id"])
    deleted = {"id": first["id"], "object": "response", "deleted": True}
    assert await status(r, "DELETE", f"/v1/responses/{first['id']}") == (200, deleted)
    body = {"model": MODEL, "input": "q", "previous_response_id": second["id"]}
    code, told = await status(r, "POST", "/v1/responses", body)
    assert code == 400
    assert first["id"] in told["error"]["message"]


async def test_input_items_are_listed_in_pages_newest_first() -> None:
    r = talks(".ok")
    items = [{"role": "user", "content": f"q{number}"} for number in range(5)]
    response = await respond(r, items)
    path = f"/v1/responses/{response['id']}/input_items"
    _, page = await status(r, "GET", f"{path}?limit=2")
    assert [item["content"] for item in page["data"]] == [[{"type": "input_text", "text": t}] for t in ("q4", "q3")]
    assert page["has_more"]
    _, rest = await status(r, "GET", f"{path}?after={page['last_id']}")
    assert [item["content"][0]["text"] for item in rest["data"]] == ["q2", "q1", "q0"]
    assert not rest["has_more"]
    _, oldest = await status(r, "GET", f"{path}?order=asc&limit=1")
    assert oldest["data"][0]["content"][0]["text"] == "q0"


async def test_a_reference_stands_for_the_item_it_names() -> None:
    """As clients send a history whose items are stored here."""
    r = talks(CALLING, ".ok")
    first = await respond(r, "q", tools=[FUNCTION])
    items = [{"role": "user", "content": "q"}, *first["output"], RESULT]
    await respond(r, items, tools=[FUNCTION])
    written_out = last_prompt(r)
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    await respond(r, [{"role": "user", "content": "q"}, *references, RESULT], tools=[FUNCTION])
    assert last_prompt(r) == written_out
    await respond(r, [*references, RESULT], tools=[FUNCTION], previous_response_id=first["id"])
    assert last_prompt(r) == written_out  # what comes before anyway is not said twice


@pytest.mark.parametrize("item_id", ["msg_nosuch", "msg_" + "0" * 32 + "00"])
async def test_an_unknown_reference_is_not_found(item_id: str) -> None:
    body = {"model": MODEL, "input": [{"type": "item_reference", "id": item_id}]}
    code, told = await status(talks(".ok"), "POST", "/v1/responses", body)
    assert (code, told["error"]["param"]) == (404, "input")


async def test_a_response_is_its_tenant_s_alone() -> None:
    """Red if another key could read it, go on from it, or delete it."""
    r = talks(".ok", api_keys=ApiKeys.of(("mine", "other")))
    mine, other = {"authorization": "Bearer mine"}, {"authorization": "Bearer other"}
    _, response = await status(r, "POST", "/v1/responses", {"model": MODEL, "input": "q"}, **mine)
    path = f"/v1/responses/{response['id']}"
    assert (await status(r, "GET", path, **other))[0] == 404
    assert (await status(r, "DELETE", path, **other))[0] == 404
    body = {"model": MODEL, "input": "q", "previous_response_id": response["id"]}
    assert (await status(r, "POST", "/v1/responses", body, **other))[0] == 400
    assert (await status(r, "POST", "/v1/responses", body, **mine))[0] == 200
    assert (await status(r, "GET", path))[0] == 401


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


HUGE = 10**30


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [FUNCTION | {"parameters": {"type": "object", "maximum": HUGE}}]},
        {"metadata": {"a": HUGE}},
        {"input": [{"type": "unheard_of", "odd": HUGE}, {"role": "user", "content": "q"}]},
        {"input": [{"type": "unheard_of", "odd": deep(300)}, {"role": "user", "content": "q"}]},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": {"x": HUGE, "y": deep(300)}}]},
        {"input": [{"type": "local_shell_call", "call_id": "c", "action": deep(300)}]},
        {"metadata": {"a": deep(300)}},
    ],
)
async def test_odd_json_is_answered_kept_and_gone_on_with(fields: dict[str, Any]) -> None:
    """Red if numbers that no field can mean, or much nesting, were a 500 once the answer was made."""
    r = talks(".ok")
    body = {"model": MODEL, "input": "q", "stream": True} | fields
    events = events_of(await r.post("/v1/responses", body))
    assert events[-1]["type"] == "response.completed"
    path = f"/v1/responses/{events[-1]['response']['id']}"
    for each in (path, f"{path}/input_items"):
        async with r.client() as client:
            assert (await client.get(each)).status_code == 200
    await respond(r, previous_response_id=events[-1]["response"]["id"])


@pytest.mark.parametrize("levels", [2000, 50_000])
@pytest.mark.parametrize("start", [b'"input":"q","metadata":{"a":', b'"input":[{"type":"unheard_of","a":'])
async def test_json_that_is_nested_without_end_is_refused_before_it_is_answered(start: bytes, levels: int) -> None:
    """Red if it was read, and could not be written after the answer was made."""
    end = b"}}" if start.startswith(b'"input":"q"') else b"}]}"
    text = b'{"model":"tiny",%b%b1%b%b' % (start, b'{"a":' * levels, b"}" * levels, end)
    r = talks(".ok")
    async with r.client(**{"content-type": "application/json"}) as client:
        answer = await client.post("/v1/responses", content=text)
    assert answer.status_code == 400
    assert "nested too deeply" in answer.json()["error"]["message"]
    assert not r.generator.requests


class Failing(MemoryAnswers):
    async def keep(self, answer: StoredAnswer) -> None:
        raise LedgerUnavailable("The disk is full.")


async def test_a_response_that_could_not_be_kept_does_not_look_complete() -> None:
    """Red if a client held an answer that it cannot go on from, or the numbers had a gap."""
    r = talks(".ok", answers=Failing())
    body = {"model": MODEL, "input": "q"}
    code, told = await status(r, "POST", "/v1/responses", body)
    assert (code, told["error"]["message"]) == (503, "The disk is full.")
    events = events_of(await r.post("/v1/responses", body | {"stream": True}))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["message"] == "The disk is full."


class Waiting(MemoryAnswers):
    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_go = asyncio.Event(), asyncio.Event()

    async def keep(self, answer: StoredAnswer) -> None:
        self.asked.set()
        await self.may_go.wait()
        await super().keep(answer)


async def test_a_response_is_kept_before_its_end_leaves() -> None:
    """Red if a client that goes on at once could be told that there is no such response."""
    answers = Waiting()
    r = talks(".ok", answers=answers)
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if not sent_body:
            sent_body.append(True)
            return {"type": "http.request", "body": b'{"model":"tiny","input":"q","stream":true}', "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    sent_body: list[bool] = []
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/responses", "headers": headers, "query_string": b""}
    serving = asyncio.create_task(r.app(scope, receive, send))  # type: ignore[arg-type]  # plain functions
    await answers.asked.wait()
    assert b"response.completed" not in b"".join(sent)
    answers.may_go.set()
    await serving
    assert b"response.completed" in b"".join(sent)


async def test_the_ledger_s_database_keeps_them_and_names_them_as_the_client_saw() -> None:
    parts: dict[str, Any] = {"make_parser": Marked, "chat_template": EVERYTHING, "max_model_len": 5000}
    async with metered(says(".ok"), **parts) as m:
        answers = DatabaseAnswers(m.connection.inner)
        r = rig(says(".ok"), meter=m.meter, answers=answers, **parts)
        first = await respond(r, "q")
        second = await respond(r, "and", previous_response_id=first["id"])
        assert last_prompt(r) == "user:q\nassistant:ok\nuser:and\n"
        assert {row.response_id for row in await m.written()} == {first["id"], second["id"]}
