"""Step times from a model's shape, a device, a parallelism and an engine's constants: the analytic model.

Source: the roofline model (Williams, Waterman, Patterson 2009): what is read and what is multiplied overlap, the longer
one counts. Fixed costs per layer are added to it, which explain how decode times scale with tensor parallelism.
"""

from __future__ import annotations

from relevo.policy.perf.engine_constants import DEFAULT_CONSTANTS, EngineConstants, StepWork
from relevo.policy.perf.step_time import StepShape, decode_shape
from relevo.policy.perf.step_work import DeviceWork


class RooflineModel:
    """A `StepTimeModel`. Remembers what a decode batch costs besides its KV, so that asking again is cheap."""

    def __init__(self, work: DeviceWork, constants: EngineConstants = DEFAULT_CONSTANTS) -> None:
        self.work, self.constants = work, constants
        self._fixed_s: dict[int, float] = {}  # of a decode step, by its rows
        self._fixed_limits_s: dict[int, tuple[float, float]] = {}  # the same at the device's ceilings
        self._reads = [  # (seconds per token that a row reads, tokens at most)
            (max(cost.read_s / constants.memory_efficiency, cost.product_s / constants.compute_efficiency), cost)
            for cost in work.reads
        ]

    def step_s(self, step: StepShape) -> float:
        if step.num_prefill_tokens:
            return self.constants.seconds(self.work.work(step))
        return self.decode_run_s(step.num_decode_rows, step.num_decode_kv_tokens, 1)

    def decode_steps_s(self, num_rows: int, num_kv_tokens: float, num_steps: int) -> list[float]:
        """Each of the steps of `decode_run_s`, to the last bit as `step_s` has it."""
        kv_tokens = [num_kv_tokens + number * num_rows for number in range(num_steps)]
        if len(self._reads) != 1 or self._reads[0][1].max_span is not None:
            return [self.decode_run_s(num_rows, each, 1) for each in kv_tokens]
        fixed_s, num_local_rows = self._fixed_of(num_rows), self.work.num_local_rows(num_rows)
        token_s = self._reads[0][0]
        return [fixed_s + num_local_rows * (token_s * (each / num_rows)) for each in kv_tokens]

    def _fixed_of(self, num_rows: int) -> float:
        fixed_s = self._fixed_s.get(num_rows)
        if fixed_s is None:
            fixed_s = self.constants.seconds(self.work.fixed_work(decode_shape(num_rows, 0)))
            self._fixed_s[num_rows] = fixed_s
        return fixed_s

    def decode_run_s(self, num_rows: int, num_kv_tokens: float, num_steps: int) -> float:
        fixed_s = self._fixed_of(num_rows)
        context = num_kv_tokens / num_rows if num_rows else 0.0
        read_s = 0.0
        for token_s, cost in self._reads:
            read_s += token_s * _sum_of_reads(context, num_steps, cost.max_span)
        return num_steps * fixed_s + self.work.num_local_rows(num_rows) * read_s

    def limits_s(self, step: StepShape) -> tuple[float, float]:
        """What a device at its ceilings would need for what the step reads, and for what it multiplies: how well a
        step uses either is that over the time it takes."""
        if step.num_prefill_tokens:
            return _at_ceilings(self.work.work(step))
        num_rows, limits = step.num_decode_rows, self._fixed_limits_s.get(step.num_decode_rows)
        if limits is None:
            limits = self._fixed_limits_s[num_rows] = _at_ceilings(self.work.fixed_work(decode_shape(num_rows, 0)))
        read_s, product_s = limits
        context = step.num_decode_kv_tokens / num_rows if num_rows else 0.0
        for cost in self.work.reads:
            num_tokens = self.work.num_local_rows(num_rows) * cost.num_read(context)
            read_s += cost.read_s * num_tokens
            product_s += cost.product_s * num_tokens
        return read_s, product_s


def _at_ceilings(work: StepWork) -> tuple[float, float]:
    parts = (*work.parts, work.experts)
    return sum(read_s for read_s, _ in parts), sum(product_s for _, product_s in parts)


def _sum_of_reads(context: float, num_steps: int, max_span: int | None) -> float:
    """Tokens that a row reads in that many steps, which see one more each; none reads more than `max_span`."""
    if max_span is not None:
        num_growing = max(0, min(num_steps, int(max_span - context) + 1)) if context <= max_span else 0
        growing = num_growing * context + num_growing * (num_growing - 1) / 2
        return growing + (num_steps - num_growing) * max_span
    return num_steps * context + num_steps * (num_steps - 1) / 2
