"""The door of a real server: who waits, who is refused and why, whose time is over; nothing is left behind."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from stack import Stack, stack

LONG = {"max_tokens": 1900, "ignore_eos": True}  # runs until it is left


@contextlib.contextmanager
def asking(
    running: Stack, headers: dict[str, str] | None = None, **fields: Any
) -> Iterator[tuple[http.client.HTTPConnection, http.client.HTTPResponse]]:
    """A request on a connection of its own, which is closed afterwards, whatever came of it."""
    connection = http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=60)
    body = {"model": "fake", "prompt": [1, 2, 3, 4], "max_tokens": 4, "temperature": 0, **fields}
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json", **(headers or {})}
    )
    try:
        yield connection, connection.getresponse()
    finally:
        connection.close()


def refusal(running: Stack, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, str, str, Any]:
    """Status, error code, reason and Retry-After."""
    with asking(running, headers, **fields) as (_, answer):
        told = json.loads(answer.read())
        return answer.status, told["error"]["code"], answer.headers["x-relevo-dropped-reason"], answer.headers


def test_the_door_under_load() -> None:
    flags = ("--topology", "unified", "--num-kv-blocks", "512", "--max-model-len", "2048", "--fake-base-s", "0.05")
    flags = (*flags, "--max-queue-ttft-s", "600")  # longer than the streams last, else all that comes is told at once
    with stack("fake", *flags, "--max-num-seqs", "2", "--max-num-queued-reqs", "1") as running:
        with contextlib.ExitStack() as streams:
            for _ in range(2):  # both slots are taken
                _, answer = streams.enter_context(asking(running, stream=True, **LONG))
                assert answer.readline().startswith(b"data: ")
            status, code, reason, headers = refusal(running, {"x-request-timeout": "0.3"})
            assert (status, code, reason) == (429, "overloaded", "client_timeout"), "no slot can be free by then"
            assert int(headers["retry-after"]) >= 1
            status, code, reason, headers = refusal(running, {"x-relevo-class": "batch", "x-slo-ttft-ms": "200"})
            assert (status, reason) == (429, "client_ttft"), "batch takes no slot that is not there"

            gone = http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=60)
            waiting = json.dumps({"model": "fake", "prompt": [5, 6], "max_tokens": 2})
            gone.request("POST", "/v1/completions", waiting, {"content-type": "application/json"})
            while running.metric("vllm:num_requests_waiting") < 1:  # in line, or at the worker
                pass
            status, code, reason, headers = refusal(running)
            assert (status, code, reason) == (429, "overloaded", "max_queued_requests")
            assert int(headers["retry-after"]) >= 1
            assert running.metric("vllm:admission_rejections_total", reason="max_queued_requests") == 1
            gone.close()
            while running.metric("vllm:num_requests_waiting"):
                pass
        running.wait_idle(deadline_s=30.0)
        a_running_request_ends_when_its_time_is_over(running)
        headers_are_read(running)


def a_running_request_ends_when_its_time_is_over(running: Stack) -> None:
    with asking(running, {"x-request-timeout": "3"}, stream=True, **LONG) as (_, answer):
        events = [line[6:] for line in answer.read().splitlines() if line.startswith(b"data: ")]
    assert b"[DONE]" not in events
    assert json.loads(events[-1])["error"]["code"] == "deadline_exceeded"
    assert all("error" not in json.loads(event) for event in events[:-1])
    assert running.metric("relevo:deadline_misses_total", when="running") == 1
    running.wait_idle(deadline_s=30.0)


def headers_are_read(running: Stack) -> None:
    for headers in ({"x-request-timeout": "soon"}, {"x-relevo-class": "fast"}, {"x-vllm-priority": "high"}):
        with asking(running, headers) as (_, answer):
            assert answer.status == 400
            assert next(iter(headers)) in json.loads(answer.read())["error"]["message"]
    for headers in ({"x-relevo-class": "batch"}, {"x-vllm-priority": "3", "x-request-timeout": "600"}):
        with asking(running, {**headers, "x-relevo-explain": "1"}) as (_, answer):
            assert answer.status == 200
            assert answer.headers["x-relevo-route"].startswith("line ")
