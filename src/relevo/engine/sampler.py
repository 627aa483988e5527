"""Logits in, tokens out: one draw for each continuation that ends a row of the step.

Owns the order of the operations and the fast paths; the arithmetic is in `logit_edits`, `sampling_math` and the
backend's `RowMath`. What it keeps between steps can be derived anew: a draw depends on the row, the request and the
continuation's tokens, so a row alone, a row in a batch and the same row on another worker give one token. Does not know
when a continuation ends: `ignore_eos` and stop tokens are the scheduler's, here end-of-sequence is masked until
`min_tokens` and may be drawn afterwards. What a grammar lets through comes from outside, as masks.

Order, for one row:

1. log-probabilities, of the raw distribution (before everything below, as vLLM's default)
2. logit_bias, then repetition penalty (prompt and output), then frequency and presence penalty (output only)
3. min_tokens: end-of-sequence and stop token ids are masked, also end-of-sequence of a grammar with ignore_eos
4. grammar: what it does not let through is never drawn. It goes before 3: where it lets through nothing but what is
   masked there, such a token is drawn, so an output that cannot be longer ends
5. greedy (temperature below 1e-5): argmax, ties to the lowest id; end
6. temperature, min_p, top_k, top_p
7. one exponential number per token id from (seed, sample_index, number of output tokens); the race is won by the
   shortest number / weight

Bias before penalties is what vLLM and Hugging Face do (a repetition penalty scales a biased logit). min_p before
top_k and top_p is vLLM's order; Hugging Face puts it last. The two differ only if both min_p and top_p cut: min_p and
top_k compare logits and commute with everything, top_p takes a share of what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relevo.core.baton import SampledToken
from relevo.core.errors import StepFailed
from relevo.core.ids import TokenId
from relevo.engine.grammar_masks import NO_MASKS, SampleSpec, StepMasks
from relevo.engine.logit_edits import EditCache, SampleEdits, is_edited
from relevo.engine.row_math import NumpyRowMath, RowDraw, RowMath, RowSummaries
from relevo.engine.sampling_math import Logits, best_logprobs, is_greedy, log_normaliser

__all__ = ["SampleSpec", "Sampler"]


class Sampler:
    def __init__(self, vocab_size: int, row_math: RowMath | None = None) -> None:
        """`row_math`: of the backend that computes the logits; default: numpy's."""
        self.vocab_size = vocab_size
        self._math = row_math or NumpyRowMath()
        self._edits = EditCache(vocab_size)
        self._changed: Logits = np.empty((0, vocab_size), dtype=np.float32)  # written again in every step

    def sample(
        self,
        logits: Logits,
        specs: Sequence[SampleSpec],
        summaries: RowSummaries | None = None,
        masks: StepMasks = NO_MASKS,
    ) -> list[SampledToken]:
        """Draw one token per entry of `specs`, in their order; several may name one row. `logits` is only read.

        logits: [R, >= V] float32; columns from V on are padding of the output layer and never drawn. `summaries`: of
        these logits, if the backend made them while it computed. `masks`: of those draws that a grammar holds.
        Raises StepFailed, with the ids of the requests whose named rows hold NaN or infinity.
        """
        if not specs:
            return []
        if summaries is None or logits.shape[1] != self.vocab_size:
            logits = logits[:, : self.vocab_size]
            summaries = self._math.summarise(logits)
        _check_finite(summaries, specs)
        token_ids = self._token_ids(logits, specs, summaries, masks)
        return _with_logprobs(logits, specs, token_ids)

    def _token_ids(
        self, logits: Logits, specs: Sequence[SampleSpec], summaries: RowSummaries, masks: StepMasks
    ) -> list[TokenId]:
        token_ids = [0] * len(specs)
        best = summaries.best.tolist()
        plain: dict[int, RowDraw] = {}  # by place in `specs`; drawn together
        edits: dict[int, SampleEdits] = {}
        for place, (row, request, sample) in enumerate(specs):
            sampling, position = request.sampling, len(sample.output_token_ids)
            if is_edited(sampling, position):
                edits[place] = self._edits.of(request, sample)
            elif place in masks.row_of:
                pass  # with those that are edited
            elif is_greedy(sampling):
                token_ids[place] = best[row]
            else:
                plain[place] = RowDraw(row, sampling, sample.sample_index, position)
        self._draw(logits, plain, token_ids)
        if edits or masks.row_of:
            self._draw_changed(logits, specs, edits, masks, token_ids)
            self._edits.keep(edits.values())
        return token_ids

    def _draw(self, logits: Logits, draws: Mapping[int, RowDraw], token_ids: list[TokenId]) -> None:
        if draws:
            drawn = self._math.draw(logits, list(draws.values()))
            for place, token_id in zip(draws, drawn, strict=True):
                token_ids[place] = token_id

    def _draw_changed(
        self,
        logits: Logits,
        specs: Sequence[SampleSpec],
        edits: Mapping[int, SampleEdits],
        masks: StepMasks,
        token_ids: list[TokenId],
    ) -> None:
        """From copies of the rows: first those that are edited and held, then those only held, then those only edited.

        `edits`, `masks`: by place in `specs`."""
        both = [place for place in edits if place in masks.row_of]
        held = [place for place in masks.row_of if place not in edits]
        places = [*both, *held, *(place for place in edits if place not in masks.row_of)]
        if len(self._changed) < len(places):
            self._changed = np.empty((len(places), self.vocab_size), dtype=np.float32)
        changed, num_both, num_held = self._changed, len(both), len(both) + len(held)
        for index, place in enumerate(places):
            if place in edits:
                np.copyto(changed[index], logits[specs[place][0]])
                edits[place].apply(changed[index])
        bits = masks.bits[[masks.row_of[place] for place in places[:num_held]]]
        best: list[TokenId] = []
        if both:
            best += self._math.mask(changed, range(num_both), bits[:num_both], changed[:num_both]).tolist()
        if held:
            rows = [specs[place][0] for place in held]
            best += self._math.mask(logits, rows, bits[num_both:], changed[num_both:num_held]).tolist()
        draws: dict[int, RowDraw] = {}
        for index, place in enumerate(places):
            _, request, sample = specs[place]
            if is_greedy(request.sampling):
                token_ids[place] = best[index] if index < num_held else int(changed[index].argmax())
            else:
                draws[place] = RowDraw(index, request.sampling, sample.sample_index, len(sample.output_token_ids))
        self._draw(changed[: len(places)], draws, token_ids)


def _check_finite(summaries: RowSummaries, specs: Sequence[SampleSpec]) -> None:
    finite = summaries.finite.tolist()
    if all(finite):
        return
    request_ids = list(dict.fromkeys(request.request_id for row, request, _ in specs if not finite[row]))
    if request_ids:
        raise StepFailed(
            f"the model computed NaN or infinity for request {', '.join(request_ids)}; "
            "check the dtype of the weights and whether the file is damaged",
            request_ids=request_ids,
        )


def _with_logprobs(logits: Logits, specs: Sequence[SampleSpec], token_ids: Sequence[TokenId]) -> list[SampledToken]:
    """Of each row once, however many continuations draw from it."""
    normalisers: dict[int, float] = {}
    best: dict[tuple[int, int], tuple[tuple[TokenId, float], ...]] = {}
    tokens = []
    for (row, request, _), token_id in zip(specs, token_ids, strict=True):
        num_logprobs = request.sampling.num_logprobs
        if num_logprobs is None:
            tokens.append(SampledToken(token_id))
            continue
        if row not in normalisers:
            normalisers[row] = log_normaliser(logits[row])
        if (row, num_logprobs) not in best:
            best[row, num_logprobs] = best_logprobs(logits[row], normalisers[row], num_logprobs)
        logprob = float(logits[row, token_id]) - normalisers[row]
        tokens.append(SampledToken(token_id, logprob, best[row, num_logprobs]))
    return tokens
