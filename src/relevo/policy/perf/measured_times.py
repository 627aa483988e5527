"""Step times by interpolation in measured tables: decode over (rows, context), prompts over tokens.

Outside a table times go on along its last piece; `holds` says whether a step is inside, and a model made with
`is_strict` refuses instead. Where tables have no steps that hold both, a mixed step costs its prompts, their time
multiplied by `mixed_factor`, with a token per decode row added to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from relevo.core.errors import StartError
from relevo.policy.perf.curves import Curve, Surface
from relevo.policy.perf.step_time import StepShape, decode_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePoint:
    num_rows: int
    context: float  # tokens that a row sees, mean
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPoint:
    num_tokens: int  # of all prompts of the step
    step_s: float


class MeasuredTimes:
    """A `StepTimeModel`. Raises StartError outside the tables if `is_strict`."""

    def __init__(
        self,
        decode: Iterable[DecodePoint],
        prefill: Iterable[PrefillPoint],
        *,
        mixed_factor: float = 1.1,  # SplitwiseSim's, for batches of both kinds
        is_strict: bool = False,
    ) -> None:
        self._decode = Surface((point.num_rows, point.context, point.step_s) for point in decode)
        self._prefill = Curve((point.num_tokens, point.step_s) for point in prefill)
        self._mixed_factor, self._is_strict = mixed_factor, is_strict

    def holds(self, step: StepShape) -> bool:
        """Whether the step lies between measured ones."""
        if step.num_prefill_tokens:
            return self._prefill.holds(step.num_tokens)
        return self._decode.holds(step.num_decode_rows, _context(step))

    def step_s(self, step: StepShape) -> float:
        if self._is_strict and not self.holds(step):
            raise StartError(
                f"no measured step is like one of {step.num_decode_rows} decode rows with "
                f"{step.num_decode_kv_tokens:.0f} tokens of context and {step.num_prefill_tokens} prompt tokens; "
                "measure further or allow extrapolation"
            )
        if not step.num_prefill_tokens:
            return self._decode.at(step.num_decode_rows, _context(step)) if step.num_decode_rows else 0.0
        factor = self._mixed_factor if step.num_decode_rows else 1.0
        return factor * self._prefill.at(step.num_tokens)

    def decode_run_s(self, num_rows: int, num_kv_tokens: float, num_steps: int) -> float:
        if not num_rows:
            return 0.0
        first = num_kv_tokens / num_rows
        knots = self._decode.knots(num_rows, first, first + num_steps - 1)
        borders = sorted({0, num_steps, *(ceil(knot - first) for knot in knots)})
        total = 0.0
        for begin, end in pairwise(borders):  # the table is straight in between: the middle step is the mean
            middle = first + (begin + end - 1) / 2
            total += (end - begin) * self.step_s(decode_shape(num_rows, num_rows * middle))
        return total


def _context(step: StepShape) -> float:
    return step.num_decode_kv_tokens / max(1, step.num_decode_rows)
