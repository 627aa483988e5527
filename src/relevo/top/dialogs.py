"""What is asked and told over the tables: a question with yes or no, and text to read. Knows no meaning of either."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

_MAX_WIDTH = 110
_BOX = "border: round ansi_blue; border-title-style: bold; background: ansi_default; padding: 0 1;"


def reading_width(screen_width: int) -> int:
    """Columns for text in the box of `Reading`: beside it are its border, a blank on each side and the scrollbar."""
    return min(screen_width, _MAX_WIDTH) - 5


class Question(ModalScreen[bool]):
    """Dismissed with the answer; anything but y is no."""

    DEFAULT_CSS = f"""
    Question {{ align: center middle; background: transparent; }}
    Question Vertical {{ width: 64; max-width: 95%; height: auto; {_BOX} }}
    Question Static {{ height: auto; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q,enter", "answer(False)", "No", key_display="n"),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self._title)
            yield Static(Text(f"{self._text}\n"))
            yield Static(Text.assemble(("y", "bold"), " yes   ", ("n", "bold"), " no"))

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class Reading(ModalScreen[None]):
    """Text in a box that can be scrolled; it may come later than the box."""

    DEFAULT_CSS = f"""
    Reading {{ align: center middle; background: transparent; }}
    Reading VerticalScroll {{ width: 100%; max-width: {_MAX_WIDTH}; height: auto; max-height: 100%; {_BOX} }}
    Reading VerticalScroll {{ scrollbar-size-vertical: 1; }}
    Reading Static {{ height: auto; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,w,question_mark", "dismiss", "Close", key_display="esc"),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        Binding("pagedown,space", "scroll(10)", show=False),
    ]

    def __init__(self, title: str, text: Text | str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = Content(self._title)
            box.border_subtitle = "esc closes"
            yield Static(id="told")

    def on_mount(self) -> None:
        self.tell(self._text)

    def tell(self, text: Text | str) -> None:
        """In place of what is there."""
        self._text = text
        for static in self.query("#told").results(Static):  # none, before it is composed
            static.update(self._as_text(text))

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    @staticmethod
    def _as_text(text: Text | str) -> Text:
        return text if isinstance(text, Text) else Text(text)
