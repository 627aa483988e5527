"""One /metrics of several gateways on one port: a scrape reaches any of them, and shows all.

What a gateway measured itself gets a label `gateway`. What workers report is the same in each of them and is shown
once: counters as the gateway knows them that knows most of them (one that was restarted does not know what a worker
counted before its own restart), gauges as the gateway sees them that was asked. Does not know connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Exemplar as ClientExemplar

from relevo.telemetry.metric_table import BY_NAME
from relevo.telemetry.worker_series import GATEWAY

GATEWAY_UP = "relevo:gateway_up"


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One of the observations that a bucket counts."""

    labels: dict[str, str]
    value: float
    at_unix_s: float | None

    @classmethod
    def of(cls, exemplar: ClientExemplar | None) -> Exemplar | None:
        if exemplar is None:
            return None
        return cls(
            dict(exemplar.labels), exemplar.value, None if exemplar.timestamp is None else float(exemplar.timestamp)
        )

    def for_client(self) -> ClientExemplar:
        return ClientExemplar(self.labels, self.value, self.at_unix_s)


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the text format."""

    name: str
    labels: dict[str, str]
    value: float
    exemplar: Exemplar | None = None

    @property
    def is_of_worker(self) -> bool:
        return "worker" in self.labels or self.labels.get("engine", GATEWAY) != GATEWAY

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        return self.name, tuple(sorted(self.labels.items()))


@dataclass(frozen=True, slots=True)
class SeriesFamily:
    name: str
    kind: str
    help: str
    series: tuple[Series, ...]


def scraped(registry: CollectorRegistry) -> tuple[SeriesFamily, ...]:
    return tuple(
        SeriesFamily(
            family.name,
            family.type,
            family.documentation,
            tuple(
                Series(sample.name, dict(sample.labels), sample.value, Exemplar.of(sample.exemplar))
                for sample in family.samples
            ),
        )
        for family in registry.collect()
    )


def merged(asked: str, scrapes: Mapping[str, Sequence[SeriesFamily] | None]) -> CollectorRegistry:
    """What /metrics shows. `scrapes`: by gateway; None: it did not answer. `asked`: the one that did the asking."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(asked, scrapes))
    return registry


class _Merged(Collector):
    def __init__(self, asked: str, scrapes: Mapping[str, Sequence[SeriesFamily] | None]) -> None:
        self._asked = asked
        self._scrapes = scrapes

    def describe(self) -> Iterable[Family]:
        return ()

    def collect(self) -> Iterator[Family]:
        by_name: dict[str, list[tuple[str, SeriesFamily]]] = {}
        for gateway_id in sorted(self._scrapes, key=lambda name: (name != self._asked, name)):
            for family in self._scrapes[gateway_id] or ():
                by_name.setdefault(family.name, []).append((gateway_id, family))
        for found in by_name.values():
            yield _family(found)
        up = Family(GATEWAY_UP, BY_NAME[GATEWAY_UP].help, "gauge")
        for gateway_id, scrape in sorted(self._scrapes.items()):
            up.add_sample(GATEWAY_UP, {"gateway": gateway_id}, float(scrape is not None))
        yield up


def _family(found: Sequence[tuple[str, SeriesFamily]]) -> Family:
    """Of one name, from each gateway that has it; the one that was asked comes first."""
    _, first = found[0]
    family_of_all = Family(first.name, first.help, first.kind)
    of_workers: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for gateway_id, family in found:
        for series in family.series:
            if not series.is_of_worker:
                exemplar = series.exemplar.for_client() if series.exemplar is not None else None
                own_labels = {**series.labels, "gateway": gateway_id}
                family_of_all.add_sample(series.name, own_labels, series.value, exemplar=exemplar)
            elif family.kind == "counter":
                of_workers[series.key] = max(series.value, of_workers.get(series.key, series.value))
            else:
                of_workers.setdefault(series.key, series.value)
    for (name, labels), value in of_workers.items():
        family_of_all.add_sample(name, dict(labels), value)
    return family_of_all
