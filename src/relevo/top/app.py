"""The screen of `relevo top`: takes states as they come, shows them, and asks for what keys want.

Owns the order of things on the screen and which table keys act on. Where states come from is `feed`'s, what is in a
table `columns`', what a key asks of the server `Actions`'.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar, Protocol

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.widgets import Footer, Input, Static

from relevo.client.visible_text import one_line, visible
from relevo.core.errors import RelevoError
from relevo.top.columns import (
    DECISIONS,
    REQUESTS,
    Shape,
    all_requests,
    arranged,
    orders,
    session_shape,
    worker_shape,
)
from relevo.top.dialogs import Question, Reading, reading_width
from relevo.top.feed import Lost
from relevo.top.findings import slow_factors
from relevo.top.help import HELP
from relevo.top.state import Decision, Request, State, Worker
from relevo.top.summary import Line, Shown, summary
from relevo.top.table import LiveTable

_TALL = 36  # lines, from which on all tables are there at once; arbitrary
_LOWER = ("requests", "sessions", "decisions")
_TABLES = ("workers", *_LOWER)
_EMPTY = {
    "workers": "no workers",
    "requests": "no requests in the last ten minutes",
    "sessions": "no sessions",
    "decisions": "nothing was decided yet",
}


class Actions(Protocol):
    """What is asked of the server. Raises RelevoError, in one sentence."""

    async def why(self, request_id: str, width: int) -> Text:
        """What `relevo why` tells of that request, in lines of that many columns."""
        ...

    async def drain(self, worker_id: str) -> None:
        """The worker was told to leave."""
        ...


class TopApp(App[None]):
    """`state`: the first one. `updates`: called once; what comes after it."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary { height: 4; }
    #workers { height: auto; max-height: 50%; min-height: 3; }
    #tabs { height: 1; }
    #filter { height: 1; display: none; border: none; padding: 0; background: ansi_default; }
    #filter.-open { display: block; }
    .-lower { display: none; }
    .-lower.-shown { display: block; }
    Footer { background: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "drain", "Drain"),
        Binding("w,enter", "why", "Why", key_display="w"),
        Binding("s", "sort", "Sort"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("p", "pause", "Pause"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("tab", "next_table(1)", "Table", priority=True),
        Binding("shift+tab", "next_table(-1)", show=False, priority=True),
        *(Binding(str(number), f"table('{name}')", show=False) for number, name in enumerate(_TABLES, 1)),
        Binding("escape", "no_filter", show=False),
    ]

    def __init__(
        self, state: State, updates: Callable[[], AsyncIterator[State | Lost]], actions: Actions, url: str
    ) -> None:
        super().__init__()
        self.theme = "ansi-dark"  # the terminal's own sixteen colours
        self._state, self._updates, self._actions, self._url = state, updates, actions, url
        self._is_paused = False
        self._lost: Lost | None = None
        self._lost_at_s = 0.0
        self._filter = ""
        self._lower = "requests"
        self._orders: dict[str, str] = {}  # by table, what was chosen
        self._summary = Static(id="summary", markup=False)
        self._tabs = Static(id="tabs", markup=False)
        self._field = Input(
            id="filter", placeholder="text of rows to show; Enter keeps it, Escape ends it", compact=True
        )
        self._tables = {
            "workers": LiveTable(worker_shape({}), id="workers"),
            "requests": LiveTable(REQUESTS, id="requests", classes="-lower"),
            "sessions": LiveTable(session_shape(0.0), id="sessions", classes="-lower"),
            "decisions": LiveTable(DECISIONS, id="decisions", classes="-lower"),
        }

    def compose(self) -> ComposeResult:
        yield self._summary
        yield self._tables["workers"]
        yield self._tabs
        yield from (self._tables[name] for name in _LOWER)
        yield self._field
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._table("workers").focus()
        self._show()
        self._follow()
        self.set_interval(1.0, self._show_summary)

    @work(exclusive=True, group="follow")
    async def _follow(self) -> None:
        async for update in self._updates():
            if isinstance(update, Lost):
                if self._lost is None:
                    self._lost_at_s = time.monotonic()
                self._lost = update
            else:
                self._lost = None
                if self._is_paused:
                    continue
                self._state = update
            self._show()

    # ---- what is shown -----------------------------------------------------------------------------------------------

    def _show(self) -> None:
        state = self._state
        with self.batch_update():
            self._show_summary()
            self._show_table("workers", worker_shape(slow_factors(state.workers)), list(state.workers))
            self._show_table("requests", REQUESTS, all_requests(state))
            self._show_table("sessions", session_shape(state.at_unix_s), list(state.sessions))
            self._show_table("decisions", DECISIONS, list(state.decisions))
            self._show_tabs()

    def _show_table(self, name: str, shape: Shape[Any], rows: list[Any]) -> None:
        table = self._table(name)
        table.order, table.is_dim = self._orders.get(name, shape.first_order), self._lost is not None
        is_shown = name == "workers" or name == self._lower or self._is_tall
        table.set_class(is_shown, "-shown")
        if is_shown:
            empty = f"no row has {self._filter!r}" if self._filter and rows else _EMPTY[name]
            table.show(shape, arranged(shape, rows, table.order, self._filter), one_line(empty))

    def _show_summary(self) -> None:
        lost = self._lost
        lost_for_s = time.monotonic() - self._lost_at_s if lost is not None else 0.0
        shown = Shown(self._url, self._is_paused, lost.reason if lost is not None else "", lost_for_s)
        lines = summary(self._state, shown, self.size.width)
        told = Text("\n", no_wrap=True).join([_text(line) for line in lines])
        told.no_wrap, told.overflow = True, "crop"
        self._summary.update(told)

    def _show_tabs(self) -> None:
        state, told = self._state, Text(no_wrap=True, overflow="crop")
        counts = (len(all_requests(state)), len(state.sessions), len(state.decisions))
        for number, (name, count) in enumerate(zip(_LOWER, counts, strict=True), 2):
            told.append(f" {number} {name} {count} ", "reverse" if name == self._lower else "")
            told.append(" ")
        if self._filter:
            told.append(f" filter: {one_line(self._filter)}", "bold yellow")
        self._tabs.update(told)

    @property
    def _is_tall(self) -> bool:
        return self.size.height >= _TALL

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self._show)

    # ---- tables ------------------------------------------------------------------------------------------------------

    def _table(self, name: str) -> LiveTable:
        return self._tables[name]

    @property
    def _focused_table(self) -> LiveTable:
        focused = self.screen.focused
        return focused if isinstance(focused, LiveTable) else self._table("workers")

    def action_table(self, name: str) -> None:
        if name in _LOWER:
            self._lower = name
            self._show()
        self._table(name).focus()

    def action_next_table(self, step: int) -> None:
        if isinstance(self.screen, Question | Reading):
            return
        name = self._focused_table.id or "workers"
        self.action_table(_TABLES[(_TABLES.index(name) + step) % len(_TABLES)])

    def action_sort(self) -> None:
        table = self._focused_table
        heads = orders(table.shape, self.size.width)
        place = heads.index(table.order) + 1 if table.order in heads else 0
        self._orders[table.id or ""] = heads[place % len(heads)]
        self._show()

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._show()

    def action_help(self) -> None:
        self.push_screen(Reading("relevo top", HELP))

    # ---- filter ------------------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        self._field.add_class("-open")
        self._field.focus()

    def action_no_filter(self) -> None:
        self._field.value = ""
        self._close_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value
        self._show()

    def on_input_submitted(self) -> None:
        self._close_filter()

    def _close_filter(self) -> None:
        if self._field.has_class("-open"):
            self._field.remove_class("-open")
            self._table(self._lower if self._is_filter_below else "workers").focus()

    @property
    def _is_filter_below(self) -> bool:
        """Only there it finds something."""
        return not self._table("workers").rows and bool(self._table(self._lower).rows)

    # ---- what is asked of the server ---------------------------------------------------------------------------------

    def action_why(self) -> None:
        chosen = self._focused_table.chosen
        request_id = chosen.request_id if isinstance(chosen, Request | Decision) else ""
        if not request_id:
            self._tell("Put the cursor on a request or a decision about one: 2 or 4, then the arrows.")
            return
        reading = Reading(f"Why {one_line(request_id)}", "asking the server …")
        self.push_screen(reading)
        self._ask_why(reading, request_id)

    @work(group="why")
    async def _ask_why(self, reading: Reading, request_id: str) -> None:
        try:
            told = await self._actions.why(request_id, reading_width(self.size.width))
        except RelevoError as error:
            told = Text(visible(error.message))
        reading.tell(told)

    def action_drain(self) -> None:
        chosen = self._focused_table.chosen
        if not isinstance(chosen, Worker):
            self._tell("Put the cursor on a worker: 1, then the arrows.")
            return
        name = one_line(chosen.worker_id)
        running = f"{chosen.num_running} continuations decode there" if chosen.num_running else "Nothing decodes there"
        question = f"{running}. It takes nothing new, ends or hands on what it runs, leaves, and is started anew."
        self.push_screen(Question(f"Drain {name}?", question), lambda yes: self._drain(chosen.worker_id, bool(yes)))

    def _drain(self, worker_id: str, is_wanted: bool) -> None:
        if is_wanted:
            self._ask_drain(worker_id)

    @work(group="drain")
    async def _ask_drain(self, worker_id: str) -> None:
        try:
            await self._actions.drain(worker_id)
        except RelevoError as error:
            self._tell(f"{worker_id} was not drained: {error.message}", is_error=True)
        else:
            self._tell(f"{worker_id} drains")

    def _tell(self, text: str, *, is_error: bool = False) -> None:
        severity, timeout_s = ("error", 15.0) if is_error else ("information", 5.0)
        self.notify(one_line(text), severity=severity, timeout=timeout_s, markup=False)  # type: ignore[arg-type]


def _text(line: Line) -> Text:
    return Text.assemble(*((part.text, part.tone) for part in line))
