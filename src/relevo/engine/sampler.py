"""Logits in, tokens out: one draw for each continuation that ends a row of the step.

Owns the order of the operations and the fast paths; the arithmetic is in `sampling_math`. Holds no state: a draw
depends on the row, the request and the continuation's tokens, so a row alone, a row in a batch and the same row on
another worker give one token. Does not know when a continuation ends: `ignore_eos` and stop tokens are the
scheduler's, here end-of-sequence is masked until `min_tokens` and may be drawn afterwards.

Order, for one row:

1. log-probabilities, of the raw distribution (before everything below, as vLLM's default)
2. logit_bias, then repetition penalty (prompt and output), then frequency and presence penalty (output only)
3. min_tokens: end-of-sequence and stop token ids are masked
4. greedy (temperature below 1e-5): argmax, ties to the lowest id; end
5. temperature, min_p, top_k, top_p
6. one exponential number per token id from (seed, sample_index, number of output tokens); the race is won by the
   shortest number / weight

Bias before penalties is what vLLM and Hugging Face do (a repetition penalty scales a biased logit). min_p before
top_k and top_p is vLLM's order; Hugging Face puts it last. The two differ only if both min_p and top_p cut: min_p and
top_k compare logits and commute with everything, top_p takes a share of what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relevo.core.baton import SampledToken, SampleState
from relevo.core.errors import StepFailed
from relevo.core.ids import TokenId
from relevo.core.request import EngineRequest
from relevo.engine.sampling_math import (
    Logits,
    TokenIds,
    best_logprobs,
    candidates,
    draw,
    edited,
    is_edited,
    is_greedy,
    log_normaliser,
    waits,
)

SampleSpec = tuple[int, EngineRequest, SampleState]  # (row in logits, request, continuation)


class Sampler:
    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def sample(self, logits: Logits, specs: Sequence[SampleSpec]) -> list[SampledToken]:
        """Draw one token per entry of `specs`, in their order; several may name one row. `logits` is only read.

        logits: [R, >= V] float32; columns from V on are padding of the output layer and never drawn.
        Raises StepFailed, with the request's id in the message, if a named row holds NaN or infinity.
        """
        if not specs:
            return []
        logits = logits[:, : self.vocab_size]
        _check_finite(logits, specs)
        best: TokenIds | None = None  # of every row, [R]; computed once if any draw needs it
        sampled = []
        for row_index, request, sample in specs:
            sampling, num_output_tokens = request.sampling, len(sample.output_token_ids)
            if is_greedy(sampling) and not is_edited(sampling, num_output_tokens):
                best = logits.argmax(axis=1) if best is None else best
                token_id = int(best[row_index])
            else:
                token_id = _draw(logits[row_index], request, sample)
            sampled.append(_with_logprobs(logits[row_index], token_id, sampling.num_logprobs))
        return sampled


def _check_finite(logits: Logits, specs: Sequence[SampleSpec]) -> None:
    finite = np.isfinite(logits.max(axis=1)) & np.isfinite(logits.min(axis=1))  # NaN wins both
    for row_index, request, _ in specs:
        if not finite[row_index]:
            raise StepFailed(
                f"the model computed NaN or infinity for request {request.request_id}; "
                "check the dtype of the weights and whether the file is damaged"
            )


def _draw(row: Logits, request: EngineRequest, sample: SampleState) -> TokenId:
    sampling, num_output_tokens = request.sampling, len(sample.output_token_ids)
    logits = edited(row, request, sample) if is_edited(sampling, num_output_tokens) else row
    if is_greedy(sampling):
        return int(logits.argmax())
    token_ids, weights = candidates(logits, sampling)
    token_waits = waits(sampling.seed, sample.sample_index, num_output_tokens, len(logits))
    index = draw(weights, token_waits if token_ids is None else token_waits[token_ids])
    return index if token_ids is None else int(token_ids[index])


def _with_logprobs(row: Logits, token_id: TokenId, num_logprobs: int | None) -> SampledToken:
    if num_logprobs is None:
        return SampledToken(token_id)
    normaliser = log_normaliser(row)
    return SampledToken(
        token_id,
        logprob=float(row[token_id]) - normaliser,
        top_logprobs=best_logprobs(row, normaliser, num_logprobs),
    )
