"""Logits in, tokens out: one draw for each continuation that ends a row of the step.

Owns the order of the operations and the fast paths; the arithmetic is in `logit_edits`, `sampling_math` and the
backend's `RowMath`. What it keeps between steps can be derived anew: a draw depends on the row, the request and the
continuation's tokens, so a row alone, a row in a batch and the same row on another worker give one token. Does not know
when a continuation ends: `ignore_eos` and stop tokens are the scheduler's, here end-of-sequence is masked until
`min_tokens` and may be drawn afterwards. What a grammar lets through comes from outside, as `HeldDraws`.

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

4 says what is drawn, not how: a mask is made only for a draw that needs one. A draw without a mask has the same result
if both its token and the best token of the row (after 2 and 3) are let through. The best token makes the weights, and
the floor of min_p, what they are with the mask, to the last bit; a mask then only takes runners out of the race, and
the winner, or the first of several, stays. top_k and top_p let others in for what a mask takes out, so their draws have
masks; top_k = 1 keeps none but the best. A token that is forced needs no draw.

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
from relevo.core.request import SamplingParams
from relevo.engine.grammar_masks import NOTHING_HELD, HeldDraws, SampleSpec
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
        self._edited: Logits = np.empty((0, vocab_size), dtype=np.float32)  # both are written again in every step
        self._masked: Logits = np.empty((0, vocab_size), dtype=np.float32)

    def sample(
        self,
        logits: Logits,
        specs: Sequence[SampleSpec],
        summaries: RowSummaries | None = None,
        held: HeldDraws = NOTHING_HELD,
    ) -> list[SampledToken]:
        """Draw one token per entry of `specs`, in their order; several may name one row. `logits` is only read.

        logits: [R, >= V] float32; columns from V on are padding of the output layer and never drawn. `summaries`: of
        these logits, if the backend made them while it computed. `held`: of the draws, those that a grammar holds.
        Raises StepFailed, with the ids of the requests whose named rows hold NaN or infinity.
        """
        if not specs:
            return []
        if summaries is None or logits.shape[1] != self.vocab_size:
            logits = logits[:, : self.vocab_size]
            summaries = self._math.summarise(logits)
        _check_finite(summaries, specs)
        token_ids = self._token_ids(logits, specs, summaries, held)
        return _with_logprobs(logits, specs, token_ids)

    def _token_ids(
        self, logits: Logits, specs: Sequence[SampleSpec], summaries: RowSummaries, held: HeldDraws
    ) -> list[TokenId]:
        token_ids = [0] * len(specs)
        best = summaries.best.tolist()
        forced = {place: token_id for place in held.places if (token_id := held.forced(place)) is not None}
        plain: dict[int, RowDraw] = {}  # by place in `specs`; drawn together
        edits: dict[int, SampleEdits] = {}
        for place, (row, request, sample) in enumerate(specs):
            sampling, position = request.sampling, len(sample.output_token_ids)
            if place in forced:
                token_ids[place] = forced[place]
            elif is_edited(sampling, position):
                edits[place] = self._edits.of(request, sample)
            elif is_greedy(sampling):
                token_ids[place] = best[row]
            elif place not in held.places or self._is_free_first(sampling):
                plain[place] = RowDraw(row, sampling, sample.sample_index, position)
        self._draw(logits, plain, token_ids)
        edited, best_edited = self._draw_edited(logits, specs, edits, held, token_ids)
        needs_mask = []
        for place in held.places:
            if place not in forced:
                top = best_edited[place] if place in edits else best[specs[place][0]]
                if not self._is_let_through(specs[place][1].sampling, held, place, token_ids[place], top):
                    needs_mask.append(place)
        if needs_mask:
            self._draw_masked(logits, edited, specs, list(edits), held, needs_mask, token_ids)
        return token_ids

    def _is_free_first(self, sampling: SamplingParams) -> bool:
        """Whether a held draw may do without a mask; see the head of this file."""
        keeps_all = sampling.top_p >= 1.0 and (sampling.top_k <= 1 or sampling.top_k >= self.vocab_size)
        return keeps_all or is_greedy(sampling)

    def _is_let_through(
        self, sampling: SamplingParams, held: HeldDraws, place: int, token_id: TokenId, top: TokenId
    ) -> bool:
        """Whether a mask would not change the draw."""
        return (
            self._is_free_first(sampling)
            and held.lets_through(place, token_id)
            and (token_id == top or held.lets_through(place, top))
        )

    def _draw(self, logits: Logits, draws: Mapping[int, RowDraw], token_ids: list[TokenId]) -> None:
        if draws:
            drawn = self._math.draw(logits, list(draws.values()))
            for place, token_id in zip(draws, drawn, strict=True):
                token_ids[place] = token_id

    def _draw_edited(
        self,
        logits: Logits,
        specs: Sequence[SampleSpec],
        edits: Mapping[int, SampleEdits],
        held: HeldDraws,
        token_ids: list[TokenId],
    ) -> tuple[Logits, dict[int, TokenId]]:
        """Returns the edited copies of the rows, in the order of `edits`, and the best token of each by its place."""
        self._edited = edited = _with_room(self._edited, len(edits))
        best: dict[int, TokenId] = {}
        draws: dict[int, RowDraw] = {}
        for index, (place, edit) in enumerate(edits.items()):
            row, request, sample = specs[place]
            np.copyto(edited[index], logits[row])
            edit.apply(edited[index])
            is_held = place in held.places
            if is_held or is_greedy(request.sampling):
                token_ids[place] = best[place] = int(edited[index].argmax())
            if not is_greedy(request.sampling) and (not is_held or self._is_free_first(request.sampling)):
                draws[place] = RowDraw(index, request.sampling, sample.sample_index, len(sample.output_token_ids))
        self._draw(edited[: len(edits)], draws, token_ids)
        self._edits.keep(edits.values())
        return edited, best

    def _draw_masked(
        self,
        logits: Logits,
        edited: Logits,
        specs: Sequence[SampleSpec],
        edited_places: Sequence[int],
        held: HeldDraws,
        places: Sequence[int],
        token_ids: list[TokenId],
    ) -> None:
        """`edited_places`: of the rows of `edited`."""
        index_of = {place: index for index, place in enumerate(edited_places)}
        places = sorted(places, key=lambda place: place not in index_of)  # those of `edited` first
        num_edited = sum(place in index_of for place in places)
        bits = held.masks(places)
        self._masked = masked = _with_room(self._masked, len(places))
        best: list[TokenId] = []
        if num_edited:
            rows = [index_of[place] for place in places[:num_edited]]
            best += self._math.mask(edited, rows, bits[:num_edited], masked[:num_edited]).tolist()
        if num_edited < len(places):
            rows = [specs[place][0] for place in places[num_edited:]]
            best += self._math.mask(logits, rows, bits[num_edited:], masked[num_edited : len(places)]).tolist()
        draws: dict[int, RowDraw] = {}
        for index, place in enumerate(places):
            _, request, sample = specs[place]
            if is_greedy(request.sampling):
                token_ids[place] = best[index]
            else:
                draws[place] = RowDraw(index, request.sampling, sample.sample_index, len(sample.output_token_ids))
        self._draw(masked[: len(places)], draws, token_ids)


def _with_room(rows: Logits, num_rows: int) -> Logits:
    """`rows`, or more of them, with any content."""
    return rows if len(rows) >= num_rows else np.empty((num_rows, rows.shape[1]), dtype=np.float32)


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
