"""Native draws and row summaries against the reference in Python.

The weights of the two differ by a few units in the last place of a float32 (numpy's exponential and ours), so that a
draw may differ where the two fastest tokens come in within that of each other: such a draw is shown, counted and held
against the distance of the two. Red when: the random numbers, a truncation, a tie or the skipping of hopeless tokens
differs from the reference.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.request import SamplingParams
from relevo.engine import sampling_math

native = pytest.importorskip("relevo_native._native")

Floats = npt.NDArray[np.float32]
NEAR_TIE = 1e-6  # relative distance of two paces


def _paces(
    logits: Floats, sampling: SamplingParams, sample_index: int, position: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Token ids that may be drawn, and how fast each is: the fastest is drawn."""
    token_ids, weights = sampling_math.candidates(logits, sampling)
    waits = sampling_math.waits(sampling.seed, sample_index, position, len(logits))
    if token_ids is None:
        token_ids = np.arange(len(logits))
    return token_ids, weights / waits[token_ids]


def _native(logits: Floats, sampling: SamplingParams, sample_index: int, position: int) -> int:
    return int(
        native.draw_token(
            logits,
            sampling.temperature,
            sampling.min_p,
            sampling.top_p,
            sampling.top_k,
            sampling.seed,
            sample_index,
            position,
        )
    )


def _distance(logits: Floats, sampling: SamplingParams, sample_index: int, position: int) -> float | None:
    """None if both draw the same token, else how far the native one is behind the fastest (inf: not a candidate)."""
    token_ids, paces = _paces(logits, sampling, sample_index, position)
    drawn = _native(logits, sampling, sample_index, position)
    if drawn == token_ids[paces.argmax()]:
        return None
    own = paces[token_ids == drawn]
    return float(1 - own[0] / paces.max()) if len(own) else math.inf


SAMPLING = st.builds(
    SamplingParams,
    max_tokens=st.just(1),
    seed=st.integers(0, 2**64 - 1),
    temperature=st.one_of(st.floats(0.01, 3), st.sampled_from([1e-5, 1.0, 1e31])),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1)),
    top_k=st.one_of(st.just(0), st.integers(1, 400)),
)


def _logits(seed: int, vocab_size: int, spread: float, distinct: bool) -> Floats:
    random = np.random.default_rng(seed)
    logits = (random.standard_normal(vocab_size) * spread).astype(np.float32)
    return logits if distinct else np.round(logits)  # many ties


@settings(max_examples=300, deadline=None)
@given(
    sampling=SAMPLING,
    seed=st.integers(0, 2**32 - 1),
    vocab_size=st.one_of(st.integers(1, 12), st.integers(13, 3000)),
    spread=st.sampled_from([0.0, 0.5, 3.0, 30.0]),
    distinct=st.booleans(),
    sample_index=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**64 - 1),
)
def test_draws_equal_the_reference(
    sampling: SamplingParams,
    seed: int,
    vocab_size: int,
    spread: float,
    distinct: bool,
    sample_index: int,
    position: int,
) -> None:
    distance = _distance(_logits(seed, vocab_size, spread, distinct), sampling, sample_index, position)
    assert distance is None or distance < NEAR_TIE


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=1, seed=11, temperature=1.0),
        SamplingParams(max_tokens=1, seed=12, temperature=0.4),
        SamplingParams(max_tokens=1, seed=13, temperature=1.5, top_k=40),
        SamplingParams(max_tokens=1, seed=14, temperature=0.9, top_p=0.9),
        SamplingParams(max_tokens=1, seed=15, temperature=1.0, min_p=0.05, top_p=0.97),
    ],
)
def test_twenty_thousand_draws(sampling: SamplingParams) -> None:
    """4,000 for each way to truncate. The chance of a near tie in one draw is about 1e-6, so hardly any may differ."""
    rows = [_logits(sampling.seed + row, 1000, 4.0, distinct=True) for row in range(40)]
    distances = [_distance(rows[at % 40], sampling, 0, at) for at in range(4000)]
    near_ties = [distance for distance in distances if distance is not None]
    assert len(near_ties) <= 1, near_ties
    assert all(distance < NEAR_TIE for distance in near_ties), near_ties


@pytest.mark.parametrize("kwargs", [{}, {"top_p": 0.95}, {"top_k": 50}])
def test_draws_from_a_whole_vocabulary(kwargs: dict[str, float]) -> None:
    sampling = SamplingParams(max_tokens=1, seed=3, temperature=1.0, **kwargs)  # type: ignore[arg-type]
    logits = _logits(9, 49152, 3.0, distinct=True)
    distances = [_distance(logits, sampling, 2, position) for position in range(60)]
    assert [distance for distance in distances if distance is not None] == []


def test_a_batch_is_its_rows() -> None:
    logits = np.stack([_logits(seed, 500, 2.0, distinct=True) for seed in range(6)])
    parameters = {
        "temperature": np.linspace(0.3, 2, 6),
        "min_p": np.array([0, 0, 0.1, 0, 0, 0.2]),
        "top_p": np.array([1, 0.9, 1, 0.5, 1, 0.8]),
        "top_k": np.array([0, 0, 7, -1, 3, 9]),
        "seed": np.arange(6, dtype=np.uint64) + 2**63,
        "sample_index": np.arange(6, dtype=np.uint64),
        "position": np.arange(6, dtype=np.uint64) * 1000,
    }
    batch = native.draw_tokens(logits, **parameters)
    rows = [
        native.draw_token(logits[row], **{name: values[row].item() for name, values in parameters.items()})
        for row in range(6)
    ]
    assert batch.tolist() == rows
    with pytest.raises(ValueError, match="one value per row"):
        native.draw_tokens(logits[:5].copy(), **parameters)


@pytest.mark.parametrize("path", native.available_paths())
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_rows=st.integers(0, 3),
    vocab_size=st.integers(1, 200),
    spoilt=st.sampled_from([None, np.nan, np.inf, -np.inf]),
)
def test_row_summaries(path: str, seed: int, num_rows: int, vocab_size: int, spoilt: float | None) -> None:
    logits = np.stack([_logits(seed + row, vocab_size, 2.0, distinct=False) for row in range(num_rows)] or [[]])
    logits = logits.reshape(num_rows, vocab_size).astype(np.float32)
    if spoilt is not None and num_rows:
        logits[0, seed % vocab_size] = spoilt
    best, finite = native.row_summaries(path, logits)
    assert finite.tolist() == np.isfinite(logits).all(axis=1).tolist()
    assert best[finite].tolist() == logits[finite].argmax(axis=1).tolist()


def test_what_cannot_be_drawn_from_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature"):
        native.draw_token(np.zeros(4, np.float32), 0.0, 0.0, 1.0, 0, 1, 0, 0)
    with pytest.raises(ValueError, match="empty"):
        native.draw_token(np.zeros(0, np.float32), 1.0, 0.0, 1.0, 0, 1, 0, 0)
