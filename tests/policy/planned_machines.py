"""A model, devices and loads to plan for: figures that are public, loads that are made up."""

from __future__ import annotations

from relevo.policy.perf.engine_constants import DEFAULT_CONSTANTS
from relevo.policy.perf.known_engines import known_engine
from relevo.policy.perf.model_config import model_shape
from relevo.policy.perf.model_shape import ModelShape
from relevo.policy.scaling.candidates import Assumptions
from relevo.policy.scaling.demand import Demand, Sample
from relevo.policy.scaling.inventory import parse_inventory
from relevo.policy.scaling.screen import Screen, Targets
from relevo.policy.scaling.search import Question
from relevo.policy.scaling.worker_times import WorkerTimes

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128_256,
}
MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151_936,
}


def small_shape() -> ModelShape:
    return model_shape("llama-8b", LLAMA_8B)


def expert_shape() -> ModelShape:
    return model_shape("moe-235b", MOE)


def demand(prompt: int = 4000, output: int = 300, rate: float = 5.0, cached: int = 0) -> Demand:
    """Lengths between half and one and a half times the mean."""
    samples = tuple(
        Sample(prompt * part // 20, max(1, output * part // 20), (0, cached * part // 20)) for part in range(10, 31)
    )
    longest = max(s.num_prompt_tokens + s.num_output_tokens for s in samples)
    return Demand(requests_per_s=rate, samples=samples, longest_tokens=longest, cache_sizes=(0, 100_000))


def question(
    load: Demand,
    devices: str = "64xH100@3/h",
    *,
    shape: ModelShape | None = None,
    ttft_s: float = 2.0,
    itl_s: float = 0.03,
    assumed: Assumptions | None = None,
) -> Question:
    return Question(
        shape=shape or small_shape(),
        holdings=parse_inventory(devices),
        demand=load,
        targets=Targets(ttft_s=ttft_s, itl_s=itl_s),
        assumed=assumed or Assumptions(),
    )


def screen(asked: Question, engine: str | None = None) -> Screen:
    constants = (lambda device: DEFAULT_CONSTANTS) if engine is None else (lambda device: known_engine(engine, device))
    return Screen(WorkerTimes(asked.shape, constants, asked.assumed))
