"""A real model and sampler at the end of a plan that was encoded: the same tokens as beside the scheduler.

Red when penalties, biases or logprobs depend on an object that is not in the plan, or are counted anew after a
preemption or a fork. Schedules are searched on the fake runner, in tests/contract/test_plan_ranks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from tiny_decoders import BACKENDS, BLOCK_SIZE, VOCAB, hf_model, make_ops, prompt, small_layout

from relevo.core.baton import SampledToken
from relevo.core.ids import RequestId, WorkerId
from relevo.core.kv import KVLayout
from relevo.core.plan import StepPlan
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import spec_of
from relevo.engine.runner import LocalRunner
from relevo.engine.sampler import Sampler
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig

NUM_BLOCKS = 16
SAMPLINGS = (
    {"repetition_penalty": 1.3, "temperature": 0.0},
    {"frequency_penalty": 0.7, "presence_penalty": 0.4, "n": 2},
    {"logit_bias": {5: 4.0}, "num_logprobs": 3, "n": 3, "repetition_penalty": 0.8},
    {"min_tokens": 6, "top_k": 20, "min_p": 0.01},
)


@dataclass
class Memory:
    layout: KVLayout
    num_blocks: int
    buffer: memoryview


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    hf_model("qwen3").save_pretrained(path)
    return path


def make_runner(folder: Path, backend: str, num_blocks: int) -> LocalRunner:
    files = load_model_files(str(folder))
    model = spec_of(files.config).load(files.config, files.tensors(), make_ops(backend), max_model_len=100)
    layout = small_layout(files.config)
    memory = Memory(layout, num_blocks + 1, memoryview(bytearray((num_blocks + 1) * layout.bytes_per_block)))
    return LocalRunner(model, memory, Sampler(VOCAB), [num_blocks])


def requests() -> list[EngineRequest]:
    return [
        EngineRequest(
            request_id=RequestId(f"r{number}"),
            prompt_token_ids=tuple(prompt(5 + 2 * number, number)),
            sampling=SamplingParams(**({"max_tokens": 12, "seed": number} | sampling)),
            eos_token_ids=(3,),
        )
        for number, sampling in enumerate(SAMPLINGS)
    ]


Tokens = dict[tuple[RequestId, int], list[SampledToken]]


def run(runners: list[LocalRunner], asked: list[EngineRequest], num_blocks: int) -> tuple[Tokens, int]:
    """What is drawn, and how often blocks were taken away. Every runner after the first hears of plans in bytes."""
    scheduler = Scheduler(
        SchedulerConfig(
            worker_id=WorkerId("w"),
            epoch=1,
            first_block_id=0,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_batched_tokens=16,
            max_prefill_tokens=16,
            max_running=8,
            max_model_len=100,
        )
    )
    for request in asked:
        assert scheduler.submit(request, (), 0) is None
    tokens: Tokens = {}
    while (plan := scheduler.plan(0)) is not None:
        sent = msgspec.msgpack.encode(plan)
        result, *others = [
            runner.execute(plan if place == 0 else msgspec.msgpack.decode(sent, type=StepPlan))
            for place, runner in enumerate(runners)
        ]
        assert all(other.sampled == result.sampled for other in others)
        for outputs in scheduler.commit(plan, result, 0).outputs.values():
            for output in outputs:
                tokens.setdefault((output.request_id, output.sample_index), []).extend(output.tokens)
    return tokens, scheduler.num_preemptions


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_draws_what_the_runner_beside_the_scheduler_draws(folder: Path, backend: str) -> None:
    """And each request what it draws alone, in a pool that is too small for all."""
    runners = [make_runner(folder, backend, NUM_BLOCKS) for _ in range(2)]
    together, num_preemptions = run(runners, requests(), NUM_BLOCKS)
    assert num_preemptions > 0
    alone: Tokens = {}
    for request in requests():
        alone |= run([make_runner(folder, backend, 64)], [request], 64)[0]
    assert {key: [t.token_id for t in drawn] for key, drawn in together.items()} == {
        key: [t.token_id for t in drawn] for key, drawn in alone.items()
    }
