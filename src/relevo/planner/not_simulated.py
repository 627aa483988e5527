"""What asking the simulator may come to instead of an answer."""

from __future__ import annotations

from relevo.core.errors import RelevoError


class NotSimulated(RelevoError):
    """There is no answer; the next tick asks anew."""
