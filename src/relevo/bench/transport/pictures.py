"""`bench transport` as a report. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from relevo.bench.html.figures import Axis, Figure, Range, Ranges
from relevo.bench.html.page import Report
from relevo.bench.transport.run import TransportCost, transport_table
from relevo.telemetry.latency import Summary


def transport_page(costs: Sequence[TransportCost]) -> Report:
    told = ", ".join(f"{1e3 * cost.handoff_s.p50:.2f} ms by {cost.transport}" for cost in costs)
    size = f"{costs[0].num_bytes / 1e6:.1f} MB of KV change workers in {told}." if costs else "Nothing was handed over."
    return Report(
        title="KV transports",
        sentence=size,
        tables=transport_table(costs),
        figures=[
            _ranges("From reserving to the acknowledged seal", [(c.transport, c.handoff_s) for c in costs]),
            _ranges("From the first write to the acknowledged seal", [(c.transport, c.write_s) for c in costs]),
        ],
    )


def _ranges(title: str, rows: Sequence[tuple[str, Summary]]) -> Figure:
    return Ranges(
        title=title,
        axis=Axis(label="ms: median to the slowest", is_log=True),
        rows=[Range(name, 1e3 * told.p50, 1e3 * told.p50, 1e3 * told.max) for name, told in rows],
        unit=" ms",
    )
