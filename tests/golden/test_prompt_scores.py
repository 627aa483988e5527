"""Log probabilities of prompts are those that `transformers` computes, in chunks, beside others, after a cached prefix.

Driven by the scheduler that serves, with the runner that serves, on both backends.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_decoders import BACKENDS, BLOCK_SIZE, VOCAB, hf_logits, hf_model, make_ops, prompt, small_layout

from relevo.core.errors import StepFailed
from relevo.core.handoff import KVPath, Link
from relevo.core.ids import RequestId, WorkerId
from relevo.core.kv import Reservation
from relevo.core.prompt_scores import PromptScores
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import spec_of
from relevo.engine.prompt_scores import score
from relevo.engine.runner import LocalRunner
from relevo.engine.sampler import Sampler
from relevo.kv.arena import Arena
from relevo.policy.worker import step_planner
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig

NUM_BLOCKS = 62
NUM_BEST = 3
Told = dict[RequestId, list[PromptScores]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    hf_model("qwen3", head_dim=16).save_pretrained(path)
    return path


@pytest.fixture(params=BACKENDS)
def runner(request: pytest.FixtureRequest, folder: Path) -> LocalRunner:
    files = load_model_files(str(folder))
    decoder = spec_of(files.config).load(files.config, files.tensors(), make_ops(request.param), max_model_len=128)
    arena = Arena.create(small_layout(files.config), NUM_BLOCKS + 2, shared=False)
    return LocalRunner(decoder, arena, Sampler(VOCAB), (NUM_BLOCKS, NUM_BLOCKS + 1))


def make_scheduler(max_batched_tokens: int) -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            worker_id=WorkerId("w"),
            epoch=1,
            first_block_id=0,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            max_batched_tokens=max_batched_tokens,
            max_prefill_tokens=max_batched_tokens,
            max_running=8,
            max_model_len=128,
        )
    )


def scored(name: str, token_ids: Sequence[int], num_best: int | None = NUM_BEST, max_tokens: int = 2) -> EngineRequest:
    sampling = SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, num_prompt_logprobs=num_best)
    return EngineRequest(request_id=RequestId(name), prompt_token_ids=tuple(token_ids), sampling=sampling)


def run(scheduler: Scheduler, runner: LocalRunner) -> Told:
    told: Told = {}
    while (plan := scheduler.plan(0)) is not None:
        outcome = scheduler.commit(plan, runner.execute(plan), 0)
        for output in outcome.all_outputs:
            if output.prompt_scores is not None:
                told.setdefault(output.request_id, []).append(output.prompt_scores)
    return told


def check(pieces: Sequence[PromptScores], token_ids: Sequence[int]) -> None:
    """Each token of the prompt but the first, once, in order, as transformers has it."""
    reference = torch.log_softmax(torch.tensor(hf_logits(hf_model("qwen3", head_dim=16), list(token_ids))), -1).numpy()
    starts = [piece.first for piece in pieces]
    ends = [piece.first + piece.num_tokens for piece in pieces]
    assert starts[0] == 1 and starts[1:] == ends[:-1] and ends[-1] == len(token_ids)
    places = np.arange(len(token_ids) - 1)
    own = [value for piece in pieces for value in array("d", piece.logprobs)]
    np.testing.assert_allclose(own, reference[places, token_ids[1:]], atol=2e-4)
    ranks = [value for piece in pieces for value in array("i", piece.ranks)]
    assert ranks == [
        1 + int((row > row[token]).sum()) for row, token in zip(reference[:-1], token_ids[1:], strict=True)
    ]
    best = np.array([value for piece in pieces for value in array("d", piece.best_logprobs)]).reshape(-1, NUM_BEST)
    best_ids = np.array([value for piece in pieces for value in array("i", piece.best_ids)]).reshape(-1, NUM_BEST)
    np.testing.assert_allclose(best, -np.sort(-reference[:-1])[:, :NUM_BEST], atol=2e-4)
    np.testing.assert_allclose(reference[places[:, None], best_ids], best, atol=2e-4)


@pytest.mark.parametrize("max_batched_tokens", [128, 16, 6])
def test_scores_equal_transformers_however_prompts_are_cut(runner: LocalRunner, max_batched_tokens: int) -> None:
    """Red if a chunk's last token, whose successor is in the next chunk, were forgotten or taken from another row."""
    scheduler, prompts = make_scheduler(max_batched_tokens), {"a": prompt(37, 1), "b": prompt(22, 2), "c": prompt(2, 3)}
    assert scheduler.submit(scored("plain", prompt(30, 4), None, 12), (), 0) is None
    for name, token_ids in prompts.items():
        assert scheduler.submit(scored(name, token_ids), (), 0) is None
    told = run(scheduler, runner)
    assert set(told) == set(prompts)
    for name, token_ids in prompts.items():
        check(told[RequestId(name)], token_ids)


def test_a_cached_prefix_is_computed_again_and_cached_all_the_same(runner: LocalRunner) -> None:
    scheduler, token_ids = make_scheduler(32), prompt(40, 5)
    for name in ("first", "second"):
        assert scheduler.submit(scored(name, token_ids), (), 0) is None
        check(run(scheduler, runner)[RequestId(name)], token_ids)
    assert scheduler.num_prefix_hits == 0
    assert scheduler.submit(scored("plain", token_ids, None), (), 0) is None
    run(scheduler, runner)
    assert scheduler.num_prefix_hits == 36


def test_room_with_sealed_tokens_is_computed_from_the_first_token_on(runner: LocalRunner) -> None:
    """A prefill worker was lost: what it had sealed was told by nobody for sure. Red if only the rest were scored."""
    scheduler, token_ids = make_scheduler(32), prompt(21, 6)
    request = scored("r", token_ids)
    assert scheduler.reserve(request, 0) is None and len(scheduler.take_grants(0)) == 1
    scheduler.seal(request.request_id, 8)
    assert scheduler.submit_reserved(request.request_id, (), 0) is None
    check(run(scheduler, runner)[request.request_id], token_ids)


def test_a_prompt_for_another_worker_is_scored_from_its_first_token_on(runner: LocalRunner) -> None:
    scheduler, token_ids = make_scheduler(32), prompt(21, 7)
    blocks = tuple(range(40, 46))
    room = Reservation(
        request_id=RequestId("r"),
        worker_id=WorkerId("d"),
        epoch=1,
        block_size=BLOCK_SIZE,
        block_ids=blocks,
        generations=(0,) * len(blocks),
        num_hit_tokens=8,
    )
    path = KVPath(transport="shm", link=Link.MEMORY, address="")
    assert scheduler.prefill_into(scored("r", token_ids), room, 0, path=path) is None
    check(run(scheduler, runner)[RequestId("r")], token_ids)


def test_a_step_has_only_so_many_rows_of_logits(runner: LocalRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if a long prompt's logits were computed at once, or if others had to wait for what is scored."""
    monkeypatch.setattr(step_planner, "MAX_SCORED_TOKENS", 8)
    scheduler, sizes = make_scheduler(64), []
    for name, num_best in (("a", 1), ("b", 1), ("plain", None)):
        assert scheduler.submit(scored(name, prompt(30, 8), num_best), (), 0) is None
    while (plan := scheduler.plan(0)) is not None:
        sizes.append(sum(plan.lengths[place] for place in plan.scored))
        if plan.step_id == 1:
            assert 30 in plan.lengths
        scheduler.commit(plan, runner.execute(plan), 0)
    assert max(sizes) == 8 and sum(sizes) == 60


def test_nan_names_the_request_whose_prompt_it_is_in() -> None:
    logits = np.zeros((2, VOCAB), dtype=np.float32)
    logits[1, 3] = np.nan
    with pytest.raises(StepFailed, match="request r1") as raised:
        score(logits, [1, 2], 1, 0, RequestId("r1"))
    assert raised.value.request_ids == {"r1"}
