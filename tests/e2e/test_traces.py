"""Traces of real processes at a collector that speaks the real protocol: a prompt and its answer on two workers, a
worker that is killed, two gateways behind an edge.

Red when a span is missing or lies outside its parent, when a failover does not show, when the trace that a client began
breaks off at the edge or at the gateway, and when what waits is lost at an orderly end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from stack import Stack, stack
from test_edge import edge

from otlp_receiver import Collector, Span, check_nesting, http_collector

FLAGS = ("fake", "--topology", "1p2d", "--gateways", "2", "--num-kv-blocks", "512", "--max-model-len", "2048")
STEPS = ("--fake-base-s", "0.01", "--share-cores")
SAME_CLOCK_NS = 2_000_000  # two processes read one clock at two moments
CLIENT_SPAN = "b7ad6b7169203331"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with http_collector() as made:
        yield made


@pytest.fixture(scope="module")
def server(collector: Collector) -> Iterator[Stack]:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "20"}
    with stack(*FLAGS, *STEPS, env=environ) as running:
        assert any(f"traces go to {collector.url}/v1/traces (http/protobuf)" in line for line in running.log)
        yield running


def ask(url: str, number: int, **headers: str) -> urllib.request.Request:
    """Each with a prompt that nothing else begins like, in a trace of its own."""
    body = {"prompt": [number] * 100, "max_tokens": 40, "ignore_eos": True, "temperature": 0, "stream": True}
    known = {"content-type": "application/json", "traceparent": f"00-{number:032x}-{CLIENT_SPAN}-01"} | headers
    return urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), known)


def trace(collector: Collector, number: int) -> list[Span]:
    """Of that request, once it is there as a whole."""
    for count in range(1, 100):
        for spans in collector.traces(count, CLIENT_SPAN):
            if spans[0].trace_id == f"{number:032x}":
                check_nesting(spans, SAME_CLOCK_NS)
                return spans
    raise AssertionError("too many traces")


def named(spans: list[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


def test_a_request_on_two_workers_is_one_trace_over_both(server: Stack, collector: Collector) -> None:
    with urllib.request.urlopen(ask(server.url, 1, **{"x-session-id": "my-session"})) as answer:
        told = answer.headers["traceresponse"].split("-")
        assert b"[DONE]" in answer.read()
    spans = trace(collector, 1)
    root = named(spans, "POST /v1/completions")
    assert (root.parent_id, [root.trace_id, root.span_id]) == (CLIENT_SPAN, told[1:3])
    assert root.attributes["gen_ai.usage.input_tokens"] == 100
    assert root.attributes["gen_ai.usage.output_tokens"] == 40
    assert root.attributes["gen_ai.response.finish_reasons"] == ["length"]
    first_s = root.attributes["gen_ai.response.time_to_first_chunk"]
    assert 0 < first_s < (root.ends_ns - root.begins_ns) / 1e9
    assert (root.attributes["relevo.num_legs"], root.has_failed) == (1, False)
    owners = {span.name: (span.service, span.resource["service.instance.id"]) for span in spans}
    decode = named(spans, "leg").attributes["relevo.decode.worker"]
    assert owners["prefill"] == ("relevo-worker", "prefill-0")
    assert owners["handoff"] == owners["decode"] == owners["room"] == ("relevo-worker", decode)
    assert named(spans, "handoff").attributes["relevo.transferred_bytes"] > 0
    assert {"prepare", "line", "first_write", "settle"} <= set(owners)
    phases = [span for span in spans if span not in (root, named(spans, "leg"))]
    total_ns = sum(span.ends_ns - span.begins_ns for span in phases)
    assert total_ns > 0.98 * (root.ends_ns - root.begins_ns), "time that no phase has"
    leg = named(spans, "leg")
    assert {span.name for span in spans if span.parent_id == leg.span_id} >= {"room", "prefill", "handoff", "decode"}
    assert "my-session" not in repr(spans)


def test_a_killed_worker_is_a_leg_that_failed(server: Stack, collector: Collector) -> None:
    with urllib.request.urlopen(ask(server.url, 2, **{"x-relevo-explain": "1"})) as answer:
        killed = re.search(r"decode-\d", answer.headers["x-relevo-route"])
        assert killed is not None
        for _ in range(10):
            answer.readline()
        os.kill(server.pids()[killed[0]], signal.SIGKILL)
        assert b"[DONE]" in answer.read()
    spans = trace(collector, 2)
    failed, *others = sorted((span for span in spans if span.name == "leg"), key=lambda span: span.begins_ns)
    assert failed.has_failed and failed.failure
    assert failed.attributes["relevo.decode.worker"] == killed[0]
    assert others and not others[-1].has_failed and others[-1].attributes["relevo.is_resumed"] is True
    root = named(spans, "POST /v1/completions")
    assert root.attributes["relevo.num_legs"] == len(others) + 1
    assert named(spans, "recover").attributes["relevo.worker.id"] == killed[0]
    assert not root.has_failed, "its client has the whole answer"


def test_a_trace_goes_on_through_an_edge(server: Stack, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """The edge tells at its end only: red when what waits then is lost."""
    server.wait_ready()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    numbers = range(10, 13)
    told: dict[int, str] = {}
    with edge(east=server.url) as url:
        for number in numbers:
            headers = {"tracestate": "a=1", "baggage": "session.id=s3cret"}
            with urllib.request.urlopen(ask(url, number, **headers)) as answer:
                told[number] = answer.headers["traceresponse"].split("-")[2]
                assert len(answer.headers.get_all("traceresponse")) == 1
                assert b"[DONE]" in answer.read()
    for number in numbers:
        spans = trace(collector, number)
        front, own = sorted((s for s in spans if s.name == "POST /v1/completions"), key=lambda span: span.begins_ns)
        assert (front.service, front.span_id, front.parent_id) == ("relevo-edge", told[number], CLIENT_SPAN)
        attempt = named(spans, "POST")
        assert (attempt.service, attempt.parent_id) == ("relevo-edge", front.span_id)
        assert attempt.attributes["relevo.region"] == "east"
        assert (own.service, own.parent_id) == ("relevo", attempt.span_id)
        assert {span.trace_state for span in spans} == {"a=1"}
        assert "s3cret" not in repr(spans)


def test_buckets_of_both_gateways_name_traces_that_are_there(server: Stack, collector: Collector) -> None:
    number = 100
    seen: set[str] = set()
    while seen < {"gateway-0", "gateway-1"}:  # the kernel hands connections out
        number += 1
        urllib.request.urlopen(ask(server.url, number)).read()
        seen |= {s.resource["service.instance.id"] for s in trace(collector, number) if s.parent_id == CLIENT_SPAN}
    request = urllib.request.Request(server.url + "/metrics", headers={"accept": "application/openmetrics-text"})
    with urllib.request.urlopen(request) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found = {
        (sample.labels["gateway"], sample.exemplar.labels["trace_id"])
        for family in families
        for sample in family.samples
        if sample.name == "vllm:time_to_first_token_seconds_bucket" and sample.exemplar is not None
    }
    assert {gateway for gateway, _ in found} == {"gateway-0", "gateway-1"}
    assert {trace_id for _, trace_id in found} <= {span.trace_id for span in collector.spans}
    assert server.metric("relevo:traces_dropped_total") == 0
