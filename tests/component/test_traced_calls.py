"""Which HTTP requests have a trace, which trace that is, and what clients are told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scripted_gateway import MODEL, Rig, rig, says

from relevo.core.errors import WorkerLost
from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.tracing.open_traces import OpenTraces
from relevo.policy.tracing.trace_context import TraceContext
from relevo.policy.tracing.words import CallTrace

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def traced(
    script: Any = (), sampler: Callable[[TraceContext | None, int, str], bool] | None = None, **context: Any
) -> tuple[Rig, list[CallTrace]]:
    ended: list[CallTrace] = []

    def from_clients(parent: TraceContext | None, trace_id: int, name: str) -> bool:
        return parent is None or parent.is_sampled

    traces = OpenTraces(sampler or from_clients, ended.append, dict)
    return rig(script, traces=traces, **context), ended


async def test_a_request_has_one_trace_and_its_client_is_told() -> None:
    gateway, ended = traced(says("hello"))
    answer = await gateway.chat()
    (call,) = ended
    told = f"00-{call.own.trace_id:032x}-{call.own.span_id:016x}-03"
    assert answer.headers["traceresponse"] == told
    assert answer.headers["server-timing"] == f'trace;desc="{told}"'
    assert (call.method, call.route, call.status, call.error) == ("POST", "/v1/chat/completions", 200, "")
    assert call.parent_id == 0 and call.begins_ns < call.ends_ns and not call.has_failed
    await gateway.chat(stream=True)
    assert ended[1].own.trace_id != call.own.trace_id


@pytest.mark.parametrize(("flags", "is_recorded"), [("00", False), ("01", True)])
async def test_a_clients_trace_is_continued_as_it_wants(flags: str, is_recorded: bool) -> None:
    gateway, ended = traced(says("hello"))
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-{flags}", "tracestate": "a=1", "baggage": "session.id=7"}
    answer = await gateway.post("/v1/chat/completions", CHAT, **headers)
    version, trace_id, span_id, told_flags = answer.headers["traceresponse"].split("-")
    assert (version, trace_id, told_flags) == ("00", TRACE, flags)
    assert span_id != SPAN
    assert len(ended) == is_recorded
    if is_recorded:
        assert (ended[0].parent_id, ended[0].own.state) == (int(SPAN, 16), "a=1")


async def test_an_invalid_parent_begins_a_trace_of_its_own() -> None:
    gateway, ended = traced(says("hello"))
    await gateway.post("/v1/chat/completions", CHAT, traceparent=f"00-{'0' * 32}-{SPAN}-01", tracestate="a=1")
    (call,) = ended
    assert (call.parent_id, call.own.state) == (0, "")
    assert call.own.trace_id


async def test_errors_are_told_by_their_codes_and_not_by_their_words() -> None:
    gateway, ended = traced()
    assert (await gateway.post("/v1/chat/completions", CHAT | {"model": "s3cret"})).status_code == 404
    assert (ended[0].status, ended[0].error, ended[0].has_failed) == (404, "model_not_found", False)
    gateway, ended = traced([WorkerLost("decode-0 is gone")])
    assert (await gateway.chat()).status_code >= 500
    assert ended[0].error == "worker_lost" and ended[0].has_failed
    assert "s3cret" not in repr(ended)


async def test_probes_and_requests_without_a_key_or_a_path_have_none() -> None:
    """Red when a stranger can fill the queue of traces."""
    gateway, ended = traced(says("hello"), api_keys=ApiKeys.of(["k3y"]))
    for path in ("/health", "/ready", "/metrics", "/version", "/"):
        assert "traceresponse" not in (await gateway.get(path)).headers
    assert (await gateway.chat()).status_code == 401
    assert (await gateway.get("/v1/nothing", authorization="Bearer k3y")).status_code == 404
    assert ended == []
    assert (await gateway.get("/v1/models", authorization="Bearer k3y")).status_code == 200
    assert [call.route for call in ended] == ["/v1/models"]


async def test_without_traces_nothing_is_told() -> None:
    answer = await rig(says("hello")).post("/v1/chat/completions", CHAT, traceparent=f"00-{TRACE}-{SPAN}-01")
    assert not {"traceresponse", "server-timing"} & set(answer.headers)
