"""A quiet stretch of a worker's steps: what they do is known beforehand, so they are taken when it matters.

Owns when each of them ends. The scheduler says how many are quiet (`policy.worker.quiet_steps`); a message ends the
stretch with the step that it arrives in.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from relevo.policy.perf.step_time import DecodeSteps, StepShape, StepTimeModel, decode_shape
from relevo.sim.kernel import NS_PER_S

_PORTION = 32  # arbitrary: ends that are computed at once, most of them needless where a message comes soon


class Stretch:
    def __init__(self, times: StepTimeModel, slowness: float, first: StepShape, num_steps: int, now_ns: int) -> None:
        self.started_at_ns = now_ns
        self.ends: list[int] = []  # of its steps, as far as computed
        self.num_taken = 0
        self._times = times
        self._decode_steps_s = times.decode_steps_s if isinstance(times, DecodeSteps) else None
        self._slowness = slowness
        self._num_rows = first.num_decode_rows
        self._num_kv_tokens = first.num_decode_kv_tokens
        self._num_steps = num_steps
        self.extend()

    @property
    def is_complete(self) -> bool:
        """All ends are computed."""
        return len(self.ends) == self._num_steps

    def extend(self) -> None:
        """Compute the next ends."""
        ends, slowness, first = self.ends, self._slowness, len(self.ends)
        at_ns = ends[-1] if ends else self.started_at_ns
        for step_s in self._steps_s(first, min(self._num_steps - first, _PORTION)):
            at_ns += round(step_s * slowness * NS_PER_S)
            ends.append(at_ns)

    def _steps_s(self, first: int, num_steps: int) -> list[float]:
        if self._decode_steps_s is not None:
            return self._decode_steps_s(self._num_rows, self._num_kv_tokens + first * self._num_rows, num_steps)
        return [self._times.step_s(self.shape_of(index)) for index in range(first, first + num_steps)]

    def shape_of(self, index: float) -> StepShape:
        """Of that step; between two of them: their mean."""
        return decode_shape(self._num_rows, self._num_kv_tokens + index * self._num_rows)

    def started_before(self, index: int) -> int:
        """When that step began."""
        return self.ends[index - 1] if index else self.started_at_ns

    def cut(self, now_ns: int) -> int:
        """It ends with the step that is being computed; returns when."""
        self._num_steps = bisect_left(self.ends, now_ns) + 1
        del self.ends[self._num_steps :]
        return self.ends[-1]

    def num_ended(self, by_ns: int) -> int:
        """Of its steps."""
        return bisect_right(self.ends, by_ns)

    def take(self, num_steps: int) -> Sequence[int]:
        """The steps up to that one are over: their ends."""
        taken = self.ends[self.num_taken : num_steps]
        self.num_taken = num_steps
        return taken
