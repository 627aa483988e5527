"""In which of two formats /metrics is written: Prometheus' text, or OpenMetrics for those that ask for it.

The same series with the same values; only OpenMetrics has a place for exemplars, the trace of a request that a bucket
counts. Source: https://prometheus.io/docs/instrumenting/exposition_formats/, the OpenMetrics specification 1.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics

_MAX_ACCEPT_CHARS = 1024  # arbitrary, several times what a scraper sends


@dataclass(frozen=True, slots=True)
class TextFormat:
    content_type: str
    write: Callable[[CollectorRegistry], bytes]


PLAIN = TextFormat("text/plain; version=0.0.4; charset=utf-8", generate_latest)
OPEN_METRICS = TextFormat(
    "application/openmetrics-text; version=1.0.0; charset=utf-8",
    partial(generate_open_metrics, escaping=ALLOWUTF8),  # every name is a plain one; other ways replace its colon
)


def format_for(accept: str) -> TextFormat:
    """`accept`: of the request. OpenMetrics where it is named and not forbidden, as Prometheus does."""
    for choice in accept[:_MAX_ACCEPT_CHARS].lower().split(","):
        name, *parameters = (part.strip() for part in choice.split(";"))
        if name == "application/openmetrics-text" and not any(_is_zero(each) for each in parameters):
            return OPEN_METRICS
    return PLAIN


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    digits = value.strip()
    return name.strip() == "q" and digits != "" and digits.strip("0") in ("", ".")
