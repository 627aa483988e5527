"""Whatever a client sends: a clear error with the right status, no worker harmed, good traffic undisturbed."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from stack import Stack

GOOD = {"prompt": [1, 2, 3, 4], "max_tokens": 4, "temperature": 0}


def send(stack: Stack, path: str, body: bytes, content_type: str = "application/json") -> tuple[int, Any]:
    request = urllib.request.Request(stack.url + path, data=body, headers={"content-type": content_type})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "fake", **GOOD, **fields}).encode()


CASES: dict[str, tuple[int, str, bytes]] = {
    "no json": (400, "JSON", b"{"),
    "empty body": (400, "", b""),
    "a list": (400, "", b"[]"),
    "invalid utf-8": (400, "", b'{"model":"fake","prompt":"\xff\xfe"}'),
    "lone surrogate": (400, "", b'{"model":"fake","prompt":"\\ud800"}'),
    "ten megabytes": (413, "", body(prompt="x" * 10_000_000)),
    "unknown model": (404, "does not exist", body(model="gpt-9")),
    "empty prompt": (400, "prompt", body(prompt="")),
    "empty token list": (400, "prompt", body(prompt=[])),
    "prompt of a wrong type": (400, "prompt", body(prompt={"a": 1})),
    "token id outside the vocabulary": (400, "prompt", body(prompt=[1, 99_999])),
    "negative token id": (400, "prompt", body(prompt=[-1])),
    "too long": (400, "maximum context length is 2048 tokens", body(prompt=[1] * 3000)),
    "negative max_tokens": (400, "max_tokens", body(max_tokens=-5)),
    "max_tokens as text": (400, "max_tokens", body(max_tokens="many")),
    "temperature below zero": (400, "temperature", body(temperature=-1)),
    "top_p of zero": (400, "top_p", body(top_p=0)),
    "n of zero": (400, "n", body(n=0)),
    "n of a million": (400, "n", body(n=1_000_000)),
    "stop of a wrong type": (400, "stop", body(stop=5)),
    "seed as text": (400, "seed", body(seed="lucky")),
    "bias of a foreign token": (400, "logit_bias", body(logit_bias={"99999": 1})),
    "not a number": (400, "", b'{"model":"fake","prompt":[1],"temperature":NaN}'),
    "deep nesting": (400, "", b'{"model":"fake","prompt":' + b"[" * 5000 + b"]" * 5000 + b"}"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_request_gets_a_clear_error(split: Stack, case: str) -> None:
    status, said, raw = CASES[case]
    got, answer = send(split, "/v1/completions", raw)
    assert got == status, answer
    assert said in answer["error"]["message"] or said == answer["error"]["param"]
    assert set(answer["error"]) >= {"message", "type", "param", "code"}


def test_wrong_content_type_path_and_method(split: Stack) -> None:
    assert send(split, "/v1/completions", body(), "text/plain")[0] in (400, 415)
    assert send(split, "/v1/nothing", body())[0] == 404
    assert send(split, "/v1/models", body())[0] == 405


def test_workers_are_unharmed(split: Stack) -> None:
    """Runs all the bad requests between good ones: same processes, same answers, nothing held."""
    before, pids = split.post("/v1/completions", {"model": "fake", **GOOD})["choices"], split.pids()
    for _status, _said, raw in CASES.values():
        send(split, "/v1/completions", raw)
        assert split.post("/v1/completions", {"model": "fake", **GOOD})["choices"] == before
    split.wait_idle()
    assert split.pids() == pids
    assert split.metric("relevo:worker_restarts_total") == 0
