"""What a planner has decided of late, for the log and /v1/plan."""

from __future__ import annotations

from collections import deque
from typing import Any

_KEPT = 100  # decisions, those that say nothing new left out


class ToldDecisions:
    """A decision that says nothing new takes the place of the one before it: its reason and figures are of now."""

    def __init__(self) -> None:
        self._rows: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def add(self, row: dict[str, Any], *, is_news: bool) -> bool:
        """Whether it is one more, for the log to tell."""
        if self._rows and not is_news:
            self._rows[-1] = row
            return False
        self._rows.append(row)
        return True

    def newest_first(self) -> list[dict[str, Any]]:
        return list(reversed(self._rows))
