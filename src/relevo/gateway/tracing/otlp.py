"""Spans as OpenTelemetry's SDK has them, and its exporters and samplers, by its standard environment variables.

The only module that imports OpenTelemetry; it is imported where traces are asked for, and nowhere else. Spans are made
as `ReadableSpan`s and not by a `Tracer`: ids, the sampler's decision and times were there before, several processes'
spans come from one, and it takes a tenth of the time. Logging of the SDK goes through one `LimitedLog`.

Source: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context
from opentelemetry.trace import SpanKind as OtelSpanKind
from opentelemetry.trace.status import Status, StatusCode

from relevo import __version__
from relevo.core.errors import SettingsError
from relevo.core.ids import WorkerRef
from relevo.policy.tracing.trace_context import TraceContext
from relevo.policy.tracing.words import PlannedSpan, SpanKind
from relevo.telemetry.limited_log import LimitedLog

SCOPE = InstrumentationScope("relevo", __version__)
MAX_KNOWN_WORKERS = 1024  # arbitrary: of each incarnation one resource is kept
EXPORTER_GROUP = "opentelemetry_traces_exporter"
_KINDS = {
    SpanKind.SERVER: OtelSpanKind.SERVER,
    SpanKind.CLIENT: OtelSpanKind.CLIENT,
    SpanKind.INTERNAL: OtelSpanKind.INTERNAL,
}
_CREDENTIALS = (  # who names a provider of credentials has its session
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
_UNSET = Status(StatusCode.UNSET)


class EnvironmentSampler:
    """Implements gateway.tracing.open_traces.Sampler: OTEL_TRACES_SAMPLER and its argument."""

    def __init__(self) -> None:
        self._sampler = TracerProvider(resource=Resource.get_empty(), shutdown_on_exit=False).sampler

    def __call__(self, parent: TraceContext | None, trace_id: int, name: str) -> bool:
        context = set_span_in_context(NonRecordingSpan(_context_of(parent))) if parent is not None else None
        result = self._sampler.should_sample(context, trace_id, name, OtelSpanKind.SERVER)
        return result.decision is Decision.RECORD_AND_SAMPLE

    def __str__(self) -> str:
        return str(self._sampler.get_description())


class SpanMaker:
    """Of planned spans those of the SDK. `service`: the name of this process's, unless the environment names it; its
    workers' is that with `-worker`."""

    def __init__(self, service: str, instance_id: str) -> None:
        named = Resource.create({"service.version": __version__})
        attributes = dict(named.attributes)
        is_named = not str(attributes.get("service.name", "unknown_service")).startswith("unknown_service")
        self._service = str(attributes["service.name"]) if is_named else service
        own = {"service.name": self._service}
        if "service.instance.id=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
            own["service.instance.id"] = instance_id
        self._own = named.merge(Resource(own))
        self._workers: dict[WorkerRef, Resource] = {}

    def made(
        self, own: TraceContext, parent_id: int, planned: Sequence[PlannedSpan], offset_ns: int
    ) -> list[ReadableSpan]:
        """`own`: of the first one. `offset_ns`: from the gateway's clock to Unix time."""
        contexts: list[SpanContext] = []
        spans: list[ReadableSpan] = []
        first = _context_of(own, is_remote=False)
        remote = _context_of(own._replace(span_id=parent_id)) if parent_id else None
        for span in planned:
            if span.parent is None:
                context, parent = first, remote
            else:
                parent = contexts[span.parent]
                span_id = span.own_id or random.getrandbits(64) or 1
                context = SpanContext(first.trace_id, span_id, False, first.trace_flags, first.trace_state)
            contexts.append(context)
            spans.append(
                ReadableSpan(
                    span.name,
                    context=context,
                    parent=parent,
                    resource=self._own if span.worker is None else self._of_worker(span.worker),
                    attributes=span.attributes,
                    kind=_KINDS[span.kind],
                    status=_UNSET if span.failure is None else Status(StatusCode.ERROR, span.failure or None),
                    start_time=span.begins_ns + offset_ns,
                    end_time=span.ends_ns + offset_ns,
                    instrumentation_scope=SCOPE,
                )
            )
        return spans

    def _of_worker(self, worker: WorkerRef) -> Resource:
        known = self._workers.get(worker)
        if known is None:
            if len(self._workers) >= MAX_KNOWN_WORKERS:
                self._workers.clear()
            own = {"service.name": f"{self._service}-worker", "service.instance.id": worker.worker_id}
            known = self._own.merge(Resource({**own, "relevo.worker.epoch": worker.epoch}))
            self._workers[worker] = known
        return known


def _context_of(context: TraceContext, *, is_remote: bool = True) -> SpanContext:
    flags = (TraceFlags.SAMPLED if context.is_sampled else 0) | (2 if context.is_random else 0)
    state = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(context.trace_id, context.span_id, is_remote, TraceFlags(flags), state)


class Exporters:
    """Where spans go: one exporter, or several that each get all."""

    def __init__(self, exporters: Sequence[SpanExporter]) -> None:
        self._exporters = exporters

    def export(self, spans: Sequence[ReadableSpan]) -> bool:
        """On the thread that may wait. False: one of them has not taken them."""
        results = [exporter.export(spans) for exporter in self._exporters]
        return all(result is SpanExportResult.SUCCESS for result in results)

    def shutdown(self) -> None:
        """What waits to try again does not."""
        for exporter in self._exporters:
            exporter.shutdown()


def open_exporters(names: Sequence[str], protocol: str) -> Exporters:
    """Of OTEL_TRACES_EXPORTER's names. Raises SettingsError."""
    return Exporters([_open(name, protocol) for name in names])


def _open(name: str, protocol: str) -> SpanExporter:
    try:
        return _exporter_class(name, protocol)()
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(
            f"the exporter of traces {name} cannot be made: {error}; see its OTEL_... variables"
        ) from error


def _exporter_class(name: str, protocol: str) -> Callable[[], SpanExporter]:
    if name == "otlp" and protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter
    if name == "otlp":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        from relevo.gateway.tracing.short_answers import session

        return (
            OTLPSpanExporter if any(map(os.environ.get, _CREDENTIALS)) else partial(OTLPSpanExporter, session=session())
        )
    found = next(iter(entry_points(group=EXPORTER_GROUP, name=name)), None)
    if found is None:
        raise SettingsError(f"OTEL_TRACES_EXPORTER names {name}, and no installed package has it; use otlp or none")
    exporter: Callable[[], SpanExporter] = found.load()
    return exporter


class _ThroughLimit(logging.Handler):
    def __init__(self, limited: LimitedLog, secrets: Mapping[str, str]) -> None:
        super().__init__(logging.WARNING)
        self._limited = limited
        self._secrets = secrets

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        for secret, shown in self._secrets.items():
            message = message.replace(secret, shown)
        self._limited.warning("collector", message)


def limit_log(limited: LimitedLog, secrets: Mapping[str, str]) -> None:
    """What the SDK says goes into our log, at most one line in an interval. `secrets`: what is shown instead."""
    sdk = logging.getLogger("opentelemetry")
    sdk.handlers = [_ThroughLimit(limited, secrets)]
    sdk.propagate = False
