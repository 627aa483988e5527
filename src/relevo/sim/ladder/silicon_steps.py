"""From a row of the silicon table to the steps that its server took.

Owns what the table does not say and has to be assumed: which checkpoint a precision stands for, and in which format KV
is kept. NVIDIA's FP4 checkpoints of models with experts keep attention in bfloat16; their KV is FP8, as that of
Llama-3.1-70B in FP8 and of TensorRT-LLM with 8-bit weights. GLM-5's sparse attention keeps 656 bytes per latent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from relevo.policy.perf.closed_loop import ClosedLoop, steady_steps
from relevo.policy.perf.devices import device
from relevo.policy.perf.engine_constants import EngineConstants
from relevo.policy.perf.fitting import MeasuredSteps
from relevo.policy.perf.memory_plan import MemoryLimits, memory_plan
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.roofline import RooflineModel
from relevo.policy.perf.step_time import StepShape
from relevo.policy.perf.step_work import DeviceWork
from relevo.policy.perf.weight_formats import WeightFormat, WeightFormats
from relevo.sim.ladder.leave_out import LabelledSteps
from relevo.sim.tables.model_files import config_path, read_model_shape
from relevo.sim.tables.silicon import SiliconRow

_UTILIZATION = 0.95  # of device memory. Arbitrary: engines' defaults are 0.85 to 0.95 of it or of what weights leave
_PROMPTS_FIRST = ("sglang",)  # engines that, as these runs set them up, compute waiting prompts before they decode
_SPARSE_KV_BYTES = 656 / 576  # per value of a latent: FP8 with scales, rope in bfloat16

# Names of one shape, and the configs that have it.
_CONFIGS = {
    "deepseek-ai/DeepSeek-R1": "deepseek-ai/DeepSeek-V3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-V3",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-ai/DeepSeek-V3",
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
    "Qwen/Qwen3-235B-A22B-FP8": "Qwen/Qwen3-235B-A22B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
}
_FORMATS: dict[str, Callable[[], WeightFormats]] = {
    "bf16": lambda: WeightFormats.uniform(WeightFormat.BF16),
    "fp8": lambda: WeightFormats.uniform(WeightFormat.FP8),
    "fp8_block": lambda: WeightFormats.uniform(WeightFormat.FP8_BLOCK),
    "int4": lambda: WeightFormats.experts_only(WeightFormat.INT4_G32),
}
_FP4_DENSE = WeightFormats.uniform(WeightFormat.NVFP4)
_FP4_EXPERTS = WeightFormats(
    attention=WeightFormat.BF16, dense=WeightFormat.NVFP4, experts=WeightFormat.NVFP4, shared=WeightFormat.NVFP4
)


@dataclass(slots=True)
class SiliconServers:
    """Reads each config once, from a folder of Hugging Face configs. `whole_prompts`: as of `DeviceWork`."""

    configs: Path
    whole_prompts: bool = False
    _work: dict[tuple[str, str, str, str, Parallelism], DeviceWork] = field(default_factory=dict)

    def steps(self, row: SiliconRow) -> LabelledSteps:
        """What its decoding workers did, on average. Which requests decode at a time follows from default constants,
        so that no measured time has a part in it."""
        work = self.device_work(row, row.parallelism)
        steady = steady_steps(self.loop(row, work), RooflineModel(work))
        shares = [(1.0 - steady.mixed_fraction, work.work(steady.decode))]
        if steady.mixed_fraction:
            shares.append((steady.mixed_fraction, work.work(steady.mixed)))
        model = config_path(Path(), _CONFIGS.get(row.model, row.model)).name.removesuffix("_config.json")
        kind = "split" if row.prefill else "aggregated"
        return LabelledSteps(
            row_id=row.row_id,
            model=model.partition("--")[2],
            engine=row.engine,
            device=row.device,
            cell=" ".join((model.partition("--")[2], row.precision, row.engine, row.version, row.device, kind)),
            steps=MeasuredSteps(tuple(shares), row.tpot_s),
        )

    def prompt_s(self, row: SiliconRow, constants: EngineConstants) -> float:
        """One prompt of its length alone, in one step."""
        model = RooflineModel(self.device_work(row, row.parallelism), constants)
        return model.step_s(StepShape().with_chunk(row.num_input_tokens, 0))

    def loop(self, row: SiliconRow, work: DeviceWork) -> ClosedLoop:
        limits = MemoryLimits(kv_value_bytes=kv_value_bytes(row), utilization=_UTILIZATION)
        plan = memory_plan(work.shape, work.device, row.parallelism, limits)
        prompts_per_s = float("inf")
        if row.prefill:
            prefill = RooflineModel(self.device_work(row, row.prefill.parallelism))
            width = row.prefill.parallelism.attention_data if self.whole_prompts else 1
            prompt_s = prefill.step_s(chunks(StepShape(), row.num_input_tokens, 0, width))
            num_at_once = row.prefill.num_workers * row.prefill.parallelism.attention_data
            prompts_per_s = num_at_once / prompt_s / row.num_workers
        return ClosedLoop(
            concurrency=max(1.0, row.concurrency / row.num_workers),
            num_input_tokens=row.num_input_tokens,
            num_output_tokens=row.num_output_tokens,
            max_rows=max(1.0, plan.num_pool_tokens / (row.num_input_tokens + row.num_output_tokens)),
            is_in_waves=row.has_fixed_lengths and row.engine in _PROMPTS_FIRST,
            is_decode_only=row.prefill is not None,
            max_requests_per_s=prompts_per_s,
        )

    def device_work(self, row: SiliconRow, parallelism: Parallelism) -> DeviceWork:
        key = (row.model, row.precision, row.engine, row.device, parallelism)
        if key not in self._work:
            path = config_path(self.configs, _CONFIGS.get(row.model, row.model))
            shape = read_model_shape(path, stored_formats(row))
            self._work[key] = DeviceWork(
                shape, device(row.device), parallelism, kv_value_bytes(row), whole_prompts=self.whole_prompts
            )
        return self._work[key]


def chunks(step: StepShape, num_tokens: int, num_context: int, number: int) -> StepShape:
    """And so many chunks alike."""
    for _ in range(number):
        step = step.with_chunk(num_tokens, num_context)
    return step


def stored_formats(row: SiliconRow) -> WeightFormats:
    if "gpt-oss" in row.model:
        return WeightFormats.experts_only(WeightFormat.MXFP4)  # whatever the table calls it
    if row.precision == "fp4":
        return _FP4_DENSE if "Llama" in row.model or "Qwen3-32B" in row.model else _FP4_EXPERTS
    return _FORMATS[row.precision]()


def kv_value_bytes(row: SiliconRow) -> float:
    if "GLM-5" in row.model:
        return _SPARSE_KV_BYTES
    is_fp8 = row.precision == "fp4" and "gpt-oss" not in row.model
    is_fp8 = is_fp8 or (row.engine == "trtllm" and row.precision != "bf16") or "Llama-3.1-70B" in row.model
    return 1.0 if is_fp8 else 2.0
