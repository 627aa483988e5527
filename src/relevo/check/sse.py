"""Server-sent events, read strictly: the events, and every deviation from the format.

Source: WHATWG HTML, sections 9.2.5 and 9.2.6. A browser would forgive what is listed under `problems`; parsers of
client libraries, which split lines themselves, often do not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_FIELDS = frozenset((b"data", b"event", b"id", b"retry"))


@dataclass(frozen=True, slots=True)
class SseEvent:
    data: str
    end: int  # offset of the byte after the event in the body
    num_data_lines: int


@dataclass(frozen=True, slots=True)
class SseBody:
    events: tuple[SseEvent, ...]
    problems: tuple[str, ...]


def parse_sse(raw: bytes) -> SseBody:
    """All events of a whole body."""
    events: list[SseEvent] = []
    problems: list[str] = []
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        problems.append(f"byte {error.start} is not UTF-8")
    data: list[bytes] = []
    start = 0
    for number, end in enumerate(_LINE_END.finditer(raw), start=1):
        line, start = raw[start : end.start()], end.end()
        if not line:
            if data:
                events.append(SseEvent(b"\n".join(data).decode(errors="replace"), end.end(), len(data)))
            data = []
            continue
        if line.startswith(b":"):
            continue
        name, _, value = line.partition(b":")
        if name not in _FIELDS:
            problems.append(f"line {number} is neither a field nor a comment: {line[:60]!r}")
        elif name == b"data":
            data.append(value.removeprefix(b" "))
    if raw[start:] or data:
        problems.append("the body ends in the middle of an event (no blank line after it)")
    return SseBody(tuple(events), tuple(problems))
