"""Server-sent events, as a stream of bytes that arrives in pieces. Source: WHATWG HTML, section 9.2.6.

Only `data` fields matter to clients of this API; comments, event names and ids are skipped.
"""

from __future__ import annotations


class SSEParser:
    """Feed it what the socket brought; it returns the data of every event completed by that."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Payloads of the events that `piece` completes, in order; several `data` lines are joined with a newline."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
