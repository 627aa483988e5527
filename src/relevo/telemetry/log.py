"""How every process writes its log: one line per event on stderr, `HH:MM:SS level process message key=value`.

Owns the format only; modules use `logging.getLogger("relevo.<part>")`. Prompt text, generated text and API keys are
never given to a logger; a request is named by its id. Imports the standard library alone: workers start fast.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

_COLOURS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31;1m"}
_RESET = "\x1b[0m"
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class LineFormatter(logging.Formatter):
    """One line per record, `extra=` fields as key=value. A traceback follows on lines of its own."""

    def __init__(self, process_name: str, *, is_coloured: bool) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._process_name = process_name
        self._is_coloured = is_coloured

    def format(self, record: logging.LogRecord) -> str:
        time = self.formatTime(record, self.datefmt)
        fields = "".join(
            f" {key}={_quoted(value)}" for key, value in vars(record).items() if key not in _STANDARD_FIELDS
        )
        message = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        line = f"{time} {record.levelname.lower()} {self._process_name} {message}{fields}"
        if self._is_coloured and record.levelno in _COLOURS:
            line = f"{_COLOURS[record.levelno]}{line}{_RESET}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _quoted(value: object) -> str:
    """Values with blanks are quoted so that a line can be split again."""
    text = str(value)
    return repr(text) if not text or any(c.isspace() or c in "\"'=" for c in text) else text


def configure(level: str, process_name: str, stream: TextIO | None = None) -> None:
    """Send all logging of this process to `stream` (stderr), from `level` ("debug" ... "error") up.

    Replaces what an earlier call set. Libraries speak from WARNING up, whatever `level` says.
    """
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(process_name, is_coloured=stream.isatty()))
    root = logging.getLogger()
    root.handlers = [handler]
    threshold = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(threshold, logging.WARNING))
    logging.getLogger("relevo").setLevel(threshold)
