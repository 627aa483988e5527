"""`relevo bench engine`: what one worker's engine does per second, and which share of the machine's limits that is.

Owns what is measured and how steps become rows. Limits are measured in the same run: the read bandwidth of a working
set as large as what a step must read, the peak multiply rate of the operands in use.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from relevo.bench.engine.held import held_grammar
from relevo.bench.engine.steps import TimedStep, time_decode, time_prefill
from relevo.bench.engine.words import EngineFacts, EngineUnderTest
from relevo.core.errors import StartError
from relevo.core.plan import StepClocks
from relevo.telemetry.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    prompt_lens: Sequence[int]
    batch_sizes: Sequence[int]
    contexts: Sequence[int]
    repeats: int  # prompts per length
    num_steps: int  # measured decode steps per batch and context
    seed: int
    is_held: bool = False  # decodes follow a grammar, see `held`

    @property
    def num_parts(self) -> int:
        """Prompts, and batches of decodes: what progress counts."""
        return len(self.prompt_lens) * self.repeats + len(self.contexts) * len(self.batch_sizes)

    @property
    def num_kv_tokens(self) -> int:
        """Room for the largest of everything that is measured, and a block's worth for each row."""
        longest = max(self.contexts) + self.num_steps + 64
        return max(max(self.batch_sizes) * longest, max(self.prompt_lens) + 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median=median(values), least=min(values), most=max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Medians over steps, in seconds. None: the runner has no such clock."""

    kernels_s: float | None
    inputs_s: float | None
    sampling_s: float | None
    schedule_s: float
    rest_s: float | None
    overhead_fraction: float | None  # of a step outside the kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRow:
    """Achieved rates are over kernel time where it is known, over the whole time otherwise."""

    prompt_len: int
    tokens_per_s: Spread
    breakdown: Breakdown  # of a whole prompt
    num_steps: int  # chunks of a prompt
    operations_per_s: float | None
    limit_operations_per_s: float | None

    @property
    def limit_fraction(self) -> float | None:
        return _ratio(self.operations_per_s, self.limit_operations_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRow:
    """`bound_s`: the bytes that a step must read at the bandwidth of a working set of that size."""

    batch_size: int
    context: int
    step_s: Spread
    breakdown: Breakdown
    step_bytes: int | None
    bytes_per_s: float | None
    operations_per_s: float | None
    limit_bytes_per_s: float | None
    limit_operations_per_s: float | None

    @property
    def tokens_per_s(self) -> float:
        return self.batch_size / self.step_s.median

    @property
    def bound_s(self) -> float | None:
        return _ratio(self.step_bytes, self.limit_bytes_per_s)

    @property
    def bound_fraction(self) -> float | None:
        """Of the bandwidth bound that a whole step reaches, everything around the kernels included."""
        return _ratio(self.bound_s, self.step_s.median)


@dataclass(slots=True)
class EngineReport:
    facts: EngineFacts | None = None
    prefill: list[PrefillRow] = field(default_factory=list)
    decode: list[DecodeRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what could not be measured, and why

    def to_json(self) -> dict[str, Any]:
        prefill = [asdict(row) | {"limit_fraction": row.limit_fraction} for row in self.prefill]
        decode = [
            asdict(row)
            | {"tokens_per_s": row.tokens_per_s, "bound_s": row.bound_s, "bound_fraction": row.bound_fraction}
            for row in self.decode
        ]
        facts = asdict(self.facts) if self.facts else None
        return {"facts": facts, "prefill": prefill, "decode": decode, "notes": self.notes}


def measure_engine(engine: EngineUnderTest, options: EngineOptions, report: EngineReport, progress: Progress) -> None:
    """Append rows to `report` one by one, so that an interrupted run holds what had happened. Nothing is told while a
    step is timed."""
    report.facts = engine.facts
    _note_what_is_missing(engine, report)
    rng = random.Random(f"engine:{options.seed}")
    progress.begin("warming up", options.num_parts, "parts")
    time_prefill(engine, min(options.prompt_lens), rng)
    for prompt_len in options.prompt_lens:
        if prompt_len + 1 > engine.facts.max_model_len:
            report.notes.append(f"no prefill of {prompt_len}: the model takes {engine.facts.max_model_len} tokens")
            continue
        runs = []
        for repeat in range(options.repeats):
            progress.rename(f"prefill of {prompt_len} tokens, {repeat + 1} of {options.repeats}")
            runs.append(time_prefill(engine, prompt_len, rng))
            progress.advance()
        report.prefill.append(prefill_row(engine, prompt_len, runs))
    grammar = held_grammar() if options.is_held else None
    for context in options.contexts:
        for batch_size in options.batch_sizes:
            progress.rename(f"decode of {batch_size} at context {context}, {options.num_steps} steps")
            try:
                steps = time_decode(engine, batch_size, context, options.num_steps, rng, grammar)
            except StartError as error:
                report.notes.append(f"no decode of {batch_size} at context {context}: {error.message}")
            else:
                report.decode.append(decode_row(engine, batch_size, context, steps))
            progress.advance()
    _raise_limits(engine, report)


def _raise_limits(engine: EngineUnderTest, report: EngineReport) -> None:
    """To the best that was seen while all rows were measured: a machine that others share is slow at times, and a limit
    from such a moment would be passed."""
    operations = _limit_operations(engine)
    report.prefill = [replace(row, limit_operations_per_s=operations) for row in report.prefill]
    report.decode = [
        replace(row, limit_bytes_per_s=_limit_bytes(engine, row.step_bytes), limit_operations_per_s=operations)
        for row in report.decode
    ]


def prefill_row(engine: EngineUnderTest, prompt_len: int, runs: Sequence[Sequence[TimedStep]]) -> PrefillRow:
    wholes = [_whole(run) for run in runs]
    breakdown = break_down(wholes)
    work, busy_s = engine.facts.work, breakdown.kernels_s or median(whole.total_s for whole in wholes)
    return PrefillRow(
        prompt_len=prompt_len,
        tokens_per_s=Spread.of([prompt_len / whole.total_s for whole in wholes]),
        breakdown=breakdown,
        num_steps=len(runs[0]),
        operations_per_s=work.prefill_operations(prompt_len) / busy_s if work else None,
        limit_operations_per_s=_limit_operations(engine),
    )


def decode_row(engine: EngineUnderTest, batch_size: int, context: int, steps: Sequence[TimedStep]) -> DecodeRow:
    breakdown = break_down(steps)
    work, busy_s = engine.facts.work, breakdown.kernels_s or median(step.total_s for step in steps)
    num_kv_tokens = round(median(step.num_kv_tokens for step in steps))
    step_bytes = work.decode_bytes(num_kv_tokens) if work else None
    return DecodeRow(
        batch_size=batch_size,
        context=context,
        step_s=Spread.of([step.total_s for step in steps]),
        breakdown=breakdown,
        step_bytes=step_bytes,
        bytes_per_s=_ratio(step_bytes, busy_s),
        operations_per_s=work.decode_operations(batch_size, num_kv_tokens) / busy_s if work else None,
        limit_bytes_per_s=_limit_bytes(engine, step_bytes),
        limit_operations_per_s=_limit_operations(engine),
    )


def break_down(steps: Sequence[TimedStep]) -> Breakdown:
    """Each part's median over steps; the overhead is the median of each step's own share."""
    schedule_s = median(step.schedule_s for step in steps)
    clocks = [step.clocks for step in steps if step.clocks is not None]
    if len(clocks) < len(steps):
        nothing = {"kernels_s": None, "inputs_s": None, "sampling_s": None, "rest_s": None, "overhead_fraction": None}
        return Breakdown(schedule_s=schedule_s, **nothing)
    outside = [1.0 - clock.kernels_s / step.total_s for clock, step in zip(clocks, steps, strict=True)]
    return Breakdown(
        kernels_s=median(clock.kernels_s for clock in clocks),
        inputs_s=median(clock.inputs_s for clock in clocks),
        sampling_s=median(clock.sampling_s for clock in clocks),
        schedule_s=schedule_s,
        rest_s=median(step.rest_s for step in steps),
        overhead_fraction=median(outside),
    )


def _whole(steps: Sequence[TimedStep]) -> TimedStep:
    """The steps of one prompt as one."""
    clocks = [step.clocks for step in steps if step.clocks is not None]
    parts = [(clock.inputs_s, clock.kernels_s, clock.sampling_s) for clock in clocks]
    return TimedStep(
        num_tokens=sum(step.num_tokens for step in steps),
        num_kv_tokens=sum(step.num_kv_tokens for step in steps),
        schedule_s=sum(step.schedule_s for step in steps),
        execute_s=sum(step.execute_s for step in steps),
        clocks=StepClocks(*map(sum, zip(*parts, strict=True))) if len(clocks) == len(steps) else None,
    )


def _note_what_is_missing(engine: EngineUnderTest, report: EngineReport) -> None:
    if engine.limits is None:
        report.notes.append("limits are not measured: they need the CPU kernels (pip install 'relevo[cpu]')")
    if engine.facts.work is None:
        report.notes.append("bytes and operations are not counted: there is no model")
    if engine.limits is not None and engine.facts.activation_dtype == "int16":
        report.notes.append("inputs have 16 bits; the limit is of 8-bit products, twice as many to an instruction")
    if engine.facts.backend == "torch":
        report.notes.append("kernel time of the torch backend is its whole forward pass, torch's own dispatch included")


def _limit_operations(engine: EngineUnderTest) -> float | None:
    if engine.limits is None or engine.facts.work is None:
        return None
    return engine.limits.operations_per_s(engine.facts.operand)


def _limit_bytes(engine: EngineUnderTest, step_bytes: int | None) -> float | None:
    return engine.limits.read_bytes_per_s(step_bytes) if engine.limits and step_bytes else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
