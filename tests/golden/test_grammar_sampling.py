"""Draws under the masks of a grammar: on both backends, alone and in a batch, beside everything else a request may ask.

Red when a backend reads a mask differently from the reference, when a masked row depends on its batch, when what is not
let through is drawn, when a draw that does without its mask is another one than with it, or when log-probabilities
become those of what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from held_outputs import AMOUNT, WORDS, fake_grammars
from held_outputs import EOS as FAKE_EOS
from relevo.core.baton import SampledToken, SampleState
from relevo.core.ids import RequestId
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.fake_model import FAKE_MODEL
from relevo.engine.grammar_masks import GrammarMasks, HeldDraws, SampleSpec
from relevo.engine.ops.native.ops import NativeOps
from relevo.engine.row_math import Masks, NumpyRowMath, RowMath
from relevo.engine.sampler import Sampler

EOS, STOP, BIASED = 3, 6, 5
VOCAB = FAKE_MODEL.vocab_size
TEXT = LLMatcher.grammar_from_lark('start: /[a-z ]*/ ("{" /[0-9]+/ "}")*')
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


@dataclass
class Fixed:
    """Implements HeldDraws: of each held draw the tokens that are let through. `is_lazy`: it answers about single
    tokens, so that masks are made only where a draw needs one; otherwise all draws have one."""

    allowed: dict[int, Collection[int]]
    vocab_size: int
    is_lazy: bool = True

    @property
    def places(self) -> Collection[int]:
        return self.allowed.keys()

    def forced(self, place: int) -> int | None:
        return next(iter(self.allowed[place])) if self.is_lazy and len(self.allowed[place]) == 1 else None

    def lets_through(self, place: int, token_id: int) -> bool:
        return self.is_lazy and token_id in self.allowed[place]

    def masks(self, places: Sequence[int]) -> Masks:
        return np.stack([mask_of(list(self.allowed[place]), self.vocab_size) for place in places])


@dataclass
class AlwaysMasked:
    """Implements HeldDraws: another's draws, with a mask each."""

    held: HeldDraws

    @property
    def places(self) -> Collection[int]:
        return self.held.places

    def forced(self, place: int) -> None:
        return None

    def lets_through(self, place: int, token_id: int) -> bool:
        return False

    def masks(self, places: Sequence[int]) -> Masks:
        return self.held.masks(places)


def masks_for(
    allowed: Sequence[Sequence[int]], specs: Sequence[SampleSpec], vocab_size: int, is_lazy: bool = True
) -> Fixed:
    """In another order than that of the specs."""
    held = [place for place, (_, request, _) in enumerate(specs) if request.sampling.grammar is not None][::-1]
    return Fixed({place: allowed[place] for place in held}, vocab_size, is_lazy)


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
    density = data.draw(st.sampled_from([0.01, 0.5, 0.97, 1.0]))
    allowed = [sorted({*np.flatnonzero(random.random(vocab_size) < density), row % vocab_size}) for row in range(6)]
    specs = [spec(row, params, num_output) for row, (params, num_output) in enumerate(wanted)]
    masks = masks_for(allowed, specs, vocab_size)
    before = logits.copy()
    reference = Sampler(vocab_size).sample(logits, specs, None, replace(masks, is_lazy=False))
    assert Sampler(vocab_size).sample(logits, specs, None, masks) == reference
    assert Sampler(vocab_size, NATIVE).sample(logits, specs, None, masks) == reference
    assert np.array_equal(logits, before)
    for place, one in enumerate(specs):
        if place in masks.places:
            assert reference[place].token_id in allowed[place]
        alone = masks_for([allowed[place]], [one], vocab_size)
        assert Sampler(vocab_size, NATIVE).sample(logits, [one], None, alone) == [reference[place]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(sampling_params, st.sampled_from([AMOUNT, WORDS, TEXT, None])), min_size=1, max_size=5),
    st.integers(0, 1000),
    st.sampled_from([0.0, 4.0, 30.0]),
    st.sampled_from([REFERENCE, NATIVE]),
)
def test_outputs_are_those_of_a_mask_for_every_draw(
    wanted: list[tuple[dict[str, Any], str | None]], seed: int, eagerness: float, row_math: RowMath
) -> None:
    """Outputs of real grammars, whose model wants what may come more or less. Red when the matcher says of a token
    something else than the mask does, or when a draw would have been another one under the mask."""
    told = {}
    for is_lazy in (True, False):
        random = np.random.default_rng(seed)
        grammars, sampler = GrammarMasks(fake_grammars(), VOCAB), Sampler(VOCAB, row_math)
        favourites = np.frombuffer(b'{"amount":12,"unit":"kg","notes":["a","bc"]} ab cd', np.uint8)
        requests = [
            EngineRequest(
                request_id=RequestId(f"r{number}"),
                prompt_token_ids=(1, 2),
                sampling=SamplingParams(**{"max_tokens": 64} | params | {"grammar": grammar}),
                eos_token_ids=(FAKE_EOS,),
            )
            for number, (params, grammar) in enumerate(wanted)
        ]
        outputs: list[list[int]] = [[] for _ in requests]
        draws: list[list[SampledToken]] = []
        for _ in range(14):
            logits = random.normal(size=(len(requests), VOCAB)).astype(np.float32)
            logits[:, favourites] += np.float32(eagerness) * random.random((len(requests), 1)).astype(np.float32)
            going = [row for row, output in enumerate(outputs) if FAKE_EOS not in output]
            specs = [(row, requests[row], SampleState(row % 2, outputs[row])) for row in going]
            held = grammars.of(specs)
            drawn = sampler.sample(logits, specs, None, held if is_lazy else AlwaysMasked(held))
            assert not held.failures
            draws.append(drawn)
            for row, token in zip(going, drawn, strict=True):
                outputs[row].append(token.token_id)
        told[is_lazy] = draws
    assert told[True] == told[False]


@EITHER
@pytest.mark.parametrize("asked", [{"temperature": 0.0}, {}, {"min_p": 0.05}, {"logit_bias": {BIASED: 1.0}}])
def test_a_draw_that_is_let_through_makes_no_mask(row_math: RowMath, asked: dict[str, Any]) -> None:
    """Red when masks are made for draws that they do not change; each costs a walk of the whole vocabulary."""
    logits = np.zeros((1, 50), np.float32)
    logits[0, 7] = 60.0
    specs = [spec(0, {"grammar": "g"} | asked)]
    held = masks_for([[6, 7, 8]], specs, 50)
    held.masks = None  # type: ignore[method-assign,assignment]  # calling it fails
    assert Sampler(50, row_math).sample(logits, specs, None, held)[0].token_id == 7


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
