"""Counters that tell tenants apart by name, for operators who ask for it.

Owns how many names may become labels: the first ones to end a request get their own, all later ones share one. Names
are any text, and private; without the setting none of this is registered.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from relevo.telemetry.latency import RequestRecord
from relevo.telemetry.metric import Origin
from relevo.telemetry.metric_table import TABLE

MAX_TENANTS = 1000  # each is a few series per model; arbitrary
OTHER = "other"


class TenantCounters:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            metric.name: Counter(metric.name, metric.help, metric.labels, registry=registry)
            for metric in TABLE
            if metric.origin is Origin.TENANTS
        }
        self._known: set[str] = set()

    def request_finished(self, record: RequestRecord) -> None:
        """Once per admitted request."""
        labels = {"model_name": record.model, "tenant": self._label(record.tenant)}
        self._counters["relevo:tenant_requests_total"].labels(**labels, outcome=record.outcome).inc()
        numbers = {
            "relevo:tenant_prompt_tokens_total": record.num_prompt_tokens if record.facts is not None else 0,
            "relevo:tenant_cached_tokens_total": record.num_cached_tokens,
            "relevo:tenant_output_tokens_total": record.num_output_tokens,
        }
        for name, number in numbers.items():
            self._counters[name].labels(**labels).inc(number)

    def _label(self, tenant: str) -> str:
        if tenant not in self._known:
            if len(self._known) == MAX_TENANTS:
                return OTHER
            self._known.add(tenant)
        return tenant
