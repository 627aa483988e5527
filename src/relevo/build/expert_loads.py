"""The file of `--expert-load`: how many tokens passed each expert of each layer, as a list or as a server says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from relevo.build.documents import read_document, read_text
from relevo.core.errors import SettingsError
from relevo.telemetry.worker_metrics import EXPERT_TOKENS

_FLAG = "--expert-load"
_SERIES = EXPERT_TOKENS

Loads = tuple[tuple[float, ...], ...]  # of experts, by layer


class CountedExperts(Protocol):
    """What is asked of a model's experts."""

    @property
    def layers(self) -> Sequence[int]: ...
    @property
    def num_experts(self) -> int: ...


def read_expert_loads(path: str, experts: CountedExperts | None) -> Loads:
    """By layer with experts, as the model has them in order. Raises SettingsError."""
    if experts is None:
        raise SettingsError(f"{_FLAG} {path} is of experts, and the model has none; leave it out")
    text = read_text(path, _FLAG)
    layers = _counted(text, path) if _SERIES in text else read_document(path, _FLAG)
    num_layers, num_experts = len(experts.layers), experts.num_experts
    if not isinstance(layers, list) or len(layers) != num_layers:
        found = f"{len(layers)} of them" if isinstance(layers, list) else "no list"
        raise SettingsError(
            f"{_FLAG} {path} must be a list of {num_layers} layers with experts, and is {found}; mend it"
        )
    return tuple(_loads(layer, place, num_experts, path) for place, layer in enumerate(layers))


def _counted(exposition: str, path: str) -> list[list[int]]:
    """What a server's /metrics says, all its workers together. Raises SettingsError."""
    from prometheus_client.parser import text_string_to_metric_families  # for this kind of file only

    lines = [line for line in exposition.splitlines() if line.startswith(_SERIES + "{")]
    counts: dict[tuple[int, int], int] = {}
    models = set()
    try:
        for family in text_string_to_metric_families("\n".join((*lines, ""))):
            for sample in family.samples:
                models.add(sample.labels.get("model_name"))
                place = int(sample.labels["layer"]), int(sample.labels["expert"])
                counts[place] = counts.get(place, 0) + int(sample.value)
    except (ValueError, KeyError, OverflowError) as error:
        raise SettingsError(
            f"{_FLAG} {path}: the series {_SERIES} cannot be read: {error}; save /metrics anew"
        ) from error
    if len(models) > 1:
        raise SettingsError(
            f"{_FLAG} {path} has the series {_SERIES} of {len(models)} models; keep the lines of one of them"
        )
    layers = sorted({layer for layer, _ in counts})
    return [[counts[place] for place in sorted(counts) if place[0] == layer] for layer in layers]


def _loads(layer: Any, place: int, num_experts: int, path: str) -> tuple[float, ...]:
    if not isinstance(layer, list) or len(layer) != num_experts:
        raise SettingsError(f"{_FLAG} {path}: layer {place} of the list must have {num_experts} numbers; mend it")
    for load in layer:
        if isinstance(load, bool) or not isinstance(load, int) or not 0 <= load < 10**18:
            raise SettingsError(
                f"{_FLAG} {path}: layer {place} of the list has {str(load)[:40]!r}, which is no count of tokens; write "
                "a whole number of 0 or more"
            )
    return tuple(map(float, layer))
