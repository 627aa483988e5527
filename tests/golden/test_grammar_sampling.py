"""Draws under the masks of a grammar: on both backends, alone and in a batch, beside everything else a request may ask.

Red when a backend reads a mask differently from the reference, when a masked row depends on its batch, when what is not
let through is drawn, or when log-probabilities become those of what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.baton import SampledToken, SampleState
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.grammar_masks import SampleSpec, StepMasks
from relevo.engine.ops.native.ops import NativeOps
from relevo.engine.row_math import Masks, NumpyRowMath, RowMath
from relevo.engine.sampler import Sampler

EOS, STOP, BIASED = 3, 6, 5
REFERENCE = NumpyRowMath()
NATIVE = NativeOps(cores=(0, 1)).row_math
EITHER = pytest.mark.parametrize("row_math", [REFERENCE, NATIVE], ids=["numpy", "native"])

sampling_params = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**64 - 1),
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1e38]),
        "top_k": st.sampled_from([0, 1, 5, 40]),
        "top_p": st.sampled_from([0.05, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 1.5]),
        "logit_bias": st.sampled_from([{}, {}, {BIASED: 4.0}]),
        "num_logprobs": st.sampled_from([None, 3]),
        "min_tokens": st.sampled_from([0, 0, 4]),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.sampled_from([(), (STOP,)]),
        "grammar": st.sampled_from([None, "g", "g"]),
    }
)


def mask_of(allowed: Sequence[int], vocab_size: int) -> Masks:
    bits = np.zeros((vocab_size + 31) // 32 * 32, dtype=np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def spec(row: int, params: dict[str, Any], num_output: int = 0) -> SampleSpec:
    request = EngineRequest(
        request_id="r",
        prompt_token_ids=(1, 2),
        sampling=SamplingParams(**{"max_tokens": 64, "seed": 1} | params),
        eos_token_ids=(EOS,),
    )
    return row, request, SampleState(row % 3, [4] * num_output)


def masks_for(allowed: Sequence[Sequence[int]], specs: Sequence[SampleSpec], vocab_size: int) -> StepMasks:
    """In another order than that of the specs."""
    held = [place for place, (_, request, _) in enumerate(specs) if request.sampling.grammar is not None][::-1]
    bits = np.stack([mask_of(allowed[place], vocab_size) for place in held]) if held else np.zeros((0, 1), np.uint32)
    return StepMasks(bits, {place: row for row, place in enumerate(held)})


def draw_one(row_math: RowMath, allowed: Sequence[int], logits: np.ndarray, **params: Any) -> SampledToken:
    specs = [spec(0, {"grammar": "g"} | params)]
    vocab_size = logits.shape[1]
    return Sampler(vocab_size, row_math).sample(logits, specs, None, masks_for([allowed], specs, vocab_size))[0]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(sampling_params, st.integers(0, 5)), min_size=1, max_size=6),
    st.sampled_from([7, 24, 1000, 1009]),
    st.sampled_from([0, 8]),
    st.data(),
)
def test_masked_draws_are_those_of_the_reference_and_of_the_row_alone(
    wanted: list[tuple[dict[str, Any], int]], vocab_size: int, padding: int, data: st.DataObject
) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    logits = (random.normal(size=(len(wanted), vocab_size + padding)) * 2).astype(np.float32)
    density = data.draw(st.sampled_from([0.01, 0.5, 0.97]))
    allowed = [sorted({*np.flatnonzero(random.random(vocab_size) < density), row % vocab_size}) for row in range(6)]
    specs = [spec(row, params, num_output) for row, (params, num_output) in enumerate(wanted)]
    masks = masks_for(allowed, specs, vocab_size)
    before = logits.copy()
    reference = Sampler(vocab_size).sample(logits, specs, None, masks)
    assert Sampler(vocab_size, NATIVE).sample(logits, specs, None, masks) == reference
    assert np.array_equal(logits, before)
    for place, one in enumerate(specs):
        if place in masks.row_of:
            assert reference[place].token_id in allowed[place]
        alone = masks_for([allowed[place]], [one], vocab_size)
        assert Sampler(vocab_size, NATIVE).sample(logits, [one], None, alone) == [reference[place]]


@EITHER
def test_log_probabilities_are_those_of_all_tokens(row_math: RowMath) -> None:
    """Red when they are of what the grammar leaves: a client compares them with those of free outputs."""
    logits = np.random.default_rng(1).normal(size=(1, 50)).astype(np.float32)
    held = draw_one(row_math, [7], logits, num_logprobs=2)
    free = Sampler(50, row_math).sample(logits, [spec(0, {"num_logprobs": 50})])[0]
    assert (held.token_id, held.top_logprobs) == (7, free.top_logprobs[:2])
    assert held.logprob == dict(free.top_logprobs)[7]


@EITHER
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_moves_what_is_let_through_and_lets_nothing_through(row_math: RowMath, temperature: float) -> None:
    """Red when a bias is added after the mask, or not at all."""
    logits = np.zeros((1, 50), np.float32)
    drawn = draw_one(row_math, [8, 9], logits, temperature=temperature, logit_bias={9: 100.0, 20: 100.0})
    assert drawn.token_id == 9
    drawn = draw_one(row_math, [8], logits, temperature=temperature, logit_bias={8: -100.0})
    assert drawn.token_id == 8


@EITHER
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("asked", [{"min_tokens": 5}, {"ignore_eos": True}, {"min_tokens": 5, "ignore_eos": True}])
def test_an_output_that_may_end_goes_on_where_it_is_asked_to_and_can(
    row_math: RowMath, temperature: float, asked: dict[str, Any]
) -> None:
    """Red when min_tokens or ignore_eos end an output early, or force what the grammar forbids after its end."""
    logits = np.zeros((1, 50), np.float32)
    logits[0, EOS] = 9.0
    assert draw_one(row_math, [EOS, 30], logits, temperature=temperature, **asked).token_id == 30
    assert draw_one(row_math, [EOS], logits, temperature=temperature, **asked).token_id == EOS


@EITHER
def test_stop_token_ids_are_drawn_only_where_the_grammar_lets_their_text_through(row_math: RowMath) -> None:
    """Red when a stop token id is let through besides, or min_tokens does not hold it back."""
    logits = np.zeros((1, 50), np.float32)
    logits[0, STOP] = 9.0
    asked = {"temperature": 0.0, "stop_token_ids": (STOP,)}
    assert draw_one(row_math, [8, 9], logits, **asked).token_id == 8
    assert draw_one(row_math, [STOP, 9], logits, **asked).token_id == STOP
    assert draw_one(row_math, [STOP, 9], logits, min_tokens=3, **asked).token_id == 9


def test_a_whole_batch_of_long_rows_is_masked_on_all_threads() -> None:
    """Red when rows get each other's mask. The vocabulary is no multiple of a word, or of a vector."""
    vocab_size, num_rows = 49_157, 33
    random = np.random.default_rng(4)
    logits = random.normal(size=(num_rows, vocab_size)).astype(np.float32)
    allowed = [np.flatnonzero(random.random(vocab_size) < 0.3).tolist() for _ in range(num_rows)]
    masks = np.stack([mask_of(each, vocab_size) for each in allowed])
    rows = [(7 * row) % num_rows for row in range(num_rows)]
    expected, masked = np.empty_like(logits), np.empty_like(logits)
    best = REFERENCE.mask(logits, rows, masks, expected)
    assert np.array_equal(NATIVE.mask(logits, rows, masks, masked), best)
    assert np.array_equal(masked, expected)
    in_place = logits.copy()
    NATIVE.mask(in_place, range(num_rows), masks, in_place)
    assert np.array_equal(in_place[3], np.where(np.isin(np.arange(vocab_size), allowed[3]), logits[3], -np.inf))


def test_masks_of_another_shape_are_refused() -> None:
    """Red when the kernel would read or write beyond an array."""
    logits = np.zeros((2, 40), np.float32)
    masks, masked = np.zeros((1, 2), np.uint32), np.zeros((1, 40), np.float32)
    for wrong, rows, sentence in [
        ({"masks": masks[:, :1].copy()}, [0], "one bit for each logit"),
        ({"masked": masked[:, :39].copy()}, [0], "as long as the row"),
        ({}, [2], "a row that is not there"),
        ({}, [0, 1], "every row needs"),
    ]:
        arrays = {"masks": masks, "masked": masked} | wrong
        with pytest.raises(ValueError, match=sentence):
            NATIVE.mask(logits, rows, arrays["masks"], arrays["masked"])


def test_draws_without_a_grammar_are_what_they_were() -> None:
    """Red when a held row changes its neighbours."""
    logits = np.random.default_rng(2).normal(size=(3, 100)).astype(np.float32)
    specs = [spec(row, {"grammar": "g" if row == 1 else None}) for row in range(3)]
    masks = masks_for([[], [9], []], specs, 100)
    free = Sampler(100, NATIVE).sample(logits, [replace_grammar(one) for one in specs])
    held = Sampler(100, NATIVE).sample(logits, specs, None, masks)
    assert (held[0], held[1].token_id, held[2]) == (free[0], 9, free[2])


def replace_grammar(one: SampleSpec) -> SampleSpec:
    row, request, sample = one
    return row, replace(request, sampling=replace(request.sampling, grammar=None)), sample
