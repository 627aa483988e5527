"""What a client asks for is built once per request: a step neither looks at its dictionaries again nor counts anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.baton import SampleState
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.logit_edits import EditCache, RequestEdits, SampleEdits, edited
from relevo.engine.sampler import Sampler
from relevo.engine.sampling_math import best_logprobs, log_normaliser

VOCAB_SIZE = 300


def request(prompt: tuple[int, ...] = (1, 2), **sampling: Any) -> EngineRequest:
    params = SamplingParams(**{"max_tokens": 64, "seed": 11} | sampling)
    return EngineRequest(request_id="r", prompt_token_ids=prompt, sampling=params, eos_token_ids=(3,))


class CountedBias(dict[int, float]):
    num_reads = 0

    def __getitem__(self, token_id: int) -> float:
        self.num_reads += 1
        return super().__getitem__(token_id)


class CountedPrompt(tuple[int, ...]):
    num_reads = 0

    def __iter__(self) -> Iterator[int]:
        CountedPrompt.num_reads += 1
        return super().__iter__()


def test_a_step_reads_nothing_of_what_a_client_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 continuations, a bias for every token, all penalties: red if a step reads bias, prompt or old output again."""
    counted: list[int] = []
    build = SampleEdits.__init__

    def counting(self: SampleEdits, of_request: RequestEdits, sample: SampleState) -> None:
        counted.append(sample.sample_index)
        build(self, of_request, sample)

    monkeypatch.setattr(SampleEdits, "__init__", counting)
    bias = CountedBias({token_id: token_id / 100 for token_id in range(VOCAB_SIZE)})
    prompt = CountedPrompt(range(200))
    asked = request(prompt, n=64, logit_bias=bias, repetition_penalty=1.2, frequency_penalty=0.5, min_tokens=50)
    sampler, samples = Sampler(VOCAB_SIZE), [SampleState(index) for index in range(64)]
    logits = np.random.default_rng(5).normal(size=(64, VOCAB_SIZE)).astype(np.float32)
    for _ in range(6):
        tokens = sampler.sample(logits, [(row, asked, sample) for row, sample in enumerate(samples)])
        for sample, token in zip(samples, tokens, strict=True):
            sample.output_token_ids.append(token.token_id)
    assert bias.num_reads == VOCAB_SIZE and CountedPrompt.num_reads == 1
    assert counted == list(range(64))  # once each; from there on by one token per step


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([{}, {5: 4.0, 0: -100.0}]),
    st.sampled_from([1.0, 1.3]),
    st.sampled_from([0.0, 1.5]),
    st.sampled_from([0, 4]),
    st.lists(st.integers(0, 20), max_size=5),
    st.lists(st.integers(0, 20), min_size=1, max_size=8),
)
def test_carried_on_equals_built_anew(
    bias: dict[int, float], repetition: float, frequency: float, min_tokens: int, before: list[int], after: list[int]
) -> None:
    """A continuation that ran here from the start, and one that came with `before` already drawn elsewhere."""
    asked = request(
        (1, 2, 2, 19),
        logit_bias=bias,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        min_tokens=min_tokens,
    )
    cache, sample = EditCache(VOCAB_SIZE), SampleState(0, list(before))
    row = np.random.default_rng(len(after)).normal(size=VOCAB_SIZE).astype(np.float32)
    for token_id in after:
        carried_on = row.copy()
        edits = cache.of(asked, sample)
        edits.apply(carried_on)
        cache.keep([edits])
        assert carried_on.tolist() == edited(row, asked, SampleState(0, list(sample.output_token_ids))).tolist()
        sample.output_token_ids.append(token_id)


def test_what_ended_is_forgotten() -> None:
    """Red if the arrays of requests that are over stay."""
    cache = EditCache(VOCAB_SIZE)
    for number in range(1000):
        asked = EngineRequest(
            request_id=str(number),  # type: ignore[arg-type]
            prompt_token_ids=(1,),
            sampling=SamplingParams(max_tokens=1, seed=0, logit_bias={1: 1.0}),
        )
        cache.keep([cache.of(asked, SampleState(0))])
    assert cache.num_kept < 100


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.sampled_from([50, 5000, 5001]), st.sampled_from([1, 8]), st.integers(0, 100))
def test_the_best_are_those_of_a_full_sort(num_best: int, vocab_size: int, coarseness: int, seed: int) -> None:
    """Ties too, which `coarseness` makes frequent: by token id."""
    row = np.random.default_rng(seed).normal(size=vocab_size).astype(np.float32) * 3
    row = np.round(row * 8 / coarseness) if coarseness > 1 else row
    order = np.argsort(-row, kind="stable")[:num_best]
    found = best_logprobs(row, log_normaliser(row), num_best)
    assert [token_id for token_id, _ in found] == order.tolist()
