"""The sampler as its callers see it: draws, continuity, independence of the batch, masks, log-probabilities, faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.baton import SampledToken, SampleState
from relevo.core.errors import StepFailed
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.sampler import Sampler

VOCAB_SIZE = 24
EOS = 3


def request(prompt: Sequence[int] = (1, 2), **sampling: Any) -> EngineRequest:
    return EngineRequest(
        request_id="req-7",
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(**{"max_tokens": 64, "seed": 11} | sampling),
        eos_token_ids=(EOS,),
    )


def random_logits(seed: int, num_rows: int = 1, vocab_size: int = VOCAB_SIZE, scale: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(num_rows, vocab_size)) * scale).astype(np.float32)


def draw_one(logits: np.ndarray, req: EngineRequest, output: Sequence[int] = (), index: int = 0) -> SampledToken:
    return Sampler(VOCAB_SIZE).sample(logits, [(0, req, SampleState(index, list(output)))])[0]


sampling_params = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**64 - 1),
        "temperature": st.sampled_from([0.0, 1e-6, 0.3, 1.0, 2.5]),
        "top_k": st.sampled_from([0, 1, 5, VOCAB_SIZE, 500]),
        "top_p": st.sampled_from([0.05, 0.5, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.1, 1.0]),
        "frequency_penalty": st.sampled_from([0.0, -1.0, 1.5]),
        "presence_penalty": st.sampled_from([0.0, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 0.7, 1.3]),
        "logit_bias": st.sampled_from([{}, {5: 4.0}, {0: -100.0, 7: 2.0}]),
        "num_logprobs": st.sampled_from([None, 0, 3, 20]),
        "min_tokens": st.sampled_from([0, 4]),
        "stop_token_ids": st.sampled_from([(), (9,)]),
    }
)


@settings(max_examples=80, deadline=None)
@given(st.lists(sampling_params, min_size=2, max_size=5), st.integers(0, 1000), st.data())
def test_a_row_alone_equals_the_row_in_a_batch(params: list[dict[str, Any]], seed: int, data: st.DataObject) -> None:
    """Red if a draw ever reads another row, a shared generator or the row's place in the batch."""
    logits = random_logits(seed, len(params))
    rows = data.draw(st.permutations(range(len(params))))
    outputs = [data.draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=6)) for _ in params]
    specs = [(row, request(**params[row]), SampleState(row % 3, list(outputs[row]))) for row in rows]
    together = Sampler(VOCAB_SIZE).sample(logits, specs)
    for spec, drawn in zip(specs, together, strict=True):
        row, req, state = spec
        assert Sampler(VOCAB_SIZE).sample(logits[row : row + 1].copy(), [(0, req, state)]) == [drawn]


@settings(max_examples=40, deadline=None)
@given(sampling_params, st.integers(0, 1000))
def test_logits_are_only_read(params: dict[str, Any], seed: int) -> None:
    logits = random_logits(seed)
    before = logits.copy()
    draw_one(logits, request(**params), output=[4, 4, 5])
    assert np.array_equal(logits, before)


@settings(max_examples=40, deadline=None)
@given(sampling_params, st.integers(0, 1000), st.integers(0, 9))
def test_a_continuation_resumed_elsewhere_draws_the_same_tokens(
    params: dict[str, Any], seed: int, moved_after: int
) -> None:
    """Tokens 0..9 in one go equal 0..k, then k..9 on a fresh sampler. Red if the sampler keeps anything to itself."""
    logits = random_logits(seed, 10)
    req = request(**params)

    def run(sampler: Sampler, output: list[int], steps: range) -> list[int]:
        for step in steps:
            output.append(sampler.sample(logits, [(step, req, SampleState(1, list(output)))])[0].token_id)
        return output

    whole = run(Sampler(VOCAB_SIZE), [], range(10))
    first_leg = run(Sampler(VOCAB_SIZE), [], range(moved_after))
    assert run(Sampler(VOCAB_SIZE), first_leg, range(moved_after, 10)) == whole


CHI_SQUARE_999 = {11: 31.264}  # 0.999 quantile by degrees of freedom


@pytest.mark.parametrize("varied", ["seed", "sample_index", "position"])
def test_draws_follow_the_distribution(varied: str) -> None:
    """Chi-square over 6000 fixed keys; the number must be uniform along each part of its key."""
    logits = random_logits(5, 1, 12, scale=1.0)
    sampler = Sampler(12)
    counts = np.zeros(12)
    num_draws = 6000
    for i in range(num_draws):
        req = request(temperature=0.8, seed=i if varied == "seed" else 42)
        output = [0] * i if varied == "position" else []
        state = SampleState(i if varied == "sample_index" else 0, output)
        counts[sampler.sample(logits, [(0, req, state)])[0].token_id] += 1
    weights = np.exp(logits[0].astype(np.float64) / 0.8)
    expected = num_draws * weights / weights.sum()
    assert ((counts - expected) ** 2 / expected).sum() < CHI_SQUARE_999[11]


def test_a_draw_survives_rounding_noise() -> None:
    """All probabilities nearly tie and two workers round differently by 1e-6: next to no draw may change.

    Red if candidates are ordered by probability: ties then swap places and about every draw changes.
    """
    rng = np.random.default_rng(3)
    logits = random_logits(1, 1, 1000, scale=1e-6)
    sampler = Sampler(1000)
    num_changed = 0
    for seed in range(500):
        noisy = logits + rng.uniform(-1e-6, 1e-6, size=logits.shape).astype(np.float32)
        spec = [(0, request(seed=seed), SampleState(0))]
        num_changed += sampler.sample(logits, spec) != sampler.sample(noisy, spec)
    assert num_changed <= 2


def test_continuations_of_one_row_differ() -> None:
    specs = [(0, request(temperature=1.5), SampleState(index)) for index in range(16)]
    drawn = [token.token_id for token in Sampler(VOCAB_SIZE).sample(random_logits(2), specs)]
    assert len(set(drawn)) > 4


def test_no_specs_no_tokens() -> None:
    assert Sampler(VOCAB_SIZE).sample(np.zeros((0, VOCAB_SIZE), np.float32), []) == []


def test_greedy_takes_the_first_of_equals() -> None:
    logits = np.zeros((2, VOCAB_SIZE), np.float32)
    logits[0, [9, 6, 20]] = 2.0
    specs = [(1, request(temperature=0.0), SampleState(0)), (0, request(temperature=0.0), SampleState(0))]
    assert [t.token_id for t in Sampler(VOCAB_SIZE).sample(logits, specs)] == [0, 6]


def test_greedy_obeys_penalties() -> None:
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    logits[0, 5], logits[0, 6] = 2.0, 1.5
    assert draw_one(logits, request(temperature=0.0, presence_penalty=1.0)).token_id == 5
    assert draw_one(logits, request(temperature=0.0, presence_penalty=1.0), output=[5]).token_id == 6
    assert draw_one(logits, request(prompt=[5], temperature=0.0, presence_penalty=1.0)).token_id == 5
    assert draw_one(logits, request(prompt=[5], temperature=0.0, repetition_penalty=1.5)).token_id == 6


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_end_of_sequence_waits_for_min_tokens(temperature: float, ignore_eos: bool) -> None:
    """`ignore_eos` only keeps the request running: the token stays drawable, as in vLLM."""
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    logits[0, EOS], logits[0, 8], logits[0, 5] = 60.0, 50.0, 25.0
    req = request(temperature=temperature, min_tokens=2, stop_token_ids=(8, 10**6), ignore_eos=ignore_eos)
    assert draw_one(logits, req, output=[1]).token_id == 5
    assert draw_one(logits, req, output=[1, 1]).token_id == EOS


def test_a_mask_of_the_whole_vocabulary_is_ignored() -> None:
    req = request(temperature=1.0, min_tokens=5, stop_token_ids=tuple(range(VOCAB_SIZE)))
    assert draw_one(random_logits(1), req).token_id == draw_one(random_logits(1), request(temperature=1.0)).token_id


def test_bias_forces_and_forbids() -> None:
    logits = random_logits(4)
    assert draw_one(logits, request(logit_bias={7: 100.0, 10**6: 100.0, -1: 100.0})).token_id == 7
    best = int(logits.argmax())
    drawn = {draw_one(logits, request(logit_bias={best: -100.0}, seed=seed)).token_id for seed in range(200)}
    assert best not in drawn


def test_columns_after_the_vocabulary_are_padding() -> None:
    logits = np.full((1, VOCAB_SIZE + 8), 50.0, np.float32)
    logits[:, :VOCAB_SIZE] = random_logits(1)
    padded = draw_one(logits, request(temperature=0.0, num_logprobs=20))
    assert padded == draw_one(logits[:, :VOCAB_SIZE].copy(), request(temperature=0.0, num_logprobs=20))


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_row_fails_the_step_and_names_the_request(broken: float, temperature: float) -> None:
    logits = random_logits(1, 2)
    logits[1, 4] = broken
    req = request(temperature=temperature)
    with pytest.raises(StepFailed, match="req-7") as failure:
        Sampler(VOCAB_SIZE).sample(logits, [(1, req, SampleState(0))])
    assert failure.value.request_ids == {"req-7"}
    assert Sampler(VOCAB_SIZE).sample(logits, [(0, req, SampleState(0))])  # nobody draws from the broken row


def test_logprobs_are_of_the_raw_distribution() -> None:
    """Red if penalties, bias or temperature leak into what the client is told."""
    logits = random_logits(6, scale=40.0)
    raw = logits[0].astype(np.float64)
    expected = raw - raw.max() - np.log(np.exp(raw - raw.max()).sum())
    req = request(temperature=0.5, logit_bias={2: 1000.0}, repetition_penalty=1.3, num_logprobs=4)
    drawn = draw_one(logits, req, output=[2])
    assert drawn.token_id == 2
    assert drawn.logprob == pytest.approx(expected[2], abs=1e-5)
    best = np.argsort(-expected)[:4]
    assert [token_id for token_id, _ in drawn.top_logprobs] == best.tolist()
    assert [logprob for _, logprob in drawn.top_logprobs] == pytest.approx(expected[best].tolist(), abs=1e-5)


def test_top_logprobs_break_ties_by_token_id() -> None:
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    logits[0, 20] = 1.0
    drawn = draw_one(logits, request(num_logprobs=4))
    assert [token_id for token_id, _ in drawn.top_logprobs] == [20, 0, 1, 2]


@pytest.mark.parametrize(("num_logprobs", "num_top"), [(None, 0), (0, 0), (3, 3), (100, VOCAB_SIZE)])
def test_number_of_logprobs(num_logprobs: int | None, num_top: int) -> None:
    drawn = draw_one(random_logits(1), request(num_logprobs=num_logprobs))
    assert (drawn.logprob is None) == (num_logprobs is None)
    assert len(drawn.top_logprobs) == num_top


@pytest.mark.parametrize("temperature", [1.1e-5, 1e38, 1e300])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        req = request(temperature=temperature, min_p=0.01, top_p=0.9, min_tokens=1)
        drawn = draw_one(random_logits(1, scale=1000.0), req)
    assert 0 <= drawn.token_id < VOCAB_SIZE
