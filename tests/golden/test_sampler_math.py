"""The sampler's arithmetic against straightforward implementations and Hugging Face's processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from relevo.core.baton import SampleState
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.logit_edits import edited
from relevo.engine.sampler import Sampler
from relevo.engine.sampling_math import candidates, draw, nucleus, waits


def request(prompt: tuple[int, ...] = (1,), **sampling: Any) -> EngineRequest:
    params = SamplingParams(**{"max_tokens": 64, "seed": 1} | sampling)
    return EngineRequest(request_id="r", prompt_token_ids=prompt, sampling=params)


def processors(
    repetition_penalty: float, temperature: float, min_p: float, top_k: int, top_p: float
) -> LogitsProcessorList:
    chain = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(repetition_penalty)])
    chain.append(TemperatureLogitsWarper(temperature))
    if min_p > 0:
        chain.append(MinPLogitsWarper(min_p))
    if top_k > 0:
        chain.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        chain.append(TopPLogitsWarper(top_p))
    return chain


@pytest.mark.parametrize("repetition_penalty", [1.0, 1.3, 0.6])
@pytest.mark.parametrize("temperature", [0.4, 1.0, 1.7])
@pytest.mark.parametrize("min_p", [0.0, 0.03])
@pytest.mark.parametrize("top_k", [0, 1, 12])
@pytest.mark.parametrize("top_p", [1.0, 0.85, 0.2])
def test_distribution_equals_transformers(
    repetition_penalty: float, temperature: float, min_p: float, top_k: int, top_p: float
) -> None:
    """Same support and same probabilities as transformers' processors in vLLM's order."""
    rng = np.random.default_rng(8)
    logits = (rng.normal(size=300) * 3).astype(np.float32)
    prompt, output = tuple(rng.integers(0, 300, 40).tolist()), rng.integers(0, 300, 25).tolist()
    chain = processors(repetition_penalty, temperature, min_p, top_k, top_p)
    scores = chain(torch.tensor([[*prompt, *output]]), torch.from_numpy(logits.copy())[None])[0]
    expected = torch.softmax(scores.double(), dim=-1).numpy()

    req = request(
        prompt,
        repetition_penalty=repetition_penalty,
        temperature=temperature,
        min_p=min_p,
        top_k=top_k,
        top_p=top_p,
    )
    token_ids, weights = candidates(edited(logits, req, SampleState(0, output)), req.sampling)
    probabilities = np.zeros(300)
    probabilities[slice(None) if token_ids is None else token_ids] = weights / weights.sum(dtype=np.float64)
    assert np.array_equal(probabilities > 0, expected > 0)
    assert np.allclose(probabilities, expected, atol=1e-6)


def test_frequency_and_presence_follow_the_openai_formula() -> None:
    """logit - count * frequency - (count > 0) * presence, counted over output tokens only."""
    logits = np.linspace(-2, 2, 10, dtype=np.float32)
    req = request(prompt=(7, 7), frequency_penalty=0.5, presence_penalty=-0.25)
    output = [1, 4, 4, 4, 9]
    expected = logits.astype(np.float64)
    for token_id in range(10):
        count = output.count(token_id)
        expected[token_id] -= count * 0.5 + (count > 0) * -0.25
    assert np.allclose(edited(logits, req, SampleState(0, output)), expected, atol=1e-6)


def test_bias_comes_before_the_repetition_penalty() -> None:
    logits = np.array([1.0, -1.0, 1.0], dtype=np.float32)
    req = request(prompt=(0, 1), repetition_penalty=2.0, logit_bias={0: 3.0, 1: -2.0})
    assert edited(logits, req, SampleState(0)).tolist() == [2.0, -6.0, 1.0]


WAITS_OF_SEED_1 = [0.36178517080144346, 1.8885484899048395, 0.16976248676289377]


def test_waits_never_change_between_releases() -> None:
    """Workers of two releases may share a request: red if the stream behind a seed changes."""
    assert np.allclose(waits(1, 0, 0, 3), WAITS_OF_SEED_1, rtol=1e-12)


def test_waits_depend_on_each_part_and_do_not_overlap() -> None:
    """Red if the next position starts inside the numbers of this one."""
    rows = [waits(*key, 64) for key in ((1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0), (2**64 - 1, 127, 2**32))]
    assert len(np.unique(np.concatenate(rows))) == 5 * 64
    assert np.array_equal(waits(1, 0, 0, 16), rows[0][:16])


def test_waits_are_exponential() -> None:
    drawn = waits(7, 0, 0, 200_000)
    assert abs(drawn.mean() - 1.0) < 0.01 and abs((drawn > 1.0).mean() - np.exp(-1.0)) < 0.005
    assert drawn.min() > 0.0


def test_rounding_noise_hardly_ever_changes_a_draw() -> None:
    """Two workers round differently. Red for an inverse of the cumulative sum: the noise of 50,000 tokens adds up."""
    rng = np.random.default_rng(3)
    logits = rng.normal(scale=2.0, size=50_000).astype(np.float32)
    noisy = logits + rng.normal(scale=1e-5, size=50_000).astype(np.float32)
    one, other = (np.exp(row - logits.max()) for row in (logits, noisy))
    assert sum(draw(one, w) != draw(other, w) for w in (waits(seed, 0, 0, 50_000) for seed in range(400))) == 0


logit_rows = st.lists(st.integers(-12, 12).map(lambda quarter: quarter / 4), min_size=2, max_size=30)


def plain_draw(logits: list[float], sampling: SamplingParams, token_waits: list[float], top_p: float) -> int:
    """One draw in float64 and Python loops."""
    scaled = [value / sampling.temperature for value in logits]
    weights = {i: float(np.exp(value - max(scaled))) for i, value in enumerate(scaled)}
    weights = {i: w for i, w in weights.items() if w >= sampling.min_p * (1 - 1e-6)}
    if 0 < sampling.top_k < len(weights):
        kth = sorted(weights.values(), reverse=True)[sampling.top_k - 1]
        weights = {i: w for i, w in weights.items() if w >= kth}
    total, mass, kept = sum(weights.values()), 0.0, {}
    for i in sorted(weights, key=lambda i: (-weights[i], i)):
        if kept and mass >= top_p * total:
            break
        kept[i] = weights[i]
        mass += weights[i]
    return min(kept, key=lambda i: token_waits[i] / kept[i])


@settings(max_examples=300, deadline=None)
@given(
    logit_rows,
    st.integers(0, 2**32),
    st.floats(0.2, 3.0),
    st.integers(0, 12),
    st.floats(0.05, 1.0),
    st.sampled_from([0.0, 0.05, 0.3, 1.0]),
)
def test_draw_equals_a_plain_implementation(
    logits: list[float], seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Ties are frequent here. On a boundary both neighbours are right: float32 and float64 may fall apart."""
    req = request(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    row = np.array([logits], dtype=np.float32)
    token = Sampler(len(logits)).sample(row, [(0, req, SampleState(2, [0] * 5))])[0].token_id
    token_waits = waits(seed, 2, 5, len(logits)).tolist()
    right = {plain_draw(logits, req.sampling, token_waits, top_p + noise) for noise in (0.0, 1e-6, -1e-6)}
    assert token in right


@pytest.mark.parametrize("top_p", [0.0, 1e-9, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("scale", [0.0, 0.2, 8.0])
def test_nucleus_of_a_large_vocabulary(top_p: float, scale: float) -> None:
    """The histogram finds what a full sort finds, for flat, even and peaked distributions of 256k tokens."""
    logits = np.random.default_rng(4).normal(size=262_144).astype(np.float32) * np.float32(scale)
    weights = np.exp(logits - logits.max())
    order = np.argsort(-weights, kind="stable")
    mass = np.cumsum(weights[order].astype(np.float64))
    num_kept = max(1, int((mass - weights[order] < top_p * mass[-1] * (1 - 1e-12)).sum()))
    kept = nucleus(weights, top_p)
    assert abs(len(kept) - num_kept) <= 1  # one more or less where the sums round apart
    assert np.array_equal(kept, np.sort(order[: len(kept)]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1e-30, 0.3, 1.0]), min_size=1, max_size=600), st.integers(0, 2**53 - 1))
def test_a_weight_of_zero_is_never_drawn(weights: list[float], seed: int) -> None:
    if any(weights):
        array = np.array(weights, dtype=np.float32)
        assert array[draw(array, waits(seed, 0, 0, len(weights)))] > 0
