"""A rung's report as tables for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from relevo.sim.ladder.errors import ErrorRow, ErrorTable, RungReport, ValueTable


def rung_tables(report: RungReport) -> RenderableType:
    facts = [f"{name}: {value}" for name, value in report.facts.items()]
    return Group(
        f"Rung {report.rung}: {report.title}", *facts, *report.notes, *(_table(table) for table in report.tables)
    )


def _table(found: ErrorTable | ValueTable) -> Table:
    return _error_table(found) if isinstance(found, ErrorTable) else _value_table(found)


def _value_table(values: ValueTable) -> Table:
    table = Table(title=f"{values.title} (goal: {values.goal})", title_justify="left")
    for index, heading in enumerate(values.columns):
        table.add_column(heading, justify="right" if index else "left")
    for row in values.rows:
        table.add_row(*row)
    return table


def _error_table(errors: ErrorTable) -> Table:
    table = Table(title=f"{errors.title} (goal: {errors.goal})", title_justify="left")
    table.add_column("class")
    for heading in ("rows", "median error", "p90", "bias"):
        table.add_column(heading, justify="right")
    for row in errors.rows:
        _add(table, row)
    table.add_section()
    _add(table, errors.overall)
    return table


def _add(table: Table, row: ErrorRow) -> None:
    numbers = (f"{row.median_error:.1%}", f"{row.p90_error:.1%}", f"{row.bias:+.1%}")
    table.add_row(row.name, f"{row.num_rows:,}", *numbers)
