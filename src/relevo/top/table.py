"""A table of any number of rows, of which only the lines on the screen are drawn; a cursor stays with its row.

Knows rows as a `Shape` does, no meaning of any. Rows come sorted and filtered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from relevo.top.columns import Shape
from relevo.top.lines import fitted, heads, parts

_HEAD, _HEAD_IN_FOCUS = Style(color="blue"), Style(color="cyan", bold=True, underline=True)
_DIM, _CURSOR = Style(dim=True), Style(reverse=True)


class LiveTable(ScrollView, can_focus=True):
    """Show rows with `show`."""

    DEFAULT_CSS = """
    LiveTable { height: 1fr; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; overflow-x: hidden; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "to(0)", show=False),
        Binding("end,G", "to(-1)", show=False),
    ]

    def __init__(self, shape: Shape[Any], *, id: str, classes: str = "") -> None:
        super().__init__(id=id, classes=classes)
        self.shape = shape
        self.rows: Sequence[Any] = ()
        self.order = shape.first_order
        self.empty = ""  # what is said where there are no rows
        self.is_dim = False
        self._cursor = 0

    @property
    def chosen(self) -> Any | None:
        """The row under the cursor; None: there are none."""
        return self.rows[self._cursor] if self._cursor < len(self.rows) else None

    def show(self, shape: Shape[Any], rows: Sequence[Any], empty: str) -> None:
        """In place of those before; the cursor goes with its row, or stays where it is if that is gone. On the first
        row it stays there, so that what comes above is seen."""
        before = self.chosen if self._cursor else None
        self.shape, self.rows, self.empty = shape, rows, empty
        if before is not None:
            key = shape.key(before)
            place = next((index for index, row in enumerate(rows) if shape.key(row) == key), self._cursor)
            self._place(min(place, max(0, len(rows) - 1)), follow=place != self._cursor)
        self.virtual_size = Size(self.size.width, len(rows) + 1)
        self.refresh()

    def action_move(self, step: int) -> None:
        self._place(self._cursor + step)

    def action_page(self, step: int) -> None:
        self._place(self._cursor + step * max(1, self._num_lines - 1))

    def action_to(self, place: int) -> None:
        self._place(place if place >= 0 else len(self.rows) - 1)

    @property
    def _num_lines(self) -> int:
        """For rows: one is the heads'."""
        return max(1, self.size.height - 1)

    def _place(self, cursor: int, *, follow: bool = True) -> None:
        self._cursor = max(0, min(cursor, len(self.rows) - 1))
        if follow:
            top = round(self.scroll_offset.y)
            if self._cursor < top:
                self.scroll_to(y=self._cursor, animate=False)
            elif self._cursor >= top + self._num_lines:
                self.scroll_to(y=self._cursor - self._num_lines + 1, animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y == 0:
            style = _HEAD_IN_FOCUS if self.has_focus else _HEAD
            named = heads(self.shape, width, self.order)
            return self._strip([Segment(text, style + Style.parse(tone)) for text, tone in named], width)
        place = round(self.scroll_offset.y) + y - 1
        if place >= len(self.rows):
            told = f"  {self.empty}" if not self.rows and y == 1 else ""
            return self._strip([Segment(fitted(told, width), _DIM)], width)
        has_cursor = self.has_focus and place == self._cursor
        segments = []
        for part in parts(self.shape, self.rows[place], width):
            style = Style.parse(part.tone) if part.tone else Style()
            if self.is_dim:
                style = _DIM
            segments.append(Segment(part.text, _CURSOR if has_cursor else style))
        return self._strip(segments, width)

    def _strip(self, segments: list[Segment], width: int) -> Strip:
        return Strip(segments).adjust_cell_length(width, self.rich_style).apply_style(self.rich_style)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()
