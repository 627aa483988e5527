"""Errors of predictions, summed up per class, and what a rung hands to tables and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """Relative errors of one class; a positive bias: predicted slower than measured."""

    name: str
    num_rows: int
    median_error: float  # of absolute errors
    p90_error: float
    bias: float  # median of signed errors

    @staticmethod
    def of(name: str, errors: Sequence[float]) -> ErrorRow:
        sizes = sorted(map(abs, errors))
        return ErrorRow(
            name=name,
            num_rows=len(sizes),
            median_error=median(sizes),
            p90_error=sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))],
            bias=median(errors),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTable:
    title: str
    goal: str
    overall: ErrorRow
    rows: Sequence[ErrorRow]

    @staticmethod
    def of(title: str, goal: str, errors: Mapping[str, Sequence[float]]) -> ErrorTable:
        """`errors` by class, none left out."""
        return ErrorTable(
            title=title,
            goal=goal,
            overall=ErrorRow.of("all", [error for found in errors.values() for error in found]),
            rows=[ErrorRow.of(name, errors[name]) for name in sorted(errors)],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTable:
    """Figures beside those that were published or measured. Rows begin with a name."""

    title: str
    goal: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RungReport:
    rung: int
    title: str
    facts: Mapping[str, Any]  # of the data: numbers by name
    tables: Sequence[ErrorTable | ValueTable]
    notes: Sequence[str] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
