"""What an engine under test is, for `relevo bench engine`: a runner, a scheduler to drive it, facts, and limits.

Owns the arithmetic of work: bytes that a decode step must read, multiply-adds that a prompt needs. Names no backend;
what composes an engine fills the facts in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from relevo.core.ports import ModelRunner
from relevo.policy.worker.scheduler import Scheduler


class MachineLimits(Protocol):
    """What the cores of the engine can do at most, measured when asked for."""

    def read_bytes_per_s(self, num_bytes: int) -> float:
        """Reading a working set of that size, on all of the engine's cores."""
        ...

    def operations_per_s(self, operand: str) -> float:
        """Multiplications and additions in registers, on all of the engine's cores."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """Of one model in one format. A product is one multiply-add: two operations."""

    weight_bytes: int  # read by every step: all matrices, the output layer's too; of an embedding only rows are read
    products_per_token: int  # with weights, for every token
    head_products: int  # with the output layer, for every token whose logits are asked for
    attention_products: int  # for every pair of a token and a token it sees
    kv_bytes_per_token: int

    def decode_bytes(self, num_kv_tokens: int) -> int:
        """Read by one step whose rows see `num_kv_tokens` tokens in all."""
        return self.weight_bytes + num_kv_tokens * self.kv_bytes_per_token

    def decode_operations(self, num_rows: int, num_kv_tokens: int) -> int:
        products = num_rows * (self.products_per_token + self.head_products)
        return 2 * (products + num_kv_tokens * self.attention_products)

    def prefill_operations(self, prompt_len: int) -> int:
        """Of a whole prompt: every token sees itself and those before it; one row of logits."""
        num_pairs = prompt_len * (prompt_len + 1) // 2
        products = prompt_len * self.products_per_token + num_pairs * self.attention_products
        return 2 * (products + self.head_products)


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
    activation_dtype: str  # of the inputs of integer products: "int16" or "int8"; empty where inputs are floats
    work: ModelWork | None  # None: there is no model


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUnderTest:
    """`new_scheduler` gives one over all of the engine's blocks; one at a time is used."""

    facts: EngineFacts
    runner: ModelRunner
    new_scheduler: Callable[[], Scheduler]
    limits: MachineLimits | None  # None: nothing here can measure them
