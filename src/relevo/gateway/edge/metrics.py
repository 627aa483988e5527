"""The edge's Prometheus metrics, on a registry of their own."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from relevo.telemetry.text_format import PLAIN, TextFormat


class EdgeMetrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._answers = Counter(
            "relevo:edge_answers", "Answers passed on whole.", ("region", "status"), registry=self._registry
        )
        self._retries = Counter(
            "relevo:edge_retries", "Requests sent to another region before their first byte.", ("reason",),
            registry=self._registry,
        )  # fmt: skip
        self._ended = Counter(
            "relevo:edge_failures", "Requests that ended without a whole answer.", ("reason",), registry=self._registry
        )
        self._up = Gauge("relevo:edge_region_up", "1 while the region serves.", ("region",), registry=self._registry)
        self._connections = Gauge("relevo:http_connections", "Open connections of clients.", registry=self._registry)
        self._refused = Counter(
            "relevo:http_connections_refused", "Connections refused.", ("reason",), registry=self._registry
        )
        self._timed_out = Counter(
            "relevo:http_connections_timed_out", "Connections that kept the edge waiting.", ("waited_for",),
            registry=self._registry,
        )  # fmt: skip
        self._open = Gauge(
            "relevo:edge_requests_in_flight", "Requests open in a region.", ("region",), registry=self._registry
        )

        self._lost_traces = Counter(
            "relevo:traces_dropped", "Requests whose trace was to be recorded and is lost.", ("reason",),
            registry=self._registry,
        )  # fmt: skip
        self._num_lost_traces: dict[str, int] = {}

    def traces_dropped(self, numbers: Mapping[str, int]) -> None:
        """So far, by reason."""
        for reason, number in numbers.items():
            self._lost_traces.labels(reason).inc(number - self._num_lost_traces.get(reason, 0))
            self._num_lost_traces[reason] = number

    def answered(self, region: str, status: int) -> None:
        self._answers.labels(region, str(status)).inc()

    def retried(self, reason: str) -> None:
        self._retries.labels(reason).inc()

    def ended(self, reason: str) -> None:
        self._ended.labels(reason).inc()

    def connections_open(self, num_open: int) -> None:
        self._connections.set(num_open)

    def connection_refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def connection_timed_out(self, waited_for: str) -> None:
        self._timed_out.labels(waited_for).inc()

    def http_response(self, handler: str, method: str, status: int) -> None:
        """One that no region saw: it was not an HTTP request."""
        self.ended("invalid_http_request")

    def render(self, regions: Mapping[str, tuple[bool, int]], text: TextFormat = PLAIN) -> tuple[bytes, str]:
        """`regions`: whether each is up, and its open requests."""
        for name, (is_up, num_open) in regions.items():
            self._up.labels(name).set(is_up)
            self._open.labels(name).set(num_open)
        return text.write(self._registry), text.content_type
