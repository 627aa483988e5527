"""How much of a link's KV is under way at once: enough to keep it busy, little enough that what is given up ends soon.

Learns the rate of a link from what is acknowledged. Pure: times are given, in seconds of any monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_FRAME_BYTES = 1024 * 1024  # arbitrary; until the first is acknowledged
FRAME_S = 0.05  # arbitrary; what a frame may take on a slow link
IN_FLIGHT_S = 0.25  # arbitrary; what `cancel` may have to wait for
_WINDOW_S = 0.02  # arbitrary; shorter ones say more of scheduling than of the link
_MEMORY = 0.7  # of what was known before; arbitrary


@dataclass(slots=True)
class LinkPace:
    max_frame_bytes: int
    max_in_flight_bytes: int
    rate: float = 0.0  # bytes/s; 0: not known
    _since_s: float = 0.0
    _num_bytes: int = 0

    def begins(self, now_s: float) -> None:
        """Something is sent while nothing was under way."""
        self._since_s, self._num_bytes = now_s, 0

    def acknowledged(self, num_bytes: int, now_s: float, *, is_last: bool) -> None:
        """`is_last`: nothing is under way any more."""
        self._num_bytes += num_bytes
        took_s = now_s - self._since_s
        if took_s <= 0.0 or not (is_last or took_s >= _WINDOW_S) or not self._num_bytes:
            return
        seen = self._num_bytes / took_s
        if took_s >= _WINDOW_S or seen > self.rate:  # a short burst shows no slow link
            self.rate = seen if not self.rate else _MEMORY * self.rate + (1.0 - _MEMORY) * seen
        self._since_s, self._num_bytes = now_s, 0

    @property
    def frame_bytes(self) -> int:
        wanted = int(self.rate * FRAME_S) if self.rate else FIRST_FRAME_BYTES
        return max(1, min(self.max_frame_bytes, wanted))

    @property
    def in_flight_bytes(self) -> int:
        wanted = int(self.rate * IN_FLIGHT_S) if self.rate else 2 * FIRST_FRAME_BYTES
        return max(1, min(self.max_in_flight_bytes, wanted))
