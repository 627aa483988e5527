"""Layers that see a part of the context keep a part of it: the same tokens and the same bits as a cache that keeps all.

Red if a layer writes or reads by another group's table or at another's place in a block, if a block is given away while
a step can still read it, if what is new in a block is not cleared in every group, or if a hit lacks what a window sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tiny_decoders import BACKENDS, BLOCK_SIZE, LOCAL, hf_model, make_ops, prompt

from relevo.core.baton import SampledToken
from relevo.core.ids import RequestId, WorkerId
from relevo.core.kv import KVGroup, KVKind, KVLayout
from relevo.core.model import LocalAttention
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.dense import one_full_group
from relevo.engine.models.families import spec_of
from relevo.engine.models.local_groups import groups_by_reach
from relevo.engine.models.spec import Model
from relevo.engine.ops.native.ops import NativeOps
from relevo.engine.runner import LocalRunner
from relevo.engine.sampler import Sampler
from relevo.kv.arena import Arena
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig
from relevo.policy.worker.table_rules import table_rules

Answers = dict[tuple[RequestId, int], list[SampledToken]]


@pytest.fixture(scope="module", params=sorted(LOCAL))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    hf_model(request.param, **LOCAL[request.param]).save_pretrained(path)
    return path


@pytest.fixture(scope="module", params=BACKENDS)
def model(request: pytest.FixtureRequest, folder: Path) -> Model:
    files = load_model_files(str(folder))
    return spec_of(files.config).load(files.config, files.tensors(), make_ops(request.param), 128)


def noisy_arena(groups: tuple[KVGroup, ...], num_blocks: int, dtype: str = "float32") -> Arena:
    """With a block to warm up in. All bits set are no number in any float, scales of integers included."""
    arena = Arena.create(KVLayout("tiny", dtype, BLOCK_SIZE, groups), num_blocks + 1, shared=False)
    np.frombuffer(arena.buffer, dtype=np.uint8)[:] = 255
    return arena


class Served:
    """A worker without processes: its scheduler and the model, in an arena that begins as noise."""

    def __init__(
        self,
        model: Model,
        groups: tuple[KVGroup, ...],
        num_blocks: int,
        *,
        caches: bool = True,
        arena: Arena | None = None,
    ) -> None:
        self.arena = arena = arena or noisy_arena(groups, num_blocks)
        self.runner = LocalRunner(model, arena, Sampler(model.config.vocab_size, model.ops.row_math), [num_blocks])
        self.scheduler = Scheduler(
            SchedulerConfig(
                worker_id=WorkerId("w"),
                epoch=1,
                first_block_id=0,
                num_blocks=num_blocks,
                block_size=BLOCK_SIZE,
                max_batched_tokens=11,
                max_prefill_tokens=9,
                max_running=8,
                max_model_len=128,
                enable_prefix_caching=caches,
                more_groups=table_rules(arena.layout),
            )
        )
        self.answers: Answers = {}
        self.most_held = 0

    def serve(self, requests: list[EngineRequest]) -> Answers:
        for request in requests:
            assert self.scheduler.submit(request, (), 0) is None
        while (plan := self.scheduler.plan(0)) is not None:
            self.most_held = max(self.most_held, self.scheduler.pool.num_held)
            for outputs in self.scheduler.commit(plan, self.runner.execute(plan), 0).outputs.values():
                for output in outputs:
                    self.answers.setdefault((output.request_id, output.sample_index), []).extend(output.tokens)
        assert self.scheduler.pool.num_held == 0 and not self.scheduler.has_work()
        return self.answers


def request(name: str, token_ids: list[int], max_tokens: int = 20, n: int = 1) -> EngineRequest:
    return EngineRequest(
        request_id=RequestId(name),
        prompt_token_ids=tuple(token_ids),
        sampling=SamplingParams(
            max_tokens=max_tokens,
            n=n,
            temperature=0.7,
            seed=3,
            num_logprobs=3,
            num_prompt_logprobs=None,
            ignore_eos=True,
        ),
    )


def traffic() -> Iterator[list[EngineRequest]]:
    """Prompts on both sides of a window of 7 and chunks of 7, shared beginnings, several continuations."""
    rng = Random(1)
    shared = prompt(33, 5)
    for turn in range(4):
        yield [
            request(f"{turn}-{length}", [*shared[: rng.choice((0, 9, 16, 28, 33))], *prompt(length, turn)], n=n)
            for length, n in ((1, 1), (5, 2), (6, 1), (7, 3), (8, 1), (15, 1), (22, 2))
        ]


def test_windows_and_chunks_have_groups_of_their_own(model: Model) -> None:
    full, *others = groups = spec_of(model.config).kv_groups(model.config)
    assert full.kind is KVKind.FULL and others and all(group.span == 7 for group in others)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(model.config.num_layers))
    assert all(group.num_layers <= full.num_layers for group in others)


@pytest.mark.parametrize(
    ("num_layers", "local", "sizes"),
    [
        (48, [layer for layer in range(48) if (layer + 1) % 4], [12, 12, 12, 12]),  # Llama 4 Scout
        (36, range(0, 36, 2), [18, 18]),  # gpt-oss-120b
        (18, [layer for layer in range(18) if (layer + 1) % 6], [3, 3, 3, 3, 3, 3]),  # Gemma 3 270M
        (62, [layer for layer in range(62) if (layer + 1) % 6], [10, 9, 9, 9, 9, 8, 8]),  # Gemma 3 27B
        (8, [3], [7, 1]),
        (4, range(4), [4]),  # windows everywhere
        (4, [], [4]),
    ],
)
def test_groups_are_as_even_as_can_be(model: Model, num_layers: int, local: Iterable[int], sizes: list[int]) -> None:
    layers = LocalAttention(layers=tuple(local), window=9)
    groups = groups_by_reach(replace(model.config, num_layers=num_layers, local=layers))
    assert [group.num_layers for group in groups] == sizes
    assert sorted(layer for group in groups for layer in group.layers) == list(range(num_layers))
    assert [group.is_bounded for group in groups] == [False] + [True] * (len(sizes) - 1)


def test_a_cache_in_groups_has_the_bits_of_one_that_keeps_all(model: Model) -> None:
    """The same steps: chunked prompts, batches, forks."""
    whole = Served(model, one_full_group(model.config), 400, caches=False)
    grouped = Served(model, spec_of(model.config).kv_groups(model.config), 400, caches=False)
    for requests in traffic():
        assert grouped.serve(requests) == whole.serve(requests)


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_other_numbers_lie_in_groups_too(folder: Path, dtype: str) -> None:
    files = load_model_files(str(folder))
    model = spec_of(files.config).load(files.config, files.tensors(), make_ops("native"), 128)
    answers = []
    for groups in (one_full_group(model.config), spec_of(model.config).kv_groups(model.config)):
        served = Served(model, groups, 200, caches=False, arena=noisy_arena(groups, 200, dtype))
        answers.append(served.serve(next(traffic())))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("num_blocks", [400, 60])
def test_hits_and_preemptions_leave_no_trace(model: Model, num_blocks: int) -> None:
    """The native backend computes the same bits in whichever steps; torch the same tokens."""
    whole = Served(model, one_full_group(model.config), 400, caches=False)
    grouped = Served(model, spec_of(model.config).kv_groups(model.config), num_blocks)
    for requests in traffic():
        whole.serve(requests)
        grouped.serve(requests)
    if isinstance(model.ops, NativeOps):
        assert grouped.answers == whole.answers
    assert {key: ids_of(tokens) for key, tokens in grouped.answers.items()} == {
        key: ids_of(tokens) for key, tokens in whole.answers.items()
    }
    assert grouped.scheduler.num_prefix_hits > 50
    assert (grouped.scheduler.num_preemptions > 0) == (num_blocks < 400)


def ids_of(tokens: list[SampledToken]) -> list[int]:
    return [token.token_id for token in tokens]


def test_a_warm_up_touches_its_scratch_blocks_alone(model: Model) -> None:
    served = Served(model, spec_of(model.config).kv_groups(model.config), 40)
    served.runner.warm_up()
    assert len(served.runner.measure([(9, 30)])) == 1
    assert np.isfinite(served.serve([request("r", prompt(30, 2))])[RequestId("r"), 0][0].logprob or 0.0)


def test_what_a_long_answer_holds_of_a_window_does_not_grow(model: Model) -> None:
    """100 tokens in an arena that one group of all layers could not hold them in."""
    groups = spec_of(model.config).kv_groups(model.config)
    asked = [request("r", prompt(10, 3), max_tokens=90)]
    num_full, num_window = 25, 2 + -(-(6 + 11) // BLOCK_SIZE)
    grouped = Served(model, groups, num_full + num_window * (len(groups) - 1), caches=False)
    whole = Served(model, one_full_group(model.config), 40)
    assert grouped.serve(asked) == whole.serve(asked)
    assert grouped.scheduler.num_preemptions == 0
    bytes_held = grouped.most_held * grouped.runner.layout.bytes_per_block
    assert bytes_held < whole.most_held * whole.runner.layout.bytes_per_block
    assert grouped.most_held <= num_full + 4 * (len(groups) - 1)
