"""What agents and other clients send is answered, and stands in the prompt as it was said.

The requests are shapes of recorded ones (client_requests); the recorded ones themselves are replayed where they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_requests import MESSAGES, PLAIN, REQUESTS, RESPONSES, SCORED, ClientRequest
from in_process_stack import in_process_stack
from scripted_gateway import (
    TOKENIZER,
    RecordingMetrics,
    Rig,
    ScriptedGenerator,
    events,
    rig,
    says,
    scripted_app,
    served_model,
)

from relevo.build.fake_tokenizer import fake_tokenizer_files
from relevo.gateway.text.chat_template import ModelTemplates
from relevo.gateway.text.served_models import ServedModels

TEMPLATES = ModelTemplates.from_files(fake_tokenizer_files())
INSTRUCTIONS = "</tool_call>\n"  # the last line of what the template says of tools
RECORDED = Path(__file__).parents[3] / "shared/data/clients"
MAX_MODEL_LEN = 200_000
FAILED = ('"error":{', "event: error", "response.failed")


def gateway(**context: Any) -> Rig:
    return rig(says("ok"), chat_template=TEMPLATES, max_model_len=MAX_MODEL_LEN, **context)


async def prompt_of(r: Rig, request: ClientRequest) -> str:
    """Of a request that was answered; a stream to its end."""
    answer = await r.post(request.path, request.body, **request.headers)
    assert answer.status_code == 200, answer.text
    assert not any(mark in answer.text for mark in FAILED)
    if request.path.startswith("/v1/chat") and request.body.get("stream"):
        payloads = events(answer)
        assert payloads.pop() == "[DONE]"
        assert bool(payloads[-1].get("usage")) is ("stream_options" in request.body)
    return TOKENIZER.decode(r.generator.requests[-1].prompt_token_ids)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: each.client)
async def test_a_conversation_is_rendered_as_it_was_said(request_: ClientRequest) -> None:
    """Red when a null, a part, an unknown field or a missing content ends a session, or gets into the prompt."""
    prompt = await prompt_of(gateway(), request_)
    if not request_.tools:
        assert prompt == request_.rendered
        return
    shown, _, conversation = prompt.partition(INSTRUCTIONS)
    assert conversation == request_.rendered
    told = [json.loads(line)["function"] for line in shown.splitlines() if line.startswith('{"type"')]
    assert [(each["name"], each["parameters"]) for each in told] == request_.tools


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: each.client)
async def test_a_client_is_known_by_what_it_sends_of_its_session(request_: ClientRequest) -> None:
    """Red when a header that a client sends is not read, or when a later turn is another session."""
    r = gateway()
    headers = {**request_.headers, "x-relevo-explain": "1"}
    bodies = [request_.with_turns(len(request_.turns) - 2), request_.body]
    answers = [await r.post(request_.path, body, **headers) for body in bodies]
    told = {answer.headers["x-relevo-route"].rpartition(" | ")[2] for answer in answers}
    assert told == {f"session {request_.session}"}
    assert len({request.session for request in r.generator.requests}) == 1


async def test_a_later_turn_begins_with_the_earlier_one() -> None:
    """But for the answer's beginning. Red when what changes from turn to turn gets into the prompt, before its end."""
    for request in (MESSAGES, RESPONSES):
        r = gateway()
        body = json.loads(json.dumps(request.body).replace("cch=01234", "cch=98765"))
        for sent in (request.with_turns(len(request.turns) - 2), body):
            await r.post(request.path, sent, **request.headers)
        earlier, later = (TOKENIZER.decode(each.prompt_token_ids) for each in r.generator.requests)
        assert later.startswith(earlier.removesuffix("assistant: "))


async def test_completions_of_a_test_suite() -> None:
    r = gateway()
    assert (await r.post("/v1/completions", PLAIN)).json()["choices"][0]["text"] == "ok"
    assert (await r.get("/tokenizer_info")).status_code == 200
    assert [score is None for score in await scores_of(SCORED)] == [True, False, False, False]


async def scores_of(body: dict[str, Any]) -> list[float | None]:
    """Of the tokens of a prompt and an answer, which only an engine can tell."""
    async with in_process_stack({"u": "unified"}, num_gateways=1) as stack:
        served = served_model(stack.gateways[0].dispatcher, names=(body["model"],))
        app = scripted_app(ServedModels([served]), RecordingMetrics())
        answer = await Rig(ScriptedGenerator(), RecordingMetrics(), app).post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    told: list[float | None] = answer.json()["choices"][0]["logprobs"]["token_logprobs"]
    return told


# ---- recorded --------------------------------------------------------------------------------------------------------


def recorded() -> Iterator[Any]:
    for path in sorted(RECORDED.glob("*/*.json")):
        yield pytest.param(path, id=f"{path.parent.name}/{path.stem}")


NONE = [pytest.param(None, marks=pytest.mark.skip(f"no recorded requests in {RECORDED}"))]


@pytest.mark.parametrize("path", [*recorded()] or NONE)
async def test_a_recorded_request_is_answered(path: Path) -> None:
    """As it was sent, to the byte of its values. Red when a shape that is not among ours is refused."""
    sent = json.loads(path.read_text(encoding="utf-8"))  # noqa: ASYNC240  # nothing else runs
    body = sent.get("body") or {}
    if body.get("echo") and body.get("logprobs"):
        ids = [token_id % 256 for token_id in body["prompt"][0]]  # as many as the fake model has
        assert len(await scores_of(body | {"prompt": [ids]})) == len(ids) + 1
        return
    r = gateway(names=("smollm2",))
    hop = {"host", "connection", "content-length", "accept-encoding", "transfer-encoding"}
    headers = {name: value for name, value in sent["headers"].items() if name.lower() not in hop}
    async with r.client(**headers) as client:
        answer = await client.request(sent["method"], sent["path"], json=sent.get("body"))
    assert answer.status_code == 200, answer.text
    assert not any(mark in answer.text for mark in FAILED)
