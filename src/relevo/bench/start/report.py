"""`bench start` as a table and as a report. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.table import Table

from relevo.bench.html.figures import Axis, Bar, Bars, Range, Ranges
from relevo.bench.html.page import Report
from relevo.bench.start.run import StartCost


def start_table(costs: Sequence[StartCost]) -> Table:
    """One row per topology: medians, and the least and the most."""
    table = Table(title="From the command to the first token: median (least to most), s", title_justify="left")
    kinds = list(dict.fromkeys(kind for cost in costs for kind in cost.cpu_s))
    for heading in ("topology", "first token", *(f"CPU: {kind}" for kind in kinds)):
        table.add_column(heading, justify="left" if heading == "topology" else "right")
    for cost in costs:
        spent = (f"{median(cost.cpu_s[kind]):.2f}" if kind in cost.cpu_s else "-" for kind in kinds)
        waited_s = cost.first_token_s
        first = f"{median(waited_s):.2f} ({min(waited_s):.2f}-{max(waited_s):.2f})"
        table.add_row(cost.topology, first, *spent)
    return table


def start_page(costs: Sequence[StartCost]) -> Report:
    waits = [
        Range(cost.topology, median(cost.first_token_s), min(cost.first_token_s), max(cost.first_token_s))
        for cost in costs
    ]
    spent = [Bar(cost.topology, {kind: median(values) for kind, values in cost.cpu_s.items()}) for cost in costs]
    return Report(
        title="From the command to the first token",
        sentence=_sentence(costs),
        tables=start_table(costs),
        figures=[
            Ranges(title="Command to first token", axis=Axis(label="s", from_zero=True), rows=waits, unit=" s"),
            Bars(title="Processor time until then", axis=Axis(label="s"), rows=spent, unit=" s"),
        ],
    )


def _sentence(costs: Sequence[StartCost]) -> str:
    if not costs:
        return "No start came to its first token."
    return "; ".join(f"{cost.topology} takes {median(cost.first_token_s):.2f} s" for cost in costs) + "."
