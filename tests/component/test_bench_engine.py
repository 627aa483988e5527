"""The engine's instrument without a model: what is driven, and how steps become rows and shares of limits."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relevo.bench.engine.run import EngineOptions, EngineReport, break_down, decode_row, measure_engine, prefill_row
from relevo.bench.engine.steps import TimedStep, time_decode, time_prefill
from relevo.bench.engine.words import EngineUnderTest, ModelWork
from relevo.build.bench_engine import engine_under_test
from relevo.cli.bench import app
from relevo.core.errors import StartError
from relevo.core.plan import StepClocks
from relevo.settings import Settings
from relevo.telemetry.progress import SILENT

WORK = ModelWork(
    weight_bytes=1000, products_per_token=50, head_products=30, attention_products=4, kv_bytes_per_token=10
)
OPTIONS = EngineOptions(prompt_lens=[20], batch_sizes=[1, 3], contexts=[17], repeats=2, num_steps=4, seed=0)


class KnownLimits:
    def read_bytes_per_s(self, num_bytes: int) -> float:
        return 4.0 * num_bytes  # a quarter of a second, whatever the size

    def operations_per_s(self, operand: str) -> float:
        return {"int4": 1000.0}[operand]


@pytest.fixture
def engine() -> Iterator[EngineUnderTest]:
    with engine_under_test(Settings(model="fake", max_num_batched_tokens=64), OPTIONS.num_kv_tokens) as built:
        facts = replace(built.facts, work=WORK, operand="int4")
        yield replace(built, facts=facts, limits=KnownLimits())


def step(total_s: float, kernels_s: float, num_kv_tokens: int = 100) -> TimedStep:
    """Scheduling takes 0.1 s of the total, packing and sampling 0.05 s each."""
    return TimedStep(
        num_tokens=2,
        num_kv_tokens=num_kv_tokens,
        schedule_s=0.1,
        execute_s=total_s - 0.1,
        clocks=StepClocks(inputs_s=0.05, kernels_s=kernels_s, sampling_s=0.05),
    )


def test_a_prompt_is_computed_in_the_chunks_of_a_worker(engine: EngineUnderTest) -> None:
    steps = time_prefill(engine, 100, random.Random(0))
    assert [one.num_tokens for one in steps] == [64, 36]  # the token budget of the settings


def test_a_batch_decodes_at_its_context_without_a_prefill(engine: EngineUnderTest) -> None:
    """Red when decodes start one after another, or when their prompts are computed first."""
    steps = time_decode(engine, 3, 17, 4, random.Random(0))
    assert [one.num_tokens for one in steps] == [3] * 4
    assert [one.num_kv_tokens for one in steps] == [3 * (17 + 3 + number) for number in range(4)]  # 2 to warm up


class BusyMachine:
    """Others use it while the first rows are measured."""

    def __init__(self) -> None:
        self.num_asked = 0

    def read_bytes_per_s(self, num_bytes: int) -> float:
        return self.operations_per_s("")

    def operations_per_s(self, operand: str) -> float:
        self.num_asked += 1
        return 10.0 * self.num_asked


def test_limits_are_the_best_of_the_whole_run(engine: EngineUnderTest) -> None:
    """Red when rows stand beside a limit from a moment in which the machine was slow, and exceed it."""
    report = EngineReport()
    measure_engine(replace(engine, limits=BusyMachine()), OPTIONS, report, SILENT)
    num_seen = len(OPTIONS.prompt_lens) + 2 * len(OPTIONS.batch_sizes) * len(OPTIONS.contexts)
    rows = [*report.prefill, *report.decode]
    assert {row.limit_operations_per_s for row in rows} == {10.0 * (num_seen + 1)}
    assert all(row.limit_bytes_per_s is not None and row.limit_bytes_per_s > 10.0 * num_seen for row in report.decode)


def test_what_does_not_fit_is_said(engine: EngineUnderTest) -> None:
    with pytest.raises(StartError, match=r"cannot run|do not fit"):
        time_decode(engine, 60, 1000, 4, random.Random(0))
    report = EngineReport()
    plan = replace(OPTIONS, prompt_lens=[20, 10**6], contexts=[17, 100_000])
    measure_engine(engine, plan, report, SILENT)
    assert [row.prompt_len for row in report.prefill] == [20]
    assert [(row.batch_size, row.context) for row in report.decode] == [(1, 17), (3, 17)]
    assert sum("no prefill of 1000000" in note for note in report.notes) == 1
    assert sum("at context 100000" in note for note in report.notes) == 2


def test_work_of_a_step_and_of_a_prompt() -> None:
    assert WORK.decode_bytes(7) == 1000 + 70
    assert WORK.decode_operations(2, 7) == 2 * (2 * (50 + 30) + 7 * 4)
    assert WORK.prefill_operations(3) == 2 * (3 * 50 + (1 + 2 + 3) * 4 + 30)


def test_a_decode_row_and_its_bound(engine: EngineUnderTest) -> None:
    row = decode_row(engine, 2, 50, [step(0.5, 0.25), step(0.4, 0.2), step(1.0, 0.5)])
    assert (row.step_s.median, row.step_s.least, row.step_s.most) == (0.5, 0.4, 1.0)
    assert row.tokens_per_s == 4.0
    assert row.step_bytes == 2000
    assert row.bytes_per_s == 2000 / 0.25  # over kernel time
    assert row.bound_s == 0.25
    assert row.bound_fraction == 0.5  # over the whole step
    assert row.operations_per_s == 2 * (2 * 80 + 400) / 0.25
    assert row.breakdown.overhead_fraction == 0.5


def test_a_prefill_row_sums_its_chunks(engine: EngineUnderTest) -> None:
    row = prefill_row(engine, 10, [[step(0.5, 0.3), step(0.5, 0.2)], [step(1.0, 0.5), step(1.0, 0.5)]])
    assert (row.tokens_per_s.least, row.tokens_per_s.median, row.tokens_per_s.most) == (5.0, 7.5, 10.0)
    assert row.num_steps == 2
    assert row.breakdown.kernels_s == 0.75
    assert row.operations_per_s == pytest.approx(WORK.prefill_operations(10) / 0.75)
    assert row.limit_fraction == pytest.approx(WORK.prefill_operations(10) / 750)


def test_parts_of_a_step_add_up() -> None:
    parts = break_down([step(0.5, 0.25)])
    assert parts.rest_s == pytest.approx(0.05)
    without = break_down([replace(step(0.5, 0.25), clocks=None), step(0.5, 0.25)])
    assert (without.kernels_s, without.overhead_fraction, without.schedule_s) == (None, None, 0.1)


def bench_engine(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["engine", *arguments], env={"COLUMNS": "160"})


def test_the_command_prints_tables_and_says_what_it_could_not_measure(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    sizes = ["--prompt-lens", "20", "--batch-sizes", "1,3", "--contexts", "17", "--repeats", "2", "--num-steps", "2"]
    result = bench_engine("fake", *sizes, "--json", str(out))
    assert result.exit_code == 0, result.output
    for words in ("Prefill", "Decode", "Where a step goes", "prompt of 20", "3 at 17", "there is no model"):
        assert words in result.output
    report = json.loads(out.read_text())["report"]
    assert [row["batch_size"] for row in report["decode"]] == [1, 3]
    assert report["decode"][0]["bound_fraction"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no-such-model.gguf",), "no file or folder"),
        (("fake", "--backend", "abacus"), "--backend abacus"),
        (("fake", "--cores", "4096"), "--cores 4096"),
        (("fake", "--contexts", "0"), "not a list of token counts"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    result = bench_engine(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert words in result.output
