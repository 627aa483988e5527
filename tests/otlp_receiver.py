"""A collector of traces for tests: OpenTelemetry's protocol over HTTP (protobuf) and gRPC, with faults on demand."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

WAIT_S = 20.0


@dataclass(frozen=True)
class Span:
    trace_id: str
    span_id: str
    parent_id: str  # empty: none
    name: str
    kind: int  # as in the protocol: 1 internal, 2 server, 3 client
    begins_ns: int
    ends_ns: int
    has_failed: bool
    failure: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    trace_state: str

    @property
    def service(self) -> str:
        return str(self.resource["service.name"])


@dataclass
class Collector:
    url: str = ""
    spans: list[Span] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)  # of each request
    status: int = 200  # that it answers with
    holds: threading.Event | None = None  # not None: an answer waits for it
    num_asked: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, request: ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        found = list(_spans_in(request))
        with self._changed:
            self.spans += found
            self.headers.append(headers)
            self._changed.notify_all()

    def asked(self) -> int:
        """What to answer; waits where it is to hang."""
        with self._changed:
            self.num_asked += 1
            self._changed.notify_all()
        if self.holds is not None:
            self.holds.wait()
        return self.status

    def wait_asked(self, number: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.num_asked >= number, WAIT_S), f"asked {self.num_asked} times"

    def traces(self, number: int = 1, *roots: str) -> list[list[Span]]:
        """Once so many whole ones are there, in the order in which their first spans began. Whole: one span has no
        parent here (`roots`: spans of clients), and the parents of all others are there."""

        def whole() -> list[list[Span]]:
            by_id: dict[str, list[Span]] = {}
            for span in self.spans:
                by_id.setdefault(span.trace_id, []).append(span)
            found = [spans for spans in by_id.values() if _is_whole(spans, roots)]
            return sorted(found, key=lambda spans: min(span.begins_ns for span in spans))

        with self._changed:
            self._changed.wait_for(lambda: len(whole()) >= number, WAIT_S)
            found = whole()
        assert len(found) >= number, f"{len(found)} traces of {number}: {[span.name for span in self.spans]}"
        return found


def _is_whole(spans: Sequence[Span], roots: Sequence[str]) -> bool:
    known = {span.span_id for span in spans}
    return sum(not span.parent_id or span.parent_id in roots for span in spans) == 1 and all(
        not span.parent_id or span.parent_id in known or span.parent_id in roots for span in spans
    )


def check_nesting(spans: Sequence[Span], tolerance_ns: int = 0) -> None:
    """Ids are unique, and each span lies within its parent. `tolerance_ns`: between the clocks of two processes."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans), "an id twice"
    assert len({span.trace_id for span in spans}) == 1
    for span in spans:
        assert span.begins_ns <= span.ends_ns, span
        around = by_id.get(span.parent_id)
        if around is not None:
            assert around.begins_ns - tolerance_ns <= span.begins_ns, (around, span)
            assert span.ends_ns <= around.ends_ns + tolerance_ns, (around, span)


def _spans_in(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for of_resource in request.resource_spans:
        resource = _attributes(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                assert len(span.trace_id) == 16 and len(span.span_id) == 8
                yield Span(
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    name=span.name,
                    kind=span.kind,
                    begins_ns=span.start_time_unix_nano,
                    ends_ns=span.end_time_unix_nano,
                    has_failed=span.status.code == 2,
                    failure=span.status.message,
                    attributes=_attributes(span.attributes),
                    resource=resource,
                    trace_state=span.trace_state,
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextlib.contextmanager
def http_collector(tls: ssl.SSLContext | None = None) -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = collector.asked()
            if status == 200:
                assert self.headers["content-type"] == "application/x-protobuf"
                assert self.path == "/v1/traces"
                collector.take(ExportTraceServiceRequest.FromString(body), dict(self.headers.items()))
            answer = ExportTraceServiceResponse().SerializeToString() if status == 200 else b""
            with contextlib.suppress(OSError):  # who asked is gone
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    collector.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        if collector.holds is not None:
            collector.holds.set()
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def grpc_collector() -> Iterator[Collector]:
    import grpc
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service

    collector = Collector()

    class Service(service.TraceServiceServicer):
        def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
            collector.asked()
            collector.take(request, dict(context.invocation_metadata()))
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    service.add_TraceServiceServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()


def refusing_address() -> str:
    """Of a port that nothing listens at."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


def unix_ns() -> int:
    return time.time_ns()
