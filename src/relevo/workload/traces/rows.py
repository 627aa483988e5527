"""What all line-by-line readers share: rows with their line numbers, checked fields, and one kind of error.

A reader is a generator: lines in, `WorkloadRequest` out, one at a time. What it left out or changed it counts in a
`Tally`, whose keys are the ends of sentences ("requests without output count as one token").
"""

from __future__ import annotations

import csv
import json
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

from relevo.workload.requests import WorkloadRequest

T = TypeVar("T")
Tally = Counter[str]
Row = Mapping[str, Any]

LARGEST = 2**63 - 1  # whole number that is read
EMPTY_ANSWERS = "requests without an output token are taken to have one"


class TraceError(ValueError):
    """A line that cannot be read: what is wrong with it, and what was expected instead."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.problem = problem


class RowProblem(ValueError):
    """The same before the line is known."""


def json_rows(lines: Iterable[str], convert: Callable[[Row], T | None]) -> Iterator[T]:
    """One JSON object a line; empty lines are skipped, and so are rows that `convert` has nothing for."""

    def rows() -> Iterator[tuple[int, Row]]:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _json_object(number, line)

    return _converted(rows(), convert)


def csv_rows(lines: Iterable[str], columns: Iterable[str], convert: Callable[[Row], T | None]) -> Iterator[T]:
    """Rows under a header that names at least `columns`."""
    table = csv.DictReader(lines)
    try:
        header = table.fieldnames or ()
    except csv.Error as error:
        raise _not_csv(1, error, columns) from None
    missing = [column for column in columns if column not in header]
    if missing:
        raise TraceError(1, f"the header has no column {missing[0]!r}; expected {','.join(columns)}")

    def rows() -> Iterator[tuple[int, Row]]:
        try:
            for row in table:
                yield table.line_num, row
        except csv.Error as error:
            raise _not_csv(table.line_num, error, columns) from None

    return _converted(rows(), convert)


def integer(row: Row, key: str, least: int) -> int:
    """The field as a whole number of at least `least`."""
    value = _field(row, key)
    try:
        read = int(value)
    except (TypeError, ValueError, OverflowError):
        read = None
    if read is None or (isinstance(value, float) and value != read):
        raise RowProblem(f"{key} is {value!r}; expected a whole number")
    if read < least:
        raise RowProblem(f"{key} is {read}; expected at least {least}")
    if read > LARGEST:
        raise RowProblem(f"{key} is {str(read)[:40]}...; expected at most {LARGEST}")
    return read


def number(row: Row, key: str) -> float:
    """The field as a number of at least 0."""
    value = _field(row, key)
    try:
        read = float(value)
    except (TypeError, ValueError, OverflowError):
        raise RowProblem(f"{key} is {str(value)[:40]}; expected a number") from None
    if not 0.0 <= read < float("inf"):
        raise RowProblem(f"{key} is {value}; expected a number of at least 0")
    return read


def output_tokens(row: Row, key: str, tally: Tally) -> int:
    """The length of an answer. An empty one becomes one token: a prompt is computed to sample it."""
    num_tokens = integer(row, key, 0)
    if num_tokens == 0:
        tally[EMPTY_ANSWERS] += 1
    return max(1, num_tokens)


def whole_sessions(requests: Iterable[WorkloadRequest], tally: Tally) -> list[WorkloadRequest]:
    """`requests`, of which none waits for an answer that is not among them.

    Where earlier turns were skipped, a request comes at its recorded time; one that has none is left out.
    """
    kept: dict[int, WorkloadRequest] = {}
    for request in requests:
        if request.parent is not None and request.parent not in kept:
            if request.arrived_at_s is None and request.gap_s is not None:
                tally["requests are left out with the turns before them"] += 1
                continue
            request = replace(request, parent=None, gap_s=None)
        kept[request.row] = request
    return list(kept.values())


class ChainIds:
    """Numbers the runs of prompts whose content is known: equal numbers, equal content from the first token on."""

    def __init__(self) -> None:
        self._number_of: dict[tuple[int, Hashable], int] = {}
        self._next = count()

    def ids(self, runs: Iterable[Hashable]) -> array[int]:
        chain = array("q")
        parent = -1
        for run in runs:
            key = (parent, run)
            known = self._number_of.get(key)
            parent = self._number_of.setdefault(key, next(self._next)) if known is None else known
            chain.append(parent)
        return chain


def _converted(rows: Iterable[tuple[int, Row]], convert: Callable[[Row], T | None]) -> Iterator[T]:
    for line, row in rows:
        try:
            converted = convert(row)
        except RowProblem as problem:
            raise TraceError(line, str(problem)) from None
        if converted is not None:
            yield converted


def _not_csv(line: int, error: csv.Error, columns: Iterable[str]) -> TraceError:
    return TraceError(line, f"not CSV ({error}); expected {','.join(columns)}")


def _json_object(line_number: int, line: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(line_number, f"not JSON ({error}); expected one JSON object a line") from None
    if not isinstance(row, dict):
        raise TraceError(line_number, f"{line.strip()[:40]} is no JSON object; expected one a line")
    return row


def _field(row: Row, key: str) -> Any:
    value = row.get(key)
    if value is None:
        raise RowProblem(f"{key} is missing; expected it in every row")
    return value
