"""What a step holds, in numbers, and what every model of step time answers.

A step is described by sums over its rows, so that a description costs the same for one row and for a thousand. A model
may be asked a million times per simulated hour: `decode_run_s` answers for a quiet stretch of decode steps at once, and
equals the sum of its steps.

Does not know schedulers, requests or devices.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from relevo.core.events import StepCosts
from relevo.core.plan import StepPlan


class StepShape(NamedTuple):
    """One forward pass. A row sees its context and itself: its KV tokens are those before it plus its own."""

    num_decode_rows: int = 0
    num_decode_kv_tokens: float = 0  # seen by them, summed
    num_prefill_rows: int = 0  # chunks of prompts
    num_prefill_tokens: int = 0  # computed in them
    num_prefill_kv_tokens: float = 0  # context at the end of each chunk, summed
    num_prefill_pairs: float = 0  # of a token of a chunk and a token that it sees, over all chunks

    @property
    def num_tokens(self) -> int:
        return self.num_decode_rows + self.num_prefill_tokens

    @property
    def num_kv_tokens(self) -> float:
        return self.num_decode_kv_tokens + self.num_prefill_kv_tokens

    def with_chunk(self, num_tokens: int, num_context: int) -> StepShape:
        """And a chunk of a prompt of which `num_context` tokens were computed before."""
        return self._replace(
            num_prefill_rows=self.num_prefill_rows + 1,
            num_prefill_tokens=self.num_prefill_tokens + num_tokens,
            num_prefill_kv_tokens=self.num_prefill_kv_tokens + num_context + num_tokens,
            num_prefill_pairs=self.num_prefill_pairs + num_tokens * (num_context + (num_tokens + 1) / 2),
        )


def step_shape(plan: StepPlan) -> StepShape:
    """What the step holds, in sums."""
    num_decodes = plan.num_decodes
    shape = StepShape(num_decodes, sum(plan.starts[:num_decodes]) + num_decodes)
    for start, length in zip(plan.starts[num_decodes:], plan.lengths[num_decodes:], strict=True):
        shape = shape.with_chunk(length, start)
    return shape


def decode_shape(num_rows: int, num_kv_tokens: float) -> StepShape:
    return StepShape(num_decode_rows=num_rows, num_decode_kv_tokens=num_kv_tokens)


class StepTimeModel(Protocol):
    """Seconds of forward passes of one worker. Pure: the same shape always takes the same time."""

    def step_s(self, step: StepShape) -> float: ...

    def decode_run_s(self, num_rows: int, num_kv_tokens: float, num_steps: int) -> float:
        """`num_steps` steps in which the same rows decode and nothing else happens; `num_kv_tokens` are seen by the
        first of them, and each step sees one more per row."""
        ...


@runtime_checkable
class DecodeSteps(Protocol):
    """A `StepTimeModel` that answers for many steps as fast as for one."""

    def decode_steps_s(self, num_rows: int, num_kv_tokens: float, num_steps: int) -> list[float]:
        """Each of the steps of `decode_run_s`, to the last bit as `step_s` has it."""
        ...


class FittedStepTimes:
    """The coefficients that a live worker learns about itself (`StepCosts`) as a model of step time."""

    def __init__(self, costs: StepCosts) -> None:
        self.costs = costs

    def step_s(self, step: StepShape) -> float:
        return self.costs.step_s(step.num_tokens, step.num_kv_tokens)

    def decode_run_s(self, num_rows: int, num_kv_tokens: float, num_steps: int) -> float:
        mean_kv_tokens = num_kv_tokens + num_rows * (num_steps - 1) / 2  # linear in it: the mean step is the mean
        return num_steps * self.costs.step_s(num_rows, mean_kv_tokens)
