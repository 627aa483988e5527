"""How often lines of one kind may be written to a log: what strangers cause a thousand times is told a few times.

Each kind (a place in the code, a short name) may burst and then has so many lines in a second. What is held back is
counted, and told with the next line. Pure; source: the generic cell rate algorithm, ITU-T I.371.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

BURST_LINES = 50  # arbitrary
LINES_PER_S = 2.0  # arbitrary
MAX_KINDS = 1024  # arbitrary, far above the places that log


@dataclass(slots=True)
class _Kind:
    due_at_ns: int  # a line that comes no earlier leaves room for a whole burst
    num_held_back: int = 0


@dataclass(slots=True)
class LogLimit:
    burst_lines: int = BURST_LINES
    lines_per_s: float = LINES_PER_S
    _kinds: dict[Hashable, _Kind] = field(default_factory=dict)

    def admit(self, kind: Hashable, now_ns: int) -> int | None:
        """None: hold this line back. Otherwise so many lines of this kind were held back since its last."""
        known = self._kinds.get(kind)
        if known is None:
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            known = self._kinds[kind] = _Kind(now_ns)
        interval_ns = round(1e9 / self.lines_per_s)
        due_at_ns = max(known.due_at_ns, now_ns)
        if due_at_ns - now_ns > (self.burst_lines - 1) * interval_ns:
            known.num_held_back += 1
            return None
        known.due_at_ns = due_at_ns + interval_ns
        num_held_back, known.num_held_back = known.num_held_back, 0
        return num_held_back
