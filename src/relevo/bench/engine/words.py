"""What an engine under test is, for `relevo bench engine`: a runner, a scheduler to drive it, facts, and limits.

Names no backend; what composes an engine fills the facts in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from relevo.core.ports import ModelRunner
from relevo.policy.perf.model_work import ModelWork
from relevo.policy.worker.scheduler import Scheduler


class MachineLimits(Protocol):
    """What the cores of the engine can do at most: measured whenever it is asked, the best that was seen is told."""

    def read_bytes_per_s(self, num_bytes: int) -> float:
        """Reading a working set of that size, on all of the engine's cores."""
        ...

    def operations_per_s(self, operand: str) -> float:
        """Multiplications and additions in registers, on all of the engine's cores."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    model: str
    backend: str
    path: str  # of instructions; empty where the backend does not say
    dtype: str
    quantization: str | None
    kv_dtype: str
    cores: tuple[int, ...]
    max_model_len: int
    operand: str  # whose multiply rate bounds the matrix products: "f32", "bf16", "int8" or "int4"
    activation_dtype: str  # inputs of products are rounded to it: "int16", "int8" or "bfloat16"; empty: to nothing
    work: ModelWork | None  # None: there is no model


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUnderTest:
    """`new_scheduler` gives one over all of the engine's blocks; one at a time is used."""

    facts: EngineFacts
    runner: ModelRunner
    new_scheduler: Callable[[], Scheduler]
    limits: MachineLimits | None  # None: nothing here can measure them
