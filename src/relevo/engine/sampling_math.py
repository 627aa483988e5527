"""The arithmetic of drawing one token from one row of logits.

Owns: the counter-based random numbers, the truncations, the draw and log-probabilities. Knows
nothing of batches, requests' lives or models. All functions are pure and leave their inputs as they are; V is the
vocabulary.

Sources: Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3); nucleus
(Holtzman et al., section 3.1); min-p (Nguyen et al., section 3).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from relevo.core.ids import TokenId
from relevo.core.request import SamplingParams

Logits = NDArray[np.float32]
TokenIds = NDArray[np.int64]

GREEDY_TEMPERATURE = 1e-5  # below it a draw is an argmax; arbitrary, the same as vLLM's
MAX_TEMPERATURE = 1e30  # arbitrary; keeps float32 finite, the distribution is flat long before
LOWEST = float(np.finfo(np.float32).min)

_MASK = (1 << 64) - 1
_SHORTEST_WAIT = 2.0**-60  # keeps a wait of zero from dividing; shorter than any other
_RUN = 64  # ids whose largest logit stands for them in a search for the best; arbitrary
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
    with np.errstate(over="ignore"):  # a token that must not be drawn weighs 0
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
    hopeful = _hopeful(logits, num_best)
    values = logits[hopeful]
    rank = len(values) - num_best
    best = hopeful[values >= np.partition(values, rank)[rank]]
    order = best[np.argsort(-logits[best], kind="stable")][:num_best]
    return tuple((int(token_id), float(logits[token_id]) - normaliser) for token_id in order)


def _hopeful(logits: Logits, num_best: int) -> TokenIds:
    """Ascending ids, among them all that are at least as large as the `num_best`-th largest.

    `num_best` runs have a maximum of at least m, the `num_best`-th largest of the maxima; so that many logits are at
    least m, and none of a run whose maximum is below m is among the best. A partition of all would cost ten times more.
    """
    num_runs = len(logits) // _RUN
    if num_runs < 2 * num_best:
        return np.arange(len(logits))
    peaks = logits[: num_runs * _RUN].reshape(num_runs, _RUN).max(axis=1)
    rank = num_runs - num_best
    runs = np.flatnonzero(peaks >= np.partition(peaks, rank)[rank])
    inside = (runs[:, None] * _RUN + np.arange(_RUN)).ravel()
    return np.concatenate((inside, np.arange(num_runs * _RUN, len(logits))))
