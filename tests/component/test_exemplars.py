"""/metrics in OpenMetrics, for those that ask for it: the same series, and traces of requests that buckets count."""

from __future__ import annotations

import re
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families as read_plain
from scripted_gateway import rig

from relevo.core.baton import PrefillFacts
from relevo.core.events import StepCounters, WorkerLoad
from relevo.core.ids import RequestId, WorkerId
from relevo.core.kv import KVGroup, KVLayout
from relevo.orchestrator.ports import EngineStatus, LineStatus, WorkerStatus
from relevo.telemetry.latency import RequestRecord, RequestTimes
from relevo.telemetry.metrics import GatewayMetrics
from relevo.telemetry.text_format import OPEN_METRICS, PLAIN, format_for

MODEL = "tiny"
TRACES = ["0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736"]
PROMETHEUS = (  # what version 2 and 3 of it send
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
STATUS = EngineStatus(
    ready=True,
    reason="",
    workers=(
        WorkerStatus(
            worker_id="w0",
            role="decode",
            ready=True,
            epoch=1,
            pid=1,
            load=WorkerLoad(num_total_blocks=4, num_free_blocks=4),
            counters=StepCounters(num_steps=3, num_refused_connections={"kv/secret": 1}),
            layout=KVLayout("hash", "float32", 16, (KVGroup.full(range(2), 2, 8),)),
        ),
    ),
    lines=(LineStatus(name="batch", num_waiting=2, oldest_wait_s=1.5),),
)


def record(trace_id: str, *token_at_ms: int) -> RequestRecord:
    return RequestRecord(
        request_id=RequestId("r"),
        model=MODEL,
        times=RequestTimes(0, [at_ms * 10**6 for at_ms in token_at_ms], (token_at_ms[-1] + 1) * 10**6),
        num_prompt_tokens=40,
        num_cached_tokens=16,
        num_output_tokens=len(token_at_ms),
        num_longest_output_tokens=len(token_at_ms),
        n=1,
        max_tokens=64,
        finish_reason="stop",
        outcome="finished",
        facts=PrefillFacts(
            worker_id=WorkerId("w0"), num_prompt_tokens=40, num_cached_tokens=16, queue_s=0.25, prefill_s=0.5
        ),
        trace_id=trace_id,
    )


def metrics_of(*records: RequestRecord) -> GatewayMetrics:
    metrics = GatewayMetrics([MODEL])
    for each in records:
        metrics.request_finished(each)
    return metrics


def exemplars(body: bytes, name: str) -> dict[str, tuple[str, float]]:
    """By the upper bound of the bucket: trace and value."""
    return {
        sample.labels["le"]: (sample.exemplar.labels["trace_id"], sample.exemplar.value)
        for family in read_open_metrics(body.decode())
        for sample in family.samples
        if sample.name == f"{name}_bucket" and sample.exemplar is not None
    }


def test_a_bucket_names_a_trace_that_it_counts() -> None:
    """Red when the trace of another request is named, or one that is not recorded."""
    metrics = metrics_of(record(TRACES[0], 3, 33), record(TRACES[1], 700, 720, 790), record("", 30, 300))
    body, content_type = metrics.render({MODEL: STATUS}, OPEN_METRICS)
    assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert exemplars(body, "vllm:time_to_first_token_seconds") == {
        "0.005": (TRACES[0], 0.003),
        "0.75": (TRACES[1], 0.7),
    }
    worst_gaps = {"0.05": (TRACES[0], pytest.approx(0.03)), "0.075": (TRACES[1], pytest.approx(0.07))}
    assert exemplars(body, "vllm:inter_token_latency_seconds") == worst_gaps
    for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time"):
        assert {trace for trace, _ in exemplars(body, f"vllm:{name}_seconds").values()} <= set(TRACES), name
        assert exemplars(body, f"vllm:{name}_seconds"), name


def test_both_formats_show_the_same_series() -> None:
    metrics = metrics_of(record(TRACES[0], 3, 33))
    plain, opened = (metrics.render({MODEL: STATUS}, text)[0].decode() for text in (PLAIN, OPEN_METRICS))
    assert opened.endswith("# EOF\n")
    found = [
        {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}
        for families in (read_plain(plain), read_open_metrics(opened))
    ]
    assert found[0] == found[1]


def test_the_plain_format_does_not_know_of_traces() -> None:
    """Byte for byte, but for the times at which series began: red when an exemplar or a series comes in with traces."""
    times = re.compile(rb"(_created.*) \S+\n")
    bodies = [metrics_of(record(trace, 3, 33)).render({MODEL: STATUS}, PLAIN)[0] for trace in (TRACES[0], "")]
    assert times.sub(rb"\1\n", bodies[0]) == times.sub(rb"\1\n", bodies[1])
    assert b"trace_id" not in bodies[0]


def test_the_exemplars_of_several_gateways_stay_with_their_buckets() -> None:
    one, other = metrics_of(record(TRACES[0], 3)), metrics_of(record(TRACES[1], 3))
    others = {"gateway-1": other.scrape({MODEL: STATUS}), "gateway-2": None}
    body, _ = one.render_merged({MODEL: STATUS}, "gateway-0", others, OPEN_METRICS)
    found = {
        sample.labels["gateway"]: sample.exemplar.labels["trace_id"]
        for family in read_open_metrics(body.decode())
        for sample in family.samples
        if sample.name == "vllm:time_to_first_token_seconds_bucket" and sample.exemplar is not None
    }
    assert found == {"gateway-0": TRACES[0], "gateway-1": TRACES[1]}
    plain, _ = one.render_merged({MODEL: STATUS}, "gateway-0", others)
    assert b"trace_id" not in plain


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=1.0.0", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text; q = 0.000", False),
        ("application/openmetrics-text;q=0.001", True),
        ("application/openmetrics-textual", False),
        ("x" * 2000 + ",application/openmetrics-text", False),
        (";;,,q=,application/openmetrics-text;;q", True),
    ],
)
def test_a_client_that_names_it_is_answered_in_it(accept: str, is_open: bool) -> None:
    assert format_for(accept) is (OPEN_METRICS if is_open else PLAIN)


async def test_a_scraper_is_answered_in_the_format_that_it_asks_for() -> None:
    gateway = rig()
    for headers, kind in (({}, PLAIN), ({"accept": PROMETHEUS}, OPEN_METRICS)):
        async with gateway.client() as client:
            answer: Any = await client.get("/metrics", headers=headers)
        assert answer.headers["content-type"] == kind.content_type
        assert answer.headers["vary"] == "accept"
