"""What a metric is: its name, kind, labels and help text, and who measures it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Origin(StrEnum):
    """Who measures."""

    REQUESTS = "requests"  # the gateway, as requests, handoffs and responses end
    LEDGER = "ledger"  # the gateway, as ledger rows are written
    WORKERS = "workers"  # reports of the workers, as of the scrape
    TENANTS = "tenants"  # the gateway, as requests end; only if asked to tell tenants apart
    CLUSTER = "cluster"  # the node process of the gateway's box; only in a cluster
    GATEWAYS = "gateways"  # the gateway that is asked, where several share a port


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str  # as on the wire; counters end in _total
    kind: Kind
    origin: Origin
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()  # upper bounds, without the infinite one
    label_values: tuple[str, ...] = ()  # of the last label, if they are known: exported as 0 from the start
