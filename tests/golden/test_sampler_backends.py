"""The sampler on a backend's own arithmetic gives the tokens of the numpy reference.

Red if a backend's draw, truncation or summary differs from sampling_math by more than the rounding of a near tie.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.baton import SampleState
from relevo.core.errors import StepFailed
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.ops.native.ops import NativeOps
from relevo.engine.sampler import Sampler, SampleSpec

NATIVE = NativeOps(cores=(0, 1)).row_math

sampling_params = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**64 - 1),
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.5, 1e38]),
        "top_k": st.sampled_from([0, 1, 5, 40, 5000]),
        "top_p": st.sampled_from([0.05, 0.5, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.1, 1.0]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 1.5]),
        "logit_bias": st.sampled_from([{}, {}, {5: 4.0}]),
        "num_logprobs": st.sampled_from([None, None, 3]),
        "min_tokens": st.sampled_from([0, 0, 4]),
    }
)


def spec(row: int, params: dict[str, Any], num_output: int) -> SampleSpec:
    request = EngineRequest(
        request_id="r",
        prompt_token_ids=(1, 2),
        sampling=SamplingParams(**{"max_tokens": 64} | params),
        eos_token_ids=(3,),
    )
    return row, request, SampleState(row % 3, [4] * num_output)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(sampling_params, st.integers(0, 5)), min_size=1, max_size=6),
    st.sampled_from([7, 24, 1000, 1009]),
    st.sampled_from([0, 8]),
    st.integers(0, 1000),
)
def test_tokens_are_those_of_the_reference(
    wanted: list[tuple[dict[str, Any], int]], vocab_size: int, padding: int, seed: int
) -> None:
    logits = (np.random.default_rng(seed).normal(size=(len(wanted), vocab_size + padding)) * 2).astype(np.float32)
    specs = [spec(row, params, num_output) for row, (params, num_output) in enumerate(wanted)]
    reference = Sampler(vocab_size).sample(logits, specs)
    native = Sampler(vocab_size, NATIVE).sample(logits, specs)
    assert native == reference
    if padding == 0:
        assert Sampler(vocab_size, NATIVE).sample(logits, specs, NATIVE.summarise(logits)) == reference


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_broken_row_fails_the_step(broken: float) -> None:
    logits = np.zeros((2, 100), np.float32)
    logits[1, 99] = broken
    with pytest.raises(StepFailed, match="NaN or infinity"):
        Sampler(100, NATIVE).sample(logits, [spec(1, {"seed": 1}, 0)])
    assert Sampler(100, NATIVE).sample(logits, [spec(0, {"seed": 1}, 0)])
