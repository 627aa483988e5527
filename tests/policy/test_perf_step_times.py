"""Models of step time. Red when a step's work is counted otherwise, or a quiet stretch differs from its steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_perf_model_shape import DEEPSEEK_V3, GPT_OSS_120B, KIMI_K25, LLAMA_4_SCOUT, LLAMA_8B, QWEN35_35B

from relevo.core.errors import SettingsError, StartError
from relevo.core.events import StepCosts
from relevo.policy.perf.closed_loop import ClosedLoop, steady_steps, steps_of
from relevo.policy.perf.devices import DEVICES, device
from relevo.policy.perf.engine_constants import EngineConstants
from relevo.policy.perf.measured_times import DecodePoint, MeasuredTimes, PrefillPoint
from relevo.policy.perf.memory_plan import MemoryLimits, device_weight_bytes, memory_plan
from relevo.policy.perf.model_config import model_shape
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.polynomial_times import Coefficients, PolynomialTimes
from relevo.policy.perf.roofline import RooflineModel
from relevo.policy.perf.step_time import FittedStepTimes, StepShape, StepTimeModel, decode_shape
from relevo.policy.perf.step_work import DeviceWork

IDEAL = EngineConstants(
    memory_efficiency=1.0, expert_efficiency=1.0, compute_efficiency=1.0, link_efficiency=1.0, layer_s=0.0,
    expert_layer_s=0.0,
)  # fmt: skip


def roofline(
    config: dict[str, object], device_name: str = "h100", constants: EngineConstants = IDEAL, **spread: int
) -> RooflineModel:
    return RooflineModel(DeviceWork(model_shape("m", config), device(device_name), Parallelism(**spread)), constants)


def every_model() -> Sequence[StepTimeModel]:
    return [
        FittedStepTimes(StepCosts(base_s=1e-3, per_token_s=1e-4, per_kv_token_s=1e-7)),
        PolynomialTimes(
            prefill=Coefficients(1e-2, 1e-4, 1e-8),
            decode_small=Coefficients(2e-2, 6e-7, 4e-5),
            decode_large=Coefficients(7e-3, 6e-7, 1.6e-4),
            large_from_rows=95,
        ),
        MeasuredTimes(
            [
                DecodePoint(num_rows=rows, context=context, step_s=1e-2 + 1e-4 * rows + 1e-9 * context**2)
                for rows in (1, 8, 64)
                for context in (100, 300, 1000)
            ],
            [PrefillPoint(num_tokens=n, step_s=1e-4 * n) for n in (128, 1024)],
        ),
        *(roofline(config) for config in (LLAMA_8B, GPT_OSS_120B, LLAMA_4_SCOUT, DEEPSEEK_V3, QWEN35_35B)),
    ]


def test_decode_of_one_row_reads_all_weights_once() -> None:
    """Llama-3.1-8B on an H100: (weights without the embedding) / 3.35 TB/s, and 131,072 bytes per token of context."""
    shape = model_shape("m", LLAMA_8B)
    model = roofline(LLAMA_8B)
    weight_bytes = shape.weight_bytes - 128256 * 4096 * 2
    assert model.step_s(decode_shape(1, 1000)) == pytest.approx((weight_bytes + 1000 * 131_072) / 3.35e12)


def test_a_long_prompt_is_bound_by_products() -> None:
    """Two operations per weight and token, of the output layer for the last token, and of pairs for attention."""
    shape = model_shape("m", LLAMA_8B)
    body = shape.num_weights - 2 * 128256 * 4096
    pairs = 4096 * 4097 / 2
    operations = 2 * (4096 * body + 128256 * 4096 + pairs * 32 * 2 * 32 * 128)
    assert roofline(LLAMA_8B).step_s(StepShape().with_chunk(4096, 0)) == pytest.approx(operations / 989e12)


def test_fixed_costs_and_efficiency_follow_published_decode_times() -> None:
    """Llama-3.1-8B in bfloat16 on an H100 at 8 rows, 1024 + 512 tokens: 7.4, 4.8, 3.3 and 2.7 ms on 1 to 8 devices."""
    for tensor, measured_s in ((1, 7.4e-3), (2, 4.8e-3), (4, 3.3e-3), (8, 2.7e-3)):
        model = roofline(LLAMA_8B, constants=EngineConstants(), tensor=tensor)
        assert model.step_s(decode_shape(8, 8 * 1280)) == pytest.approx(measured_s, rel=0.17)


@pytest.mark.parametrize("tensor", [1, 2, 8, 16])
def test_tensor_ranks_divide_heads_but_no_latent(tensor: int) -> None:
    def read_s(config: dict[str, object]) -> float:
        return roofline(config, tensor=tensor).work.reads[0].read_s

    assert read_s(LLAMA_8B) == pytest.approx(131_072 / min(tensor, 8) / 3.35e12)  # 8 KV heads: then copies
    assert read_s(DEEPSEEK_V3) == pytest.approx(70_272 / 3.35e12)


def test_windows_and_chunks_stop_reading() -> None:
    """gpt-oss: 18 layers read no more than 128 tokens of a row, 18 read all, 2,048 bytes per layer and token."""
    model = roofline(GPT_OSS_120B)
    growth_s = model.step_s(decode_shape(1, 10_001)) - model.step_s(decode_shape(1, 10_000))
    assert growth_s == pytest.approx(36_864 / 3.35e12)
    early_s = model.step_s(decode_shape(1, 101)) - model.step_s(decode_shape(1, 100))
    assert early_s == pytest.approx(73_728 / 3.35e12)


def test_attention_data_ranks_share_requests_and_experts() -> None:
    """8 ranks of 8 rows each hold whole attention weights, an eighth of the experts and their own KV."""
    alone, shared = roofline(DEEPSEEK_V3, "h200", tensor=8), roofline(DEEPSEEK_V3, "h200", attention_data=8, expert=8)
    step = decode_shape(64, 64 * 4000)
    assert shared.work.work(step).num_rows == 8
    assert shared.work.work(step).experts == alone.work.work(step).experts
    assert shared.work.work(step).parts[0][0] > 4 * alone.work.work(step).parts[0][0]


@pytest.mark.parametrize("index", range(len(every_model())))
@given(rows=st.integers(1, 200), context=st.integers(1, 9000), num_steps=st.integers(1, 300))
def test_a_quiet_stretch_is_the_sum_of_its_steps(index: int, rows: int, context: int, num_steps: int) -> None:
    model = every_model()[index]
    steps = [model.step_s(decode_shape(rows, rows * (context + done))) for done in range(num_steps)]
    assert model.decode_run_s(rows, rows * context, num_steps) == pytest.approx(sum(steps), rel=1e-9)


@pytest.mark.parametrize("config", [LLAMA_8B, GPT_OSS_120B, LLAMA_4_SCOUT, DEEPSEEK_V3, QWEN35_35B])
@given(rows=st.integers(1, 300), context=st.integers(1, 20_000), chunk=st.integers(1, 4096))
def test_more_work_never_takes_less_time(config: dict[str, object], rows: int, context: int, chunk: int) -> None:
    model = roofline(config, constants=EngineConstants())
    step = decode_shape(rows, rows * context)
    longer, more = decode_shape(rows, rows * (context + 1)), decode_shape(rows + 1, (rows + 1) * context)
    assert model.step_s(step) <= model.step_s(longer)
    assert model.step_s(step) <= model.step_s(more) * (1 + 1e-12)
    assert model.step_s(step.with_chunk(chunk, 0)) <= model.step_s(step.with_chunk(chunk, 100)) * (1 + 1e-12)
    assert model.step_s(step) <= model.step_s(step.with_chunk(chunk, 0))


def test_outside_a_table_the_last_piece_goes_on_or_the_step_is_refused() -> None:
    decode = [DecodePoint(num_rows=1, context=context, step_s=context * 1e-5) for context in (100, 200)]
    prefill = [PrefillPoint(num_tokens=100, step_s=0.1), PrefillPoint(num_tokens=200, step_s=0.3)]
    loose, strict = MeasuredTimes(decode, prefill), MeasuredTimes(decode, prefill, is_strict=True)
    beyond = decode_shape(1, 400)
    assert loose.step_s(beyond) == pytest.approx(4e-3)
    assert not loose.holds(beyond)
    assert loose.step_s(StepShape().with_chunk(150, 0)) == pytest.approx(0.2)
    assert strict.step_s(decode_shape(1, 150)) == pytest.approx(1.5e-3)
    with pytest.raises(StartError, match="no measured step"):
        strict.step_s(beyond)


def test_distserve_polynomial_by_hand() -> None:
    model = PolynomialTimes(
        prefill=Coefficients(0.01, 1e-4, 1e-8),
        decode_small=Coefficients(0.02, 1e-6, 1e-4),
        decode_large=Coefficients(0.01, 1e-6, 2e-4),
        large_from_rows=100,
        stage_s=1e-3,
    )
    prompts = StepShape().with_chunk(300, 0).with_chunk(100, 0)
    assert model.step_s(prompts) == pytest.approx(0.011 + 400e-4 + (300**2 + 100**2) * 1e-8)
    assert model.step_s(decode_shape(99, 5000)) == pytest.approx(0.02 + 5e-3 + 99e-4)
    assert model.step_s(decode_shape(100, 5000)) == pytest.approx(0.01 + 5e-3 + 200e-4)


def test_memory_of_kimi_on_eight_devices() -> None:
    """Ranks hold copies of the projections to latents and of routers; a pipeline of two halves them."""
    shape = model_shape("m", KIMI_K25)
    eight = 8 * device_weight_bytes(shape, Parallelism(tensor=8))
    staged = 8 * device_weight_bytes(shape, Parallelism(tensor=4, pipeline=2))
    assert eight / 2**30 == pytest.approx(571, rel=0.01)
    assert staged / 2**30 == pytest.approx(562, rel=0.01)


def test_a_pool_counts_what_a_process_takes_besides() -> None:
    """Llama-3.1-8B on an H100: 79.6 GiB less weights, context, graphs and activations, at 128 KiB a token."""
    shape, h100 = model_shape("m", LLAMA_8B), device("h100")
    plan = memory_plan(shape, h100, Parallelism(), MemoryLimits())
    free = h100.memory_bytes - plan.weight_bytes - plan.activation_bytes - plan.runtime_bytes
    assert plan.weight_bytes == shape.weight_bytes
    assert plan.num_blocks == int(free / (16 * 131_072))
    assert plan.runtime_bytes == pytest.approx(2.25 * 2**30)
    assert memory_plan(shape, h100, Parallelism(), MemoryLimits(utilization=0.1)).num_blocks == 0


def test_a_pool_of_latents_is_no_larger_with_more_ranks_of_copies() -> None:
    shape, h200 = model_shape("m", DEEPSEEK_V3), device("h200")
    copies = memory_plan(shape, h200, Parallelism(tensor=8), MemoryLimits())
    own = memory_plan(shape, h200, Parallelism(attention_data=8, expert=8), MemoryLimits())
    assert own.num_pool_tokens > 5 * copies.num_pool_tokens


def test_prompts_of_others_lengthen_the_time_per_token() -> None:
    """Ten others, 1000-token prompts, 100 tokens out: one step in ten holds a prompt."""
    model = FittedStepTimes(StepCosts(base_s=0.01, per_token_s=1e-5, per_kv_token_s=0.0))
    steps = steps_of(ClosedLoop(concurrency=11, num_input_tokens=1000, num_output_tokens=1000), 11)
    assert steps.mixed_fraction == pytest.approx(0.01)
    assert steps.tpot_s(model) == pytest.approx(0.01 + 11e-5 + 0.01 * 1000e-5)


def test_where_prompts_are_computed_elsewhere_their_rate_bounds_the_batch() -> None:
    model = FittedStepTimes(StepCosts(base_s=0.01, per_token_s=0.0, per_kv_token_s=0.0))
    loop = ClosedLoop(
        concurrency=100, num_input_tokens=1000, num_output_tokens=100, is_decode_only=True, max_requests_per_s=7
    )
    assert steady_steps(loop, model).decode.num_decode_rows == 7  # 7 a second for one second each
    assert steady_steps(loop, model).mixed_fraction == 0.0


def test_names_of_devices() -> None:
    assert device("H100_SXM") is DEVICES["h100"]
    assert device("a100-80gb") is DEVICES["a100"]
    with pytest.raises(StartError, match="tpu"):
        device("tpu")
    with pytest.raises(SettingsError, match="equal groups"):
        Parallelism(tensor=4, expert=3)
