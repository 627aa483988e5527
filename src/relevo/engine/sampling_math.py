"""The arithmetic of drawing one token from one row of logits.

Owns: the counter-based random numbers, the edits of logits, the truncations, the draw and log-probabilities. Knows
nothing of batches, requests' lives or models. All functions are pure and leave their inputs as they are; V is the
vocabulary.

Sources: Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3); repetition
penalty (Keskar et al., CTRL, section 4.1); nucleus (Holtzman et al., section 3.1); min-p (Nguyen et al., section 3);
frequency and presence penalty (OpenAI API reference).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from relevo.core.baton import SampleState
from relevo.core.ids import TokenId
from relevo.core.request import EngineRequest, SamplingParams

Logits = NDArray[np.float32]
TokenIds = NDArray[np.int64]

GREEDY_TEMPERATURE = 1e-5  # below it a draw is an argmax; arbitrary, the same as vLLM's
MAX_TEMPERATURE = 1e30  # arbitrary; keeps float32 finite, the distribution is flat long before
LOWEST = float(np.finfo(np.float32).min)

_MASK = (1 << 64) - 1
_SHORTEST_WAIT = 2.0**-60  # keeps a wait of zero from dividing; shorter than any other
_BIN_SHIFT = 16  # leaves sign, exponent and 7 bits of the mantissa: 16k bins for weights in [0, 1]; arbitrary


def waits(seed: int, sample_index: int, position: int, vocab_size: int) -> NDArray[np.float64]:
    """[V] exponentially distributed numbers that belong to output token `position` of continuation `sample_index`.

    Philox4x64-10 with key (seed, sample_index), counters from (0, 0, position, 0) on; number i belongs to token id i.
    They depend on nothing else, so any worker that continues the request draws what the first one would have drawn.
    """
    key = (seed & _MASK) | ((sample_index & _MASK) << 64)
    generator = np.random.Generator(np.random.Philox(key=key, counter=(position & _MASK) << 128))
    return np.maximum(-np.log1p(-generator.random(vocab_size)), _SHORTEST_WAIT)


def is_greedy(sampling: SamplingParams) -> bool:
    return sampling.temperature < GREEDY_TEMPERATURE


def is_edited(sampling: SamplingParams, num_output_tokens: int) -> bool:
    """Whether `edited` would change anything."""
    return (
        bool(sampling.logit_bias)
        or num_output_tokens < sampling.min_tokens
        or sampling.repetition_penalty != 1.0
        or (num_output_tokens > 0 and (sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0))
    )


def edited(row: Logits, request: EngineRequest, sample: SampleState) -> Logits:
    """A copy of `row` [V] with bias, penalties and the min_tokens mask applied, in this order.

    Counts are derived from the tokens each time: O(prompt + output) with a penalty, and nothing to hand over.
    """
    sampling, output = request.sampling, sample.output_token_ids
    logits = row.copy()
    if sampling.logit_bias:
        biased = _in_vocabulary(sampling.logit_bias, len(row))
        logits[biased] += np.array([sampling.logit_bias[token_id] for token_id in biased.tolist()], dtype=np.float32)
    if sampling.repetition_penalty != 1.0:
        seen = np.union1d(np.array(request.prompt_token_ids, dtype=np.int64), np.array(output, dtype=np.int64))
        values = logits[seen]
        penalty = np.float32(sampling.repetition_penalty)
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    if output and (sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0):
        drawn, counts = np.unique(np.array(output, dtype=np.int64), return_counts=True)
        penalties = counts * sampling.frequency_penalty + sampling.presence_penalty
        logits[drawn] -= penalties.astype(np.float32)
    if len(output) < sampling.min_tokens:
        _mask(logits, (*request.eos_token_ids, *sampling.stop_token_ids))
    return logits


def _mask(logits: Logits, token_ids: Sequence[TokenId]) -> None:
    """Forbid `token_ids` in place, unless nothing would be left to draw."""
    masked = _in_vocabulary(token_ids, len(logits))
    if len(masked) < len(logits):
        logits[masked] = -np.inf


def _in_vocabulary(token_ids: Iterable[TokenId], vocab_size: int) -> TokenIds:
    """Sorted, without repeats, without ids that the model does not have."""
    unique = np.array(sorted(set(token_ids)), dtype=np.int64)
    return unique[(unique >= 0) & (unique < vocab_size)]


def candidates(logits: Logits, sampling: SamplingParams) -> tuple[TokenIds | None, NDArray[np.float32]]:
    """Token ids that may be drawn, ascending (None: all of [0, V)), and their weights relative to the best token's.

    Order: temperature, min_p, top_k, top_p. Tokens that tie with the k-th best are all kept.
    """
    temperature = min(sampling.temperature, MAX_TEMPERATURE)
    peak = float(logits.max())
    floor = -math.inf
    if sampling.min_p > 0.0:
        floor = max(peak + temperature * math.log(min(sampling.min_p, 1.0)), LOWEST)
    if 0 < sampling.top_k < len(logits):
        rank = len(logits) - sampling.top_k
        floor = max(floor, float(np.partition(logits, rank)[rank]))
    token_ids = None
    if floor > -math.inf:
        token_ids = np.flatnonzero(logits >= np.float32(floor))
        logits = logits[token_ids]
    weights = np.exp((logits - np.float32(peak)) * np.float32(1.0 / temperature))
    if sampling.top_p < 1.0:
        kept = nucleus(weights, sampling.top_p)
        token_ids = kept if token_ids is None else token_ids[kept]
        weights = weights[kept]
    return token_ids, weights


def nucleus(weights: NDArray[np.float32], top_p: float) -> TokenIds:
    """Ascending indices of the smallest set of largest weights with at least `top_p` of their sum, one at least.

    Among equal weights the lower index is kept. No full sort: the bit patterns of positive floats are ordered like the
    floats, so their upper half is a histogram bin, and only the bin in which the share is reached is sorted.
    """
    bins = weights.view(np.uint32) >> _BIN_SHIFT
    mass = np.cumsum(np.bincount(bins, weights=weights)[::-1])  # from the largest weights down, float64
    target = top_p * float(mass[-1])
    rank = int(np.searchsorted(mass, target, side="left"))
    last_bin = len(mass) - 1 - rank
    inside = np.flatnonzero(bins == last_bin)
    inside = inside[np.argsort(-weights[inside], kind="stable")]
    reached = (mass[rank - 1] if rank else 0.0) + np.cumsum(weights[inside].astype(np.float64))
    num_inside = int(np.searchsorted(reached, target, side="left")) + 1
    kept = bins > last_bin
    kept[inside[:num_inside]] = True
    return np.flatnonzero(kept)


def draw(weights: NDArray[np.float32], token_waits: NDArray[np.float64]) -> int:
    """The index whose wait, divided by its weight, is shortest: index i with probability weights[i] / sum(weights).

    An exponential race (the Gumbel trick without logarithms of weights). A draw changes only if two candidates come in
    within the rounding noise of each other, whereas a point on a cumulative sum is passed by the noise of all tokens.
    """
    return int((weights / token_waits).argmax())


def log_normaliser(logits: Logits) -> float:
    """log(sum(exp(logits))), natural, without overflow."""
    peak = logits.max()
    return float(peak) + math.log(float(np.exp(logits - peak).sum(dtype=np.float64)))


def best_logprobs(logits: Logits, normaliser: float, num_best: int) -> tuple[tuple[TokenId, float], ...]:
    """The `num_best` most probable tokens, best first, ties by token id."""
    num_best = min(num_best, len(logits))
    if num_best == 0:
        return ()
    rank = len(logits) - num_best
    best = np.flatnonzero(logits >= np.partition(logits, rank)[rank])
    order = best[np.argsort(-logits[best], kind="stable")][:num_best]
    return tuple((int(token_id), float(logits[token_id]) - normaliser) for token_id in order)
