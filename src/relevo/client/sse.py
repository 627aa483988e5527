"""Server-sent events, read strictly from a stream of bytes that arrives in pieces: the events, and every deviation
from the format.

Only `data` fields make events; comments, event names and ids are skipped. A browser would forgive what is listed under
`problems`; parsers of client libraries, which split lines themselves, often do not. Source: WHATWG HTML, 9.2.5, 9.2.6.
"""

from __future__ import annotations

from typing import NamedTuple

_RETURN = ord("\r")
_SKIPPED_FIELDS = frozenset((b"event", b"id", b"retry"))


class SSEEvent(NamedTuple):
    data: bytes  # several `data` lines are joined with a newline
    end: int  # offset of the byte after the event in the body
    num_data_lines: int

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


class SSEBody(NamedTuple):
    """A whole one."""

    events: list[SSEEvent]
    problems: list[str]


def read_body(raw: bytes) -> SSEBody:
    parser = SSEParser()
    events = [*parser.feed(raw), *parser.end()]
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        parser.problems.insert(0, f"byte {error.start} is not UTF-8")
    return SSEBody(events, parser.problems)


class SSEParser:
    """Feed it what the socket brought; it returns every event completed by that."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._rest = b""
        self._data: list[bytes] = []
        self._num_read_bytes = 0
        self._num_lines = 0

    def feed(self, piece: bytes) -> list[SSEEvent]:
        """The events that `piece` completes, in order."""
        text, start = self._rest + piece, 0
        events: list[SSEEvent] = []
        for ended in text.splitlines(keepends=True):
            line = ended.rstrip(b"\r\n")
            if len(line) == len(ended) or (ended[-1] == _RETURN and start + len(ended) == len(text)):
                break  # it goes on; a last \r may be the first half of \r\n
            start += len(ended)
            self._num_lines += 1
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif line:
                self._take_other(line)
            elif self._data:
                events.append(SSEEvent(b"\n".join(self._data), self._num_read_bytes + start, len(self._data)))
                self._data = []
        self._num_read_bytes += start
        self._rest = text[start:]
        return events

    def end(self) -> list[SSEEvent]:
        """The body is over: what it still completes."""
        events: list[SSEEvent] = []
        if self._rest.endswith(b"\r"):
            self._num_read_bytes -= 1  # of the half that does not come
            events = self.feed(b"\n")
        if self._rest or self._data:
            self.problems.append("the body ends in the middle of an event (no blank line after it)")
        return events

    def _take_other(self, line: bytes) -> None:
        name, _, _ = line.partition(b":")
        if name == b"data":
            self._data.append(b"")
        elif name and name not in _SKIPPED_FIELDS:
            self.problems.append(f"line {self._num_lines} is neither a field nor a comment: {line[:60]!r}")
