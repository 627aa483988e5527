"""The lines above the tables: which server it is, how it does, what is wrong. Pure."""

from __future__ import annotations

from typing import NamedTuple

from rich.cells import cell_len

from relevo.client.visible_text import one_line
from relevo.top.figures import count, duration, milliseconds, percent
from relevo.top.findings import findings
from relevo.top.lines import Part, fitted
from relevo.top.state import Percentiles, State

Line = list[Part]
_BETWEEN = "   "


class Shown(NamedTuple):
    """How it is looked at."""

    url: str
    is_paused: bool = False
    lost: str = ""  # why no states come; empty: they do
    lost_for_s: float = 0.0


def summary(state: State, shown: Shown, width: int) -> list[Line]:
    """Three lines of what is known, and one of what is wrong if anything is."""
    lines = [_identity(state, shown, width), _joined(_latencies(state), width), _joined(_load(state), width)]
    if shown.lost:
        gone = f"✕ no answer for {duration(shown.lost_for_s)}: {shown.lost}; last values, trying again"
        lines = [[Part(part.text, "dim") for part in line] for line in lines]
        return [*lines, [Part(fitted(gone, width), "bold red")]]
    wrong = findings(state)
    if wrong:
        more = f"  (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return [*lines, [Part(fitted(f"! {wrong[0]}", max(1, width - len(more))) + more, "bold yellow")]]
    return [*lines, [Part("● all is well", "green")]]


def _joined(groups: list[Line], width: int) -> Line:
    """As many of the groups as there is room for; the important ones come first."""
    line: Line = []
    for group in groups:
        longer = [*line, Part(_BETWEEN, ""), *group] if line else group
        if sum(cell_len(part.text) for part in longer) > width:
            break
        line = longer
    return line


def _identity(state: State, shown: Shown, width: int) -> Line:
    model = state.models[0] if len(state.models) == 1 else None
    told = f"{one_line(model.name)} {model.topology}" if model is not None else f"{len(state.models)} models"
    right = f"{one_line(shown.url)}  up {duration(state.server.uptime_s)}"
    if shown.is_paused:
        right = f"PAUSED  {right}"
    left = f"relevo {one_line(state.server.version)}  {told}"
    room = width - len(right) - 1
    return [Part(fitted(left, max(10, room)), "bold"), Part(f" {right}", "bold yellow" if shown.is_paused else "")]


def _latencies(state: State) -> list[Line]:
    latency = state.over_all
    return [
        _percentiles("TTFT ms", latency.ttft),
        _percentiles("ITL ms", latency.itl),
        _figure("", f"{count(latency.output_tokens_per_s)} tok/s"),
        _figure("", f"{count(latency.requests_per_s)} req/s"),
    ]


def _percentiles(name: str, told: Percentiles) -> Line:
    line = [Part(name, "cyan")]
    for q, value_s in (("p50", told.p50_s), ("p90", told.p90_s), ("p99", told.p99_s)):
        line += [Part(f" {q} ", "dim"), Part(milliseconds(value_s), "bold")]
    return line


def _load(state: State) -> list[Line]:
    workers = state.workers
    num_ready = sum(each.is_ready for each in workers)
    return [
        _figure("workers", f"{num_ready}/{len(workers)}", "bold" if num_ready == len(workers) else "bold red"),
        _figure("in flight", count(state.requests.num_in_flight)),
        _figure("hits", percent(state.over_all.hit_fraction)),
        _figure("line", *_waiting(state)),
    ]


def _waiting(state: State) -> tuple[str, str]:
    """Of every class that waits, over all models, and the tone of it."""
    numbers: dict[str, tuple[int, float]] = {}
    for each in state.lines:
        if each.num_waiting:
            number, oldest_s = numbers.get(each.class_name, (0, 0.0))
            numbers[each.class_name] = (number + each.num_waiting, max(oldest_s, each.oldest_wait_s))
    told = [f"{number} {one_line(name)} ({duration(oldest_s)})" for name, (number, oldest_s) in numbers.items()]
    return (", ".join(told), "bold yellow") if told else ("0", "bold")


def _figure(name: str, told: str, tone: str = "bold") -> Line:
    return [*([Part(f"{name} ", "cyan")] if name else []), Part(told, tone)]
