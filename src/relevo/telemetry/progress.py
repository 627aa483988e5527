"""Progress of work that takes a while: what is being done, how much of it, and how much time is left.

Owns the port (`Progress`), the one that says nothing, and the line at a terminal. It is shown only where standard error
is a terminal that can erase a line, and not with `--quiet`. Knows no commands: they say what begins and what advances.

The line is one line of the terminal, whatever happens below it: others who write there (log lines of worker processes,
see `telemetry.log`) first erase the line that they find, so neither breaks the other in two. It is drawn when something
is told, a few times a second at most, and by no thread: a benchmark is not disturbed by one, and none outlives a
command. The cursor is never hidden, so however a process ends, the terminal is as it was.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.control import Control
    from rich.text import Text

DRAW_INTERVAL_S = 0.25  # arbitrary: no flicker, and nothing to be seen of it in a measurement
MAX_COLUMNS = 100  # arbitrary: what eyes follow
_BAR_CELLS = 24
_MIN_NAME_CELLS = 16
_MIN_ETA_S = 2.0  # of a stretch: before that what is left cannot be told
_DUMB = ("dumb", "unknown")

_is_quiet = False


class Progress(Protocol):
    """One stretch of work at a time; a new one ends the one before it."""

    @property
    def is_over(self) -> bool:
        """Nothing will be shown any more."""
        ...

    def begin(self, what: str, total: float = 0, unit: str = "") -> None:
        """`total` 0: how much there is to do is not known. `unit` "bytes" is shown as MB. No `what`: it is shown once
        it has a name."""
        ...

    def begin_for(self, what: str, seconds: float) -> None:
        """A stretch that lasts so long, of itself."""
        ...

    def rename(self, what: str) -> None:
        """The stretch goes on under another name."""
        ...

    def advance(self, amount: float = 1) -> None: ...

    def reach(self, done: float, total: float) -> None:
        """So much is done in all, of so much."""
        ...

    def say(self, line: str) -> None:
        """A line that stays, above what is under way."""
        ...

    def look(self) -> None:
        """Time has passed."""
        ...

    def done(self) -> None:
        """Nothing is under way any more; nothing of it is left at the terminal."""
        ...


class Silent:
    """Says nothing."""

    is_over = True

    def begin(self, what: str, total: float = 0, unit: str = "") -> None: ...

    def begin_for(self, what: str, seconds: float) -> None: ...

    def rename(self, what: str) -> None: ...

    def advance(self, amount: float = 1) -> None: ...

    def reach(self, done: float, total: float) -> None: ...

    def say(self, line: str) -> None: ...

    def look(self) -> None: ...

    def done(self) -> None: ...


SILENT = Silent()


class TerminalLine:
    """The last line of a terminal. `is_open` says whether the terminal takes anything: it is never waited for."""

    def __init__(
        self,
        stream: TextIO,
        now_s: Callable[[], float] = time.monotonic,
        is_open: Callable[[], bool] | None = None,
    ) -> None:
        from rich.console import Console  # not before there is something to show: a server's start is quick

        self._console = Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False)
        self._now_s = now_s
        self._is_open = is_open or (lambda: _takes_more(stream))
        self._what, self._unit = "", ""
        self._done = self._total = 0.0
        self._is_timed = False
        self._began_s = 0.0
        self._drawn_s = -DRAW_INTERVAL_S
        self._is_drawn = False
        self.is_over = False

    def begin(self, what: str, total: float = 0, unit: str = "") -> None:
        self._begin(what, total, unit, is_timed=False)

    def begin_for(self, what: str, seconds: float) -> None:
        self._begin(what, seconds, "s", is_timed=True)

    def _begin(self, what: str, total: float, unit: str, *, is_timed: bool) -> None:
        self._what, self._total, self._unit, self._is_timed = what, total, unit, is_timed
        self._done = 0.0
        self._began_s = self._now_s()
        if what:
            self._draw()

    def rename(self, what: str) -> None:
        if what != self._what:  # at once: what goes on may not come to look for a while
            self._what = what
            self._draw()

    def advance(self, amount: float = 1) -> None:
        self._done += amount
        self.look()

    def reach(self, done: float, total: float) -> None:
        self._done, self._total = done, total
        self.look()

    def say(self, line: str) -> None:
        self._erase()
        self._console.print(printable(line), soft_wrap=True)
        if self._what:
            self._draw()

    def look(self) -> None:
        if self._what and self._now_s() - self._drawn_s >= DRAW_INTERVAL_S:
            self._draw()

    def done(self) -> None:
        self.is_over = True
        self._what = ""
        self._erase()

    def _erase(self) -> None:
        if self._is_drawn:
            self._console.control(_line_start())
            self._is_drawn = False

    def _draw(self) -> None:
        self._drawn_s = self._now_s()
        if not self._is_open():
            return
        from rich.text import Text

        elapsed_s = self._drawn_s - self._began_s
        done = min(elapsed_s, self._total) if self._is_timed else self._done
        told = Text("")
        if self._total > 0:
            fraction = min(1.0, done / self._total)
            told.append("  ").append_text(self._bar(fraction)).append(f"  {_amounts(done, self._total, self._unit)}")
            told.append(_left(fraction, elapsed_s, self._total - done if self._is_timed else None), style="dim")
        else:
            told.append(f"  {elapsed_s:.0f} s" if elapsed_s >= 1 else " ...", style="dim")
        columns = min(self._console.width, MAX_COLUMNS) - 1
        line = Text(printable(self._what))
        line.truncate(max(_MIN_NAME_CELLS, columns - told.cell_len), overflow="ellipsis")
        line.append_text(told)
        line.truncate(columns, overflow="crop")
        self._is_drawn = True  # first: Ctrl-C may come in the middle of it
        with self._console:  # one write
            self._console.control(_line_start())
            self._console.print(line, end="", no_wrap=True)

    def _bar(self, fraction: float) -> Text:
        from rich.text import Text

        full, empty = ("#", "-") if self._console.options.ascii_only else ("━", "─")
        num_full = int(fraction * _BAR_CELLS)
        return Text.assemble((full * num_full, "cyan"), (empty * (_BAR_CELLS - num_full), "dim"))


def be_quiet(is_quiet: bool = True) -> None:
    """Of this process, from here on."""
    global _is_quiet
    _is_quiet = is_quiet


def is_shown() -> bool:
    """Whether anything may be drawn: by us, or by a library that draws bars of its own."""
    return not _is_quiet and is_line_terminal(sys.stderr)


def is_line_terminal(stream: TextIO) -> bool:
    """Whether a line that is there can be erased."""
    return stream.isatty() and os.environ.get("TERM", "") not in _DUMB


def progress_here() -> Progress:
    """At standard error, or nowhere. End it with `done`, or use `shown`."""
    return TerminalLine(sys.stderr) if is_shown() else SILENT


@contextlib.contextmanager
def shown() -> Iterator[Progress]:
    """Progress for as long as the block lasts, however it ends."""
    progress = progress_here()
    try:
        yield progress
    finally:
        progress.done()


@contextlib.asynccontextmanager
async def ticking(progress: Progress) -> AsyncIterator[None]:
    """The event loop that does the work looks at the clock now and then, so that a line without news shows time pass.

    Until nothing is under way any more."""
    import asyncio  # processes that only log do without

    async def tick() -> None:
        while not progress.is_over:
            await asyncio.sleep(2 * DRAW_INTERVAL_S)
            progress.look()

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def printable(text: str) -> str:
    """What comes from outside may neither end a line nor steer a terminal."""
    return "".join(c if c.isprintable() else "�" for c in text)


def _amounts(done: float, total: float, unit: str) -> str:
    if unit == "bytes":
        return f"{done / 1e6:,.0f}/{total / 1e6:,.0f} MB"
    return f"{done:,.0f}/{total:,.0f} {unit}".rstrip()


def _left(fraction: float, elapsed_s: float, known_s: float | None) -> str:
    if known_s is None and (elapsed_s < _MIN_ETA_S or not fraction):
        return ""
    left_s = known_s if known_s is not None else elapsed_s * (1.0 - fraction) / fraction
    minutes, seconds = divmod(round(left_s), 60)
    return f"  {minutes}:{seconds:02} left" if minutes else f"  {seconds} s left"


def _line_start() -> Control:
    from rich.control import Control
    from rich.segment import ControlType

    return Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))


def _takes_more(stream: TextIO) -> bool:
    """A terminal that was stopped (Ctrl-S) does not."""
    return bool(select.select([], [stream], [], 0)[1])
