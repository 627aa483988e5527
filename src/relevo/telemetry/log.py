"""How every process writes its log: one line per event on stderr, `HH:MM:SS level process message key=value`.

Owns the format and the promise that logging holds up nothing: lines go through a bounded queue (`log_sink`), a place
that logs too often is held back (`policy.http.log_limit`), and both are counted. Modules use
`logging.getLogger("relevo.<part>")`. Prompt text, generated text and API keys are never given to a logger; a request is
named by its id. What strangers send cannot end a line or steer a terminal. Imports little: workers start fast.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import TracebackType
from typing import TextIO

from relevo.policy.http.log_limit import LogLimit
from relevo.telemetry.log_sink import LineSink
from relevo.telemetry.progress import is_line_terminal

_COLOURS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31;1m"}
_RESET = "\x1b[0m"
_OVER_PROGRESS = "\r\x1b[K"  # at a terminal a line takes the place of a progress line, which is drawn again below it
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\t",
    0x2028: "\\u2028",  # some readers end a line here
    0x2029: "\\u2029",
}
_MAX_CHARS = 8192  # arbitrary; of one line
FLUSH_S = 1.0  # arbitrary: how long the end of a process waits for a reader of its log

REASONS = ("repeated", "unread")  # why a line was not written

_num_not_written = dict.fromkeys(REASONS, 0)
_counting = threading.Lock()
_sink: LineSink | None = None  # of stderr, once `configure` was called
_line_start = ""  # of stderr


class LineFormatter(logging.Formatter):
    """One line per record, `extra=` fields as key=value. A traceback follows, indented: no line of it looks like a
    record."""

    def __init__(self, process_name: str, *, is_coloured: bool, line_start: str = "") -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._process_name = process_name
        self._is_coloured = is_coloured
        self._line_start = line_start

    def format(self, record: logging.LogRecord) -> str:
        time = self.formatTime(record, self.datefmt)
        fields = "".join(
            f" {key}={_quoted(value)}" for key, value in vars(record).items() if key not in _STANDARD_FIELDS
        )
        text = f"{record.getMessage()}{fields}"
        if len(text) > _MAX_CHARS:
            text = f"{text[:_MAX_CHARS]}... ({len(text)} characters)"
        line = f"{time} {record.levelname.lower()} {self._process_name} {text.translate(_ESCAPES)}"
        if self._is_coloured and record.levelno in _COLOURS:
            line = f"{_COLOURS[record.levelno]}{line}{_RESET}"
        line = f"{self._line_start}{line}"
        return f"{line}\n{self._traceback(record)}" if record.exc_info else line

    def _traceback(self, record: logging.LogRecord) -> str:
        assert record.exc_info is not None
        lines = self.formatException(record.exc_info).split("\n")
        return "\n".join(f"  {line.translate(_ESCAPES)}" for line in lines)


class _Limiter(logging.Filter):
    """Holds back what one place writes too often. Debug lines are what the operator asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = LogLimit()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        num_held_back = self._limit.admit((record.name, record.pathname, record.lineno), time.monotonic_ns())
        if num_held_back is None:
            _count("repeated")
            return False
        if num_held_back:
            record.msg, record.args = f"{record.getMessage()} (and {num_held_back} more from there)", ()
        return True


class _QueueingHandler(logging.Handler):
    def __init__(self, sink: LineSink) -> None:
        super().__init__()
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        if not self._sink.put(self.format(record)):
            _count("unread")

    def flush(self) -> None:
        """Called at exit; a reader that does not read is not waited for."""
        self._sink.flush(FLUSH_S)


def configure(level: str, process_name: str, stream: TextIO | None = None) -> None:
    """Send all logging of this process to `stream`, from `level` ("debug" ... "error") up. Default: stderr, through a
    queue; also what would end the process or a thread otherwise.

    Replaces what an earlier call set. Libraries speak from WARNING up, whatever `level` says.
    """
    global _sink, _line_start
    threshold = logging.getLevelNamesMapping()[level.upper()]
    handler: logging.Handler
    if stream is not None:
        handler = logging.StreamHandler(stream)
    else:
        _sink = LineSink(sys.stderr.fileno(), lambda number: _dropped_line(formatter, number))
        _line_start = _OVER_PROGRESS if is_line_terminal(sys.stderr) else ""
        handler = _QueueingHandler(_sink)
        _log_uncaught()
    formatter = LineFormatter(
        process_name,
        is_coloured=(stream or sys.stderr).isatty(),
        line_start=_line_start if stream is None else "",
    )
    handler.setFormatter(formatter)
    handler.addFilter(_Limiter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(threshold, logging.WARNING))
    logging.getLogger("relevo").setLevel(threshold)


def say(line: str) -> None:
    """One line for people, as it is, in order with the log and as little held up by its reader."""
    if _sink is not None:
        _sink.put(f"{_line_start}{line}")
    else:
        sys.stderr.write(f"{line}\n")


def num_not_written() -> dict[str, int]:
    """Lines of this process, by reason."""
    with _counting:
        return dict(_num_not_written)


def _count(reason: str) -> None:
    with _counting:
        _num_not_written[reason] += 1


def _dropped_line(formatter: LineFormatter, number: int) -> str:
    message = f"{number} log lines were dropped: standard error was not read"
    return formatter.format(logging.makeLogRecord({"msg": message, "levelno": logging.WARNING, "levelname": "WARNING"}))


def _log_uncaught() -> None:
    """The interpreter would write tracebacks to stderr itself, and wait for its reader."""
    log = logging.getLogger("relevo")

    def uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            log.critical("an exception ends this process", exc_info=(kind, error, traceback))

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            error = (args.exc_type, args.exc_value, args.exc_traceback)
            log.critical("an exception ends the thread %s", args.thread and args.thread.name, exc_info=error)

    def unraisable(args: object) -> None:
        error = getattr(args, "exc_value", None)
        log.error("an exception was ignored: %s", getattr(args, "err_msg", None), exc_info=error)

    logging.captureWarnings(True)
    sys.excepthook, threading.excepthook, sys.unraisablehook = uncaught, in_thread, unraisable


def _quoted(value: object) -> str:
    """Values with blanks are quoted so that a line can be split again."""
    text = str(value)
    return repr(text) if not text or any(c.isspace() or c in "\"'=" for c in text) else text
