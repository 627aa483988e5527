"""Spans on the wire: the SDK's exporters against a collector that speaks the real protocol, and against bad ones."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest
import trustme
from scripted_gateway import MODEL, rig, says

from otlp_receiver import Collector, check_nesting, grpc_collector, http_collector, refusing_address
from relevo.build.tracing import CLOSE_S, Tracing, build_tracing, check_tracing
from relevo.core.baton import PrefillFacts
from relevo.core.errors import SettingsError
from relevo.core.ids import WorkerId, WorkerRef
from relevo.core.outcome import COMPLETE
from relevo.core.timeline import Leg, Timeline
from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.tracing import otlp
from relevo.policy.tracing.words import CallTrace, Generation, PromptTrace

CLIENT = (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
STATE = (b"tracestate", b"congo=t61,rojo=00f0")
P0, D0 = WorkerRef(WorkerId("prefill-0"), 3), WorkerRef(WorkerId("decode-0"), 2)


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """OTEL_... variables of the process; the SDK's logger is as it was afterwards."""
    sdk = logging.getLogger("opentelemetry")

    def change(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    change(OTEL_BSP_SCHEDULE_DELAY="1")
    yield change
    sdk.handlers, sdk.propagate = [], True


def tracing() -> Tracing:
    import os

    asked = check_tracing(os.environ)
    assert asked is not None
    return build_tracing(asked, "relevo", "gateway-0")


def finish(call: CallTrace) -> CallTrace:
    """As of an answer of a split request that took 2 s."""
    begin = call.begins_ns
    at = [begin + round(step * 1e9) for step in (0.1, 0.2, 0.3, 1.0, 1.1, 1.9, 2.0)]
    facts = PrefillFacts(worker_id=P0.worker_id, num_prompt_tokens=9, num_cached_tokens=4, queue_s=0.25, prefill_s=0.25)
    leg = Leg(
        routed_at_ns=at[1],
        decode=D0,
        reason="fastest",
        is_split=True,
        granted_at_ns=at[2],
        prefill=P0,
        first_output_at_ns=at[3],
        facts=facts,
        decode_output_at_ns=at[4],
        transferred_bytes=4096,
        ended_at_ns=at[5],
    )
    timeline = Timeline(
        accepted_at_ns=begin,
        prepared_at_ns=at[0],
        let_in_at_ns=at[1],
        legs=[leg],
        first_written_at_ns=at[3] + 1000,
        last_output_at_ns=at[5],
        last_written_at_ns=at[5],
        ended_at_ns=at[6],
    )
    call.generation = Generation(
        operation="chat", model="tiny", response_id="chatcmpl-1", is_streamed=False, num_choices=1
    )
    prompt = PromptTrace(
        request_id="r0",
        timeline=timeline,
        end=COMPLETE,
        num_prompt_tokens=9,
        num_cached_tokens=4,
        num_output_tokens=5,
        finish_reasons=("stop",),
    )
    call.ended_with(COMPLETE, [prompt])
    call.ends_ns, call.status = at[6], 200
    return call


@pytest.mark.parametrize(("collector_of", "protocol"), [(http_collector, "http/protobuf"), (grpc_collector, "grpc")])
def test_a_trace_arrives_whole(
    environ: Callable[..., None], collector_of: Callable[[], AbstractContextManager[Collector]], protocol: str
) -> None:
    with collector_of() as collector:
        environ(
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_EXPORTER_OTLP_HEADERS="x-scope=team-a",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
        )
        made = tracing()
        before_ns = time.time_ns()
        call = made.traces.begin([CLIENT, STATE], "POST", "/v1/chat/completions", time.monotonic_ns())
        assert (call.own.trace_id, call.own.is_sampled) == (0x0AF7651916CD43DD8448EB211C80319C, True)
        made.traces.end(finish(call))
        (spans,) = collector.traces(1, "b7ad6b7169203331")
        made.close()
    check_nesting(spans)
    root = next(span for span in spans if span.parent_id == "b7ad6b7169203331")
    assert (root.name, root.kind, root.span_id) == ("POST /v1/chat/completions", 2, f"{call.own.span_id:016x}")
    assert root.attributes["gen_ai.usage.cache_read.input_tokens"] == 4
    assert root.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert before_ns - 10**8 < root.begins_ns < time.time_ns()
    assert {span.trace_state for span in spans} == {"congo=t61,rojo=00f0"}
    assert (root.service, root.resource["service.instance.id"]) == ("relevo", "gateway-0")
    assert root.resource["deployment.environment.name"] == "test"
    prefill = next(span for span in spans if span.name == "prefill")
    assert (prefill.service, prefill.resource["service.instance.id"]) == ("relevo-worker", "prefill-0")
    assert prefill.resource["relevo.worker.epoch"] == 3
    handoff = next(span for span in spans if span.name == "handoff")
    assert handoff.attributes["relevo.transferred_bytes"] == 4096
    assert {key.lower(): value for key, value in collector.headers[0].items()}["x-scope"] == "team-a"
    assert made.traces.num_dropped() == {"queue_full": 0, "not_taken": 0}


def test_a_collector_behind_tls_is_known_by_its_certificate(
    environ: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # these win, in the library under the exporter
        monkeypatch.delenv(name, raising=False)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with http_collector(context) as collector:
        environ(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_EXPORTER_OTLP_CERTIFICATE=str(tmp_path / "ca.pem"))
        made = tracing()
        made.traces.end(finish(made.traces.begin([], "POST", "/v1/completions", time.monotonic_ns())))
        assert collector.traces(1)
        made.close()


def test_the_environment_names_the_service_and_the_sampler(environ: Callable[..., None]) -> None:
    with http_collector() as collector:
        environ(
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_SERVICE_NAME="llm",
            OTEL_TRACES_SAMPLER="parentbased_traceidratio",
            OTEL_TRACES_SAMPLER_ARG="0",
        )
        made = tracing()
        unasked = made.traces.begin([], "POST", "/v1/completions", time.monotonic_ns())
        unwanted = made.traces.begin([(CLIENT[0], CLIENT[1][:-1] + b"0")], "POST", "/x", time.monotonic_ns())
        wanted = made.traces.begin([CLIENT], "POST", "/v1/completions", time.monotonic_ns())
        assert [call.own.is_sampled for call in (unasked, unwanted, wanted)] == [False, False, True]
        assert unwanted.own.trace_id == wanted.own.trace_id, "it is told its trace all the same"
        for call in (unasked, unwanted, wanted):
            made.traces.end(finish(call))
        (spans,) = collector.traces(1, "b7ad6b7169203331")
        made.close()
    assert {span.service for span in spans} == {"llm", "llm-worker"}
    assert {span.trace_id for span in collector.spans} == {"0af7651916cd43dd8448eb211c80319c"}


def collector_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith(("relevo.tracing", "opentel"))]


def test_a_collector_that_refuses_is_told_of_seldom_and_without_its_password(
    environ: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Red when each batch writes a line, or the address' password is in one."""
    with http_collector() as collector:
        collector.status = 400
        environ(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url.replace("http://", "http://user:p4ss@"))
        made = tracing()
        for number in range(1, 6):
            made.traces.end(finish(made.traces.begin([], "POST", "/v1/completions", time.monotonic_ns())))
            collector.wait_asked(number)
        made.close()
    assert made.traces.num_dropped() == {"queue_full": 0, "not_taken": 5}
    assert len(collector_lines(caplog)) == 1
    assert "p4ss" not in caplog.text


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_that_is_not_there_delays_no_end(
    environ: Callable[..., None], caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    environ(OTEL_EXPORTER_OTLP_ENDPOINT=refusing_address(), OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    made = tracing()
    for _ in range(3):
        made.traces.end(finish(made.traces.begin([], "POST", "/v1/completions", time.monotonic_ns())))
    ended = threading.Thread(target=made.close)
    ended.start()
    ended.join(CLOSE_S + 5.0)
    assert not ended.is_alive(), "it tries again for ten seconds"
    is_told = any("3 requests did not reach" in line for line in collector_lines(caplog))
    assert is_told or made.traces.num_dropped()["not_taken"] == 3, "some exporters give up at once"


def test_a_collector_that_hangs_delays_no_end(environ: Callable[..., None]) -> None:
    with http_collector() as collector:
        collector.holds = threading.Event()
        environ(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
        made = tracing()
        made.traces.end(finish(made.traces.begin([], "POST", "/v1/completions", time.monotonic_ns())))
        collector.wait_asked()
        ended = threading.Thread(target=made.close)
        ended.start()
        ended.join(CLOSE_S + 5.0)
        assert not ended.is_alive(), "it waits for an answer for ten seconds"


def test_an_answer_without_end_is_not_read(environ: Callable[..., None]) -> None:
    """Red when what a collector says is read and kept whole: its gateway's memory was full of it."""
    pieces: list[int] = []
    is_over = threading.Event()

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with suppress(OSError):
                while len(pieces) < 256:
                    self.request.sendall(b"x" * (1 << 20))
                    pieces.append(1)
            is_over.set()

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        environ(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.server_address[1]}")
        made = tracing()
        made.traces.end(finish(made.traces.begin([], "POST", "/v1/completions", time.monotonic_ns())))
        assert is_over.wait(CLOSE_S + 20.0)
        made.close()
        collector.shutdown()
    assert len(pieces) < 64, "no more than what waits between two processes"


async def test_a_collector_that_hangs_costs_requests_nothing(environ: Callable[..., None]) -> None:
    """Red when an answer waits for the collector, or what is lost is not counted."""
    with http_collector() as collector:
        collector.holds = threading.Event()
        environ(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_BSP_MAX_QUEUE_SIZE="2")
        made = tracing()
        gateway = rig(says("hello"), traces=made.traces)
        assert (await gateway.chat()).status_code == 200
        collector.wait_asked()
        statuses = [(await gateway.chat(stream=True)).status_code for _ in range(5)]
        assert statuses == [200] * 5
        assert made.traces.num_dropped() == {"queue_full": 3, "not_taken": 0}
        collector.holds.set()
        made.close()


async def test_nothing_that_a_client_sends_is_in_a_span(environ: Callable[..., None]) -> None:
    """Red when a text, a key, a session's name, a header, or the words of an error come in."""
    with http_collector() as collector:
        environ(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
        made = tracing()
        gateway = rig(says("s3cret answer"), traces=made.traces, api_keys=ApiKeys.of(["s3cret-key"]))
        headers = {
            "authorization": "Bearer s3cret-key",
            "x-session-id": "s3cret-session",
            "user-agent": "s3cret-agent",
            "baggage": "user=s3cret",
        }
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "s3cret question"}], "user": "s3cret-user"}
        path = "/v1/chat/completions?s3cret=query"
        assert (await gateway.post(path, asked, **headers)).status_code == 200
        assert (await gateway.post(path, asked | {"stop": ["s3cret"], "stream": True}, **headers)).status_code == 200
        assert (await gateway.post(path, asked | {"model": "s3cret-model"}, **headers)).status_code == 404
        assert (await gateway.get("/v1/responses/s3cret-response", **headers)).status_code == 404
        traces = collector.traces(4)
        made.close()
    assert {span.name for spans in traces for span in spans if not span.parent_id} == {
        "POST /v1/chat/completions",
        "GET /v1/responses/*",
    }
    assert "s3cret" not in repr(traces)


def test_what_is_not_installed_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relevo.build.tracing._is_installed", lambda module: "grpc" not in module)
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with pytest.raises(SettingsError, match=r"pip install 'relevo\[otlp-grpc\]'"):
        check_tracing(environ)
    monkeypatch.setattr("relevo.build.tracing._is_installed", lambda module: False)
    with pytest.raises(SettingsError, match="opentelemetry-sdk is not installed"):
        check_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1"})
    assert check_tracing({}) is None


def test_an_exporter_that_no_package_has_is_said_by_name() -> None:
    with pytest.raises(SettingsError, match="OTEL_TRACES_EXPORTER names zipkin"):
        otlp.open_exporters(["zipkin"], "http/protobuf")
    assert otlp.open_exporters(["console"], "http/protobuf")
