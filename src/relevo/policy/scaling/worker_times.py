"""How long the steps of a kind of worker take: a roofline with an engine's constants, speculation included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from relevo.policy.perf.engine_constants import EngineConstants
from relevo.policy.perf.model_shape import ModelShape
from relevo.policy.perf.roofline import RooflineModel
from relevo.policy.perf.step_time import StepShape, StepTimeModel, decode_shape
from relevo.policy.perf.step_work import DeviceWork
from relevo.policy.scaling.candidates import Assumptions, WorkerKind


class SpeculativeTimes:
    """A `StepTimeModel` of a worker whose decode steps verify drafted tokens: told per token that a row gets.

    Gaps come out even; a client sees several tokens at once and a longer gap after them. Drafting itself costs nothing.
    """

    def __init__(self, verified: StepTimeModel, tokens_per_step: float, num_drafted: int) -> None:
        self._verified, self._tokens, self._rows = verified, tokens_per_step, 1 + num_drafted

    def step_s(self, step: StepShape) -> float:
        if not step.num_decode_rows:
            return self._verified.step_s(step)
        wide = step._replace(num_decode_rows=step.num_decode_rows * self._rows)
        decode_s = self._verified.step_s(decode_shape(wide.num_decode_rows, wide.num_decode_kv_tokens))
        return self._verified.step_s(wide) - decode_s + decode_s / self._tokens

    def decode_run_s(self, num_rows: int, num_kv_tokens: float, num_steps: int) -> float:
        mean_kv_tokens = num_kv_tokens + num_rows * (num_steps - 1) / 2
        return num_steps * self.step_s(decode_shape(num_rows, mean_kv_tokens))


@dataclass(slots=True)
class WorkerTimes:
    """Of every kind of one model; each model of step time is made once."""

    shape: ModelShape
    constants: Callable[[str], EngineConstants]  # by a device's name
    assumed: Assumptions
    _made: dict[WorkerKind, StepTimeModel] = field(default_factory=dict)

    def of(self, kind: WorkerKind) -> StepTimeModel:
        if kind not in self._made:
            work = DeviceWork(
                self.shape, kind.device, kind.parallelism, self.assumed.kv_value_bytes, whole_prompts=True
            )
            times: StepTimeModel = RooflineModel(work, self.constants(kind.device.name))
            if self.assumed.num_drafted:
                times = SpeculativeTimes(times, self.assumed.tokens_per_step, self.assumed.num_drafted)
            self._made[kind] = times
        return self._made[kind]

    def front_end_s(self, kind: WorkerKind) -> float:
        """Of a request outside steps."""
        return self.constants(kind.device.name).ttft_floor_s

    def load_s_per_token(self) -> float:
        """Of a cached token that comes from the CPU's memory."""
        return self.shape.growing_kv_bytes_per_token(self.assumed.kv_value_bytes) / self.assumed.cpu_link_bytes_per_s
