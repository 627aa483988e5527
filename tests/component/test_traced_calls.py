"""Which HTTP requests have a trace, which trace that is, and what clients are told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scripted_gateway import MODEL, Rig, rig, says

from relevo.core.errors import WorkerLost
from relevo.core.outcome import COMPLETE
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


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_what_was_asked_and_what_came_of_it_is_noted(is_streamed: bool) -> None:
    gateway, ended = traced(says("hello"), num_cached=2)
    await gateway.chat(stream=is_streamed, max_tokens=50)
    await gateway.complete(prompt=["one", "two", "three"], stream=is_streamed)
    chat, text = ended
    assert chat.generation is not None and text.generation is not None
    assert (chat.generation.operation, text.generation.operation) == ("chat", "text_completion")
    assert (chat.generation.model, chat.generation.is_streamed, chat.generation.max_tokens) == (MODEL, is_streamed, 50)
    assert chat.generation.response_id.startswith("chatcmpl-")
    (prompt,) = chat.prompts
    assert (prompt.num_cached_tokens, prompt.num_output_tokens, prompt.finish_reasons) == (2, 6, ("stop",))
    assert prompt.end is COMPLETE
    assert [each.num_prompt_tokens for each in text.prompts] == [3, 3, 5]
    assert gateway.metrics.records[0].trace_id == chat.recorded_id != ""


async def test_a_conversation_is_told_only_if_its_client_names_it_and_not_by_its_name() -> None:
    gateway, ended = traced(says("hello"))
    await gateway.chat()
    await gateway.post("/v1/chat/completions", CHAT, **{"x-session-id": "my-s3ssion"})
    await gateway.post("/v1/chat/completions", CHAT, **{"x-session-id": "my-s3ssion"})
    unnamed, first, second = (call.generation.conversation for call in ended if call.generation is not None)
    assert unnamed == ""
    assert first == second and len(first) == 32
    assert "s3ssion" not in repr(ended)


async def test_of_a_trace_that_is_not_recorded_nothing_is_noted() -> None:
    gateway, ended = traced(says("hello"), sampler=lambda parent, trace_id, name: False)
    answer = await gateway.chat()
    assert answer.headers["traceresponse"].endswith("-02")
    assert ended == []
    assert gateway.metrics.records[0].trace_id == ""


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
