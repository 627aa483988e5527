"""The tables that a command prints, as HTML: the same cells, whatever the width of a terminal."""

from __future__ import annotations

from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def tables_html(shown: RenderableType) -> str:
    """Of a table, a sentence, or a group of them. Raises TypeError for anything else: it would be left out."""
    if isinstance(shown, Group):
        return "\n".join(tables_html(part) for part in shown.renderables)
    if isinstance(shown, str | Text):
        return f"<p>{escape(str(shown))}</p>"
    if not isinstance(shown, Table):
        raise TypeError(f"{type(shown).__name__} has no form in HTML yet")
    return _table(shown) if shown.columns and (shown.row_count or shown.show_header) else ""


def _table(table: Table) -> str:
    title = f"<caption>{escape(_words(table.title))}</caption>" if table.title else ""
    head = ""
    if table.show_header:
        cells = "".join(f'<th scope="col"{_side(c.justify)}>{escape(_words(c.header))}</th>' for c in table.columns)
        head = f"<thead><tr>{cells}</tr></thead>"
    rows = zip(*(list(column.cells) for column in table.columns), strict=True)
    sides = [_side(column.justify) for column in table.columns]
    body = "".join(_row([_words(cell) for cell in row], sides) for row in rows)
    return f'<div class="wide" tabindex="0"><table>{title}{head}<tbody>{body}</tbody></table></div>'


def _row(cells: list[str], sides: list[str]) -> str:
    first = f'<th scope="row"{sides[0]}>{escape(cells[0])}</th>'
    rest = (f"<td{side}>{escape(cell)}</td>" for side, cell in zip(sides[1:], cells[1:], strict=True))
    return f"<tr>{first}{''.join(rest)}</tr>"


def _side(justify: str) -> str:
    return ' class="right"' if justify == "right" else ""


def _words(cell: RenderableType | None) -> str:
    if isinstance(cell, str | Text):
        return str(cell)
    raise TypeError(f"a cell of {type(cell).__name__} has no form in HTML yet")
