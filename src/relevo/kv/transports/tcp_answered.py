"""What of a sender's link was answered, over all its streams: a seal on one of them speaks for writes on the others.

A link numbers what it sends from 0 on, whichever stream takes it. Owns these numbers, on the receiver.
"""

from __future__ import annotations

import threading

from relevo.core.errors import ProtocolError

MAX_AHEAD = 65_536  # arbitrary; what other streams of a link may be ahead of the slowest


class AnsweredTickets:
    """Of one link. Thread-safe; shared by the threads of its streams."""

    def __init__(self, link_id: bytes) -> None:
        self.link_id = link_id
        self._changed = threading.Condition()
        self._below = 0  # all tickets below were answered
        self._ahead: set[int] = set()
        self._is_over = False

    def add(self, ticket: int) -> None:
        """ProtocolError for numbers that leave too much out."""
        with self._changed:
            if len(self._ahead) >= MAX_AHEAD:
                raise ProtocolError(f"{MAX_AHEAD} frames were numbered out of turn")
            self._ahead.add(ticket)
            while self._below in self._ahead:
                self._ahead.remove(self._below)
                self._below += 1
            self._changed.notify_all()

    def wait_for_all_below(self, ticket: int) -> None:
        """ConnectionError if a stream of the link ends before that: what it carried is not answered any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._below >= ticket)
            if self._is_over:
                raise ConnectionError("another stream of the link has ended")

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


class LinksOfSenders:
    """Links that have streams. The id of one is drawn by its sender, of 16 bytes: no other can name it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[bytes, AnsweredTickets] = {}

    def join(self, link_id: bytes) -> AnsweredTickets:
        """For one more stream. One without an id is alone."""
        with self._lock:
            link = self._links.get(link_id) if link_id else None
            if link is None:
                link = AnsweredTickets(link_id)
                if link_id:
                    self._links[link_id] = link
            return link

    def leave(self, link: AnsweredTickets) -> None:
        with self._lock:
            if self._links.get(link.link_id) is link:
                del self._links[link.link_id]
        link.end()

    def end_all(self) -> None:
        with self._lock:
            links, self._links = list(self._links.values()), {}
        for link in links:
            link.end()
