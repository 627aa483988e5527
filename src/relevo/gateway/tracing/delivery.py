"""What has ended on its way to a collector: the event loop only puts it into a queue, a thread does the rest.

Owns the queue, its bound, the thread, and the count of what was lost: what does not fit is dropped, what the collector
does not take is not sent twice (its exporter has tried again for as long as it is told to). A collector that is slow,
silent or gone costs nothing else. Does not know spans or protocols.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from relevo.telemetry.limited_log import LimitedLog

T = TypeVar("T")
S = TypeVar("S")

DROPPED_WHY = ("queue_full", "not_taken")  # too many wait; the collector did not take them in time
MAX_LINE_CHARS = 400  # arbitrary
SPANS_PER_ITEM = 8  # arbitrary: how many an item is thought to become, before it is known


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The defaults are OpenTelemetry's; see its OTEL_BSP_* variables."""

    max_waiting: int = 2048  # weights of items
    max_batch: int = 512  # spans
    delay_s: float = 5.0  # the longest that one waits for others


class Delivery(Generic[T, S]):
    """`put` on one thread, the event loop's; the others on any."""

    def __init__(
        self,
        spans_of: Callable[[T], Sequence[S]],
        export: Callable[[Sequence[S]], bool],
        limits: BatchLimits,
        limited: LimitedLog | None = None,
        weight_of: Callable[[T], int] = lambda item: 1,
    ) -> None:
        """`weight_of`: how much room it takes of `max_waiting`. `export` waits as long as it wants to; False: they are
        lost. All are called on the thread, `weight_of` on the other one too."""
        self._spans_of = spans_of
        self._export = export
        self._limits = limits
        self._weight_of = weight_of
        self._limited = limited or LimitedLog(logging.getLogger("relevo.tracing"))
        self._waiting: deque[T] = deque()
        self._wake_at = max(1, min(limits.max_batch // SPANS_PER_ITEM, limits.max_waiting))
        self._is_wanted = threading.Event()
        self._is_closing = False
        self._num_full = 0  # written by `put` alone, as the next
        self._weight_put = 0
        self._weight_taken = 0  # written by the thread alone, as the next
        self._num_not_taken = 0
        self._num_in_hand = 0  # taken out of the queue, not known to be delivered
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def put(self, item: T) -> bool:
        """False: it was dropped."""
        if self._weight_put - self._weight_taken >= self._limits.max_waiting:
            self._num_full += 1
            return False
        self._weight_put += self._weight_of(item)
        self._waiting.append(item)
        if len(self._waiting) >= self._wake_at and not self._is_wanted.is_set():
            self._is_wanted.set()
        return True

    def num_dropped(self) -> dict[str, int]:
        """By reason, one of `DROPPED_WHY`."""
        return {"queue_full": self._num_full, "not_taken": self._num_not_taken}

    def close(self, timeout_s: float) -> int:
        """Deliver what waits, in that time. How many were not."""
        self._is_closing = True
        self._is_wanted.set()
        self._thread.join(timeout_s)
        return len(self._waiting) + self._num_in_hand if self._thread.is_alive() else 0

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closing:
            self._is_wanted.wait(self._limits.delay_s)
            self._is_wanted.clear()
            self._deliver_all()
        self._deliver_all()

    def _deliver_all(self) -> None:
        while self._waiting:
            spans: list[S] = []
            self._num_in_hand = 0
            while self._waiting and len(spans) < self._limits.max_batch:
                item = self._waiting.popleft()
                self._weight_taken += self._weight_of(item)
                self._num_in_hand += 1
                spans += self._made(item)
            if not self._all_taken(spans):
                self._num_not_taken += self._num_in_hand
            self._num_in_hand = 0

    def _made(self, item: T) -> Sequence[S]:
        try:
            return self._spans_of(item)
        except Exception:
            self._limited.failure("spans", "the spans of a request could not be made")
            return ()

    def _all_taken(self, spans: list[S]) -> bool:
        most = self._limits.max_batch
        try:
            return all(self._export(spans[first : first + most]) for first in range(0, len(spans), most))
        except Exception as error:  # so do some exporters where no collector is there
            self._limited.warning("export", f"traces could not be sent: {error!r}"[:MAX_LINE_CHARS])
            return False
