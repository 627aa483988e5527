"""Step times as DistServe's profiler fits them: prompts quadratic in their lengths, decode linear in two regimes.

prompts: a + b * tokens + c * sum of squares; decode: a + b * context tokens + c * rows, with other coefficients from
a number of rows on. Source: DistServe (OSDI'24), simdistserve, Apache-2.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from relevo.policy.perf.step_time import StepShape, decode_shape


class Coefficients(NamedTuple):
    base_s: float
    per_first_s: float  # per token; of decode per token of context
    per_second_s: float  # per squared token of a prompt; of decode per row


@dataclass(frozen=True, slots=True, kw_only=True)
class PolynomialTimes:
    """A `StepTimeModel` without mixed steps: those cost prompts and decode rows one after the other. `stage_s`: added
    to prompts, once per pipeline stage. `overhead_s` and `overhead_per_kv_token_s`: of every step, whatever the stages.
    """

    prefill: Coefficients
    decode_small: Coefficients
    decode_large: Coefficients
    large_from_rows: int
    pipeline: int = 1
    stage_s: float = 0.0
    overhead_s: float = 0.0
    overhead_per_kv_token_s: float = 0.0

    def step_s(self, step: StepShape) -> float:
        total = self.overhead_s + self.overhead_per_kv_token_s * step.num_kv_tokens
        if step.num_prefill_tokens:
            squares = 2 * step.num_prefill_pairs - step.num_prefill_tokens  # n (n + 1) / 2 pairs a prompt
            base, per_token, per_square = self.prefill
            total += (base + per_token * step.num_prefill_tokens + per_square * squares) / self.pipeline
            total += self.stage_s * self.pipeline
        if step.num_decode_rows:
            is_small = step.num_decode_rows < self.large_from_rows
            base, per_kv_token, per_row = self.decode_small if is_small else self.decode_large
            total += (base + per_kv_token * step.num_decode_kv_tokens + per_row * step.num_decode_rows) / self.pipeline
        return total

    def decode_run_s(self, num_rows: int, num_kv_tokens: float, num_steps: int) -> float:
        return num_steps * self.step_s(decode_shape(num_rows, num_kv_tokens + num_rows * (num_steps - 1) / 2))
