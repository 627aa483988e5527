"""A worker on its way out: announced once to each gateway, over when nothing is left or its time is.

Owns whether it was asked for and when it ends. Does not know requests, only how many there are.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from relevo.wire import messages as wire
from relevo.wire.gateway_links import GatewayLinks, PeerId

log = logging.getLogger("relevo.engine")


@dataclass(slots=True)
class Drain:
    links: GatewayLinks
    timeout_s: float  # how long it waits for what runs
    _is_asked: bool = False
    _ends_at_ns: int | None = None  # set when it began
    _told: set[PeerId] = field(default_factory=set)

    def ask(self) -> None:
        """Called from a signal handler too: only notes it and wakes the loop."""
        self._is_asked = True
        self.links.wake()

    def may_leave(self, num_requests: int, now_ns: int) -> bool:
        """Nothing is left, or what is left is to be continued elsewhere. Announces the drain to gateways that have not
        heard of it."""
        if not self._is_asked:
            return False
        if self._ends_at_ns is None:
            log.info("draining: %d requests may finish for %.0f s", num_requests, self.timeout_s)
            self._ends_at_ns = now_ns + round(self.timeout_s * 1e9)
        for peer in self.links.peer_ids:
            if peer not in self._told:
                self._told.add(peer)
                self.links.send(peer, wire.Leaving())
        if num_requests and now_ns >= self._ends_at_ns:
            log.warning("leaving %d requests to be continued elsewhere", num_requests)
            return True
        return not num_requests

    def patience_s(self, now_ns: int) -> float | None:
        """How long the loop may sleep when there is nothing to do; None: no limit."""
        if self._ends_at_ns is None:
            return None
        return max(0.0, (self._ends_at_ns - now_ns) / 1e9)
