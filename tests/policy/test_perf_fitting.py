"""Fits of engine constants. Red when a fit no longer finds what made the rows, or a prior or an outlier rules it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_perf_model_shape import DEEPSEEK_V3, LLAMA_8B

from relevo.policy.perf.devices import device
from relevo.policy.perf.engine_constants import DEFAULT_CONSTANTS, EngineConstants
from relevo.policy.perf.fitting import FitOptions, MeasuredSteps, fit_constants
from relevo.policy.perf.linear import solve
from relevo.policy.perf.model_config import model_shape
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.step_time import decode_shape
from relevo.policy.perf.step_work import DeviceWork

TRUE = EngineConstants(
    memory_efficiency=0.8, expert_efficiency=0.5, layer_s=1.2e-4, expert_layer_s=6e-5, collective_s=1e-5, row_s=4e-5
)
DECODE = FitOptions(
    fitted=("memory_efficiency", "expert_efficiency", "layer_s", "expert_layer_s", "collective_s", "row_s"),
    prior_weight=1e-6,
)


def rows(constants: EngineConstants) -> list[MeasuredSteps]:
    """Decode steps of a dense model and one with experts, as an engine with these constants would take."""
    found = []
    for config in (LLAMA_8B, DEEPSEEK_V3):
        for tensor in (1, 2, 8):
            work = DeviceWork(model_shape("m", config), device("h200"), Parallelism(tensor=tensor))
            for batch in (1, 4, 16, 64):
                for context in (500, 8000):
                    step = work.work(decode_shape(batch, batch * context))
                    found.append(MeasuredSteps(((1.0, step),), constants.seconds(step)))
    return found


def test_the_constants_that_made_the_rows_are_found() -> None:
    found = fit_constants(rows(TRUE), DEFAULT_CONSTANTS, DECODE)
    for name in DECODE.fitted:
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.02), name


def test_without_rows_the_prior_stands() -> None:
    assert fit_constants([], TRUE) is TRUE


def test_few_rows_stay_near_the_prior_and_many_do_not() -> None:
    strong = replace(DECODE, prior_weight=30.0)
    few = fit_constants(rows(TRUE)[:2], DEFAULT_CONSTANTS, strong)
    many = fit_constants(rows(TRUE) * 40, DEFAULT_CONSTANTS, strong)
    assert few.layer_s == pytest.approx(DEFAULT_CONSTANTS.layer_s, rel=0.1)
    assert many.layer_s == pytest.approx(TRUE.layer_s, rel=0.2)


def test_wrong_rows_do_not_rule_the_fit() -> None:
    """One in eight rows was measured ten times too slow."""
    wrong = [replace(row, measured_s=10 * row.measured_s) if i % 8 == 3 else row for i, row in enumerate(rows(TRUE))]
    found = fit_constants(wrong, DEFAULT_CONSTANTS, DECODE)
    errors = sorted(abs(row.error(found)) for row in rows(TRUE))
    assert errors[len(errors) // 2] < 0.1


def test_no_efficiency_above_one() -> None:
    """Rows faster than the device can be: the fit goes to the ceiling and no further."""
    impossible = [replace(row, measured_s=row.measured_s / 20) for row in rows(TRUE)]
    found = fit_constants(impossible, DEFAULT_CONSTANTS, DECODE)
    assert found.memory_efficiency == pytest.approx(1.0)
    assert found.memory_efficiency <= 1.0 >= found.expert_efficiency


def test_linear_equations() -> None:
    assert solve([[0.0, 2.0], [1.0, 1.0]], [4.0, 5.0]) == pytest.approx([3.0, 2.0])
    assert solve([[1.0, 2.0], [2.0, 4.0]], [1.0, 2.0]) is None
