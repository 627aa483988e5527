"""Composition of tracing: from OpenTelemetry's environment variables to what a gateway and an edge tell of requests.

Imports nothing of OpenTelemetry, nor what makes spans of requests, unless traces are asked for: its packages are a
third of a start.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relevo.core.errors import SettingsError
from relevo.policy.tracing.otel_environment import GRPC, TracesAsked, traces_asked
from relevo.telemetry.limited_log import LimitedLog

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from relevo.gateway.tracing.delivery import Delivery
    from relevo.gateway.tracing.open_traces import OpenTraces
    from relevo.gateway.tracing.otlp import Exporters
    from relevo.policy.tracing.words import CallTrace

log = logging.getLogger("relevo.tracing")

CLOSE_S = 0.75  # for what waits to be delivered when a process ends; arbitrary, less than `build.gateway.EXIT_S`
_SDK, _GRPC = "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc"


def check_tracing(environ: Mapping[str, str]) -> TracesAsked | None:
    """What is asked for, and that it can be done. None: no traces. Raises SettingsError."""
    asked = traces_asked(environ)
    if asked is None:
        return None
    if not _is_installed(_SDK):
        raise SettingsError(
            "traces are asked for (OTEL_...), and opentelemetry-sdk is not installed; install it with "
            "opentelemetry-exporter-otlp-proto-http, or set OTEL_SDK_DISABLED=true"
        )
    if asked.protocol == GRPC and not _is_installed(_GRPC):
        raise SettingsError(
            "OTEL_EXPORTER_OTLP_PROTOCOL=grpc needs a package that is not installed: pip install 'relevo[otlp-grpc]', "
            "or use http/protobuf"
        )
    return asked


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@dataclass(frozen=True, slots=True)
class Tracing:
    traces: OpenTraces
    _delivery: Delivery[CallTrace, ReadableSpan]
    _exporters: Exporters

    def close(self) -> None:
        """Takes `CLOSE_S` at most, whatever the collector does."""
        num_left = self._delivery.close(CLOSE_S)
        if num_left:
            log.warning("the traces of %d requests did not reach the collector before the end", num_left)
            threading.Thread(target=self._exporters.shutdown, daemon=True).start()  # some wait for what is under way


def build_tracing(asked: TracesAsked, service: str, instance_id: str) -> Tracing:
    """Starts the thread that delivers. Raises SettingsError."""
    from relevo.gateway.tracing.delivery import BatchLimits, Delivery
    from relevo.gateway.tracing.open_traces import OpenTraces
    from relevo.gateway.tracing.otlp import EnvironmentSampler, SpanMaker, limit_log, open_exporters
    from relevo.policy.tracing.request_spans import spans_of

    limited = LimitedLog(log)
    limit_log(limited, asked.secrets)
    for note in asked.notes:
        log.warning("%s", note)
    maker, exporters = SpanMaker(service, instance_id), open_exporters(asked.exporters, asked.protocol)

    def made(call: CallTrace) -> Sequence[ReadableSpan]:
        offset_ns = time.time_ns() - time.monotonic_ns()
        return maker.made(call.own, call.parent_id, spans_of(call), offset_ns)

    limits = BatchLimits(max_waiting=asked.max_waiting, max_batch=asked.max_batch, delay_s=asked.delay_s)
    delivery = Delivery(made, exporters.export, limits, limited, lambda call: max(1, len(call.prompts)))
    traces = OpenTraces(EnvironmentSampler(), delivery.put, delivery.num_dropped, continues=asked.continues)
    return Tracing(traces, delivery, exporters)
