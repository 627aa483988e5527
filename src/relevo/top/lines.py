"""A row of a table as one line of cells of the terminal, cut and padded to the width of each column. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size

from relevo.top.columns import Cell, Column, Shape

_Row = TypeVar("_Row")
_CUT = "…"
_NUM_KEPT = 3  # columns beside a note


class Part(NamedTuple):
    text: str
    tone: str


def widths(shape: Shape[_Row], screen_width: int) -> list[tuple[Column[_Row], int]]:
    """The columns that a screen of that width has, and how wide each is. A blank is between two of them."""
    columns = [each for each in shape.columns if each.min_screen <= screen_width]
    left = screen_width - sum(each.width for each in columns) - (len(columns) - 1)
    return [(each, each.width or max(4, left)) for each in columns]


def heads(shape: Shape[_Row], screen_width: int, order: str) -> Iterator[Part]:
    """That of the column by which rows are sorted has a tone."""
    for index, (column, width) in enumerate(widths(shape, screen_width)):
        if index:
            yield Part(" ", "")
        text = fitted(column.head, width, is_number=column.is_number)
        yield Part(text, "reverse" if order and column.head == order else "")


def parts(shape: Shape[_Row], row: _Row, screen_width: int) -> Iterator[Part]:
    columns, note = widths(shape, screen_width), shape.note(row)
    shown = columns[:_NUM_KEPT] if note else columns
    for index, (column, width) in enumerate(shown):
        cell: Cell = column.cell(row)
        if index:
            yield Part(" ", "")
        yield Part(fitted(cell.text, width, is_number=column.is_number), cell.tone)
    if note:
        used = sum(width + 1 for _, width in shown)
        yield Part(" " + fitted(note, max(1, screen_width - used)), "red")


def fitted(text: str, width: int, *, is_number: bool = False) -> str:
    """Exactly so many cells; letters of east Asian scripts take two."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + _CUT
    return " " * (width - length) + text if is_number else text + " " * (width - length)
