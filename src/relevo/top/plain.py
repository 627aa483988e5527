"""One state as plain text, for pipes and scripts: every row, no colours, lines as long as they get. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len

from relevo.top.columns import DECISIONS, REQUESTS, Shape, all_requests, arranged, session_shape, worker_shape
from relevo.top.findings import findings, slow_factors
from relevo.top.lines import fitted
from relevo.top.state import State
from relevo.top.summary import Shown, summary

_WIDTH = 100  # of the lines above the tables
_NUM_DECISIONS = 20  # the last ones


def plain(state: State, url: str) -> Iterator[str]:
    """Lines."""
    for line in summary(state, Shown(url), _WIDTH)[:3]:
        yield "".join(part.text for part in line).rstrip()
    for sentence in findings(state):
        yield f"! {sentence}"
    tables: list[tuple[Shape[Any], list[Any]]] = [
        (worker_shape(slow_factors(state.workers)), list(state.workers)),
        (REQUESTS, all_requests(state)),
        (session_shape(state.at_unix_s), list(state.sessions)),
        (DECISIONS, list(state.decisions[-_NUM_DECISIONS:])),
    ]
    for shape, rows in tables:
        yield ""
        yield f"{shape.title}: {len(rows)}"
        if rows:
            yield from _table(shape, arranged(shape, rows, shape.first_order, ""))


def _table(shape: Shape[Any], rows: list[Any]) -> Iterator[str]:
    lines = [[column.head for column in shape.columns]]
    for row in rows:
        cells = [column.cell(row).text for column in shape.columns]
        note = shape.note(row)
        lines.append([*cells[:3], note] if note else cells)
    columns = range(len(shape.columns))
    widths = [max(cell_len(line[index]) for line in lines if len(line) == len(columns)) for index in columns]
    widths[-1] = 0
    for line in lines:
        told = [
            fitted(text, max(widths[index], cell_len(text)), is_number=shape.columns[index].is_number)
            if len(line) == len(columns)
            else fitted(text, max(widths[index], cell_len(text)))
            for index, text in enumerate(line)
        ]
        yield " ".join(told).rstrip()
