"""What of an event loop's time is known for sure, also when the whole process was stopped meanwhile.

An answer that is handled now may have lain in the socket for as long as nothing looked. A tick every tenth of a second
tells when the loop last looked: what was not handled before the tick before the last one was not there.
"""

from __future__ import annotations

import asyncio
from collections import deque

from relevo.core.ports import Clock

TICK_S = 0.1  # arbitrary: so much of every lease is given away
_NUM_KEPT = 3  # an answer may be handled some turns of the loop after its bytes were read


class Moments:
    """`run` as long as answers come."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ticks: deque[int] = deque([clock.now_ns()], maxlen=_NUM_KEPT)

    async def run(self) -> None:
        while True:
            self._ticks.append(self._clock.now_ns())
            await asyncio.sleep(TICK_S)

    def not_before_ns(self, asked_at_ns: int) -> int:
        """What is handled now, and was asked for then, came no earlier than this."""
        return max(asked_at_ns, self._ticks[0])
