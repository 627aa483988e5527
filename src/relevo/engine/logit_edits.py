"""The edits of logits that a request asks for: bias, penalties, the mask of `min_tokens`. Built once, not per step.

Owns the arrays behind them, per request and per continuation, and how long they are kept. What depends on the request
alone (bias, prompt, mask) is built when it draws first; what depends on the output is carried on by one token per step.
So a step costs a few vectorised operations per edited row, whatever the client sent. Nothing of it is handed over with
a request: it follows from the request and its tokens.

Sources: repetition penalty (Keskar et al., CTRL, section 4.1); frequency and presence penalty (OpenAI API reference).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from relevo.core.baton import SampleState
from relevo.core.ids import RequestId, TokenId
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.sampling_math import LOWEST, Logits, TokenIds

NO_TOKENS: TokenIds = np.empty(0, dtype=np.int64)
_NUM_SPARE = 64  # arbitrary: continuations kept although the last step did not draw for them


def is_edited(sampling: SamplingParams, num_output_tokens: int) -> bool:
    """Whether the edits would change anything."""
    return (
        bool(sampling.logit_bias)
        or _puts_off_end(sampling)
        or num_output_tokens < sampling.min_tokens
        or sampling.repetition_penalty != 1.0
        or (num_output_tokens > 0 and (sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0))
    )


def edited(row: Logits, request: EngineRequest, sample: SampleState) -> Logits:
    """A copy of `row` [V] with bias, penalties and the min_tokens mask applied, in this order."""
    logits = row.copy()
    SampleEdits(RequestEdits(request, len(row)), sample).apply(logits)
    return logits


class RequestEdits:
    """What follows from the request alone. Token ids that the model does not have are left out."""

    def __init__(self, request: EngineRequest, vocab_size: int) -> None:
        sampling = request.sampling
        self.request = request
        self.biased = _in_vocabulary(sampling.logit_bias, vocab_size)
        self.bias = np.array([sampling.logit_bias[token_id] for token_id in self.biased.tolist()], dtype=np.float32)
        self.has_repetition_penalty = sampling.repetition_penalty != 1.0
        self.prompt = _in_vocabulary(request.prompt_token_ids if self.has_repetition_penalty else (), vocab_size)
        masked = (*request.eos_token_ids, *sampling.stop_token_ids) if sampling.min_tokens else ()
        self.masked = _in_vocabulary(masked, vocab_size)
        if len(self.masked) == vocab_size:  # nothing would be left to draw
            self.masked = self.masked[:0]
        self.put_off = _in_vocabulary(request.eos_token_ids if _puts_off_end(sampling) else (), vocab_size)


class SampleEdits:
    """The edits of one continuation. What it counts follows the output, which only grows."""

    def __init__(self, of_request: RequestEdits, sample: SampleState) -> None:
        self.of_request = of_request
        self.sample_index = sample.sample_index
        self.output = sample.output_token_ids
        sampling = of_request.request.sampling
        self._penalises_counts = sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0
        self._penalises_output = self._penalises_counts or of_request.has_repetition_penalty
        self._num_counted = 0
        self._drawn, self._counts = NO_TOKENS, NO_TOKENS  # sorted, without repeats; how often each
        self._fresh = NO_TOKENS  # of those drawn, what the prompt does not have

    def apply(self, logits: Logits) -> None:
        """Edit `logits` [V] in place, for the token that comes next."""
        fixed, sampling = self.of_request, self.of_request.request.sampling
        if self._penalises_output:
            self._count()
        if len(fixed.biased):
            logits[fixed.biased] += fixed.bias
        if fixed.has_repetition_penalty:
            for seen in (fixed.prompt, self._fresh):
                _penalise(logits, seen, np.float32(sampling.repetition_penalty))
        if self._penalises_counts and len(self._drawn):
            penalties = self._counts * sampling.frequency_penalty + sampling.presence_penalty
            logits[self._drawn] -= penalties.astype(np.float32)
        if len(self.output) < sampling.min_tokens:
            logits[fixed.masked] = LOWEST
        logits[fixed.put_off] = LOWEST

    def _count(self) -> None:
        """Take in what was drawn since the last step: one token, or all of a continuation that came from elsewhere."""
        if self._num_counted == 0 and self.output:
            self._drawn, self._counts = np.unique(np.array(self.output, dtype=np.int64), return_counts=True)
            self._fresh = np.setdiff1d(self._drawn, self.of_request.prompt, assume_unique=True)
        else:
            for token_id in self.output[self._num_counted :]:
                self._add(token_id)
        self._num_counted = len(self.output)

    def _add(self, token_id: TokenId) -> None:
        place, is_known = _find(self._drawn, token_id)
        if is_known:
            self._counts[place] += 1
            return
        self._drawn, self._counts = np.insert(self._drawn, place, token_id), np.insert(self._counts, place, 1)
        if not _find(self.of_request.prompt, token_id)[1]:
            self._fresh = np.append(self._fresh, token_id)


class EditCache:
    """The edits of the continuations that draw now. A continuation that pauses for long is counted again."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._requests: dict[RequestId, RequestEdits] = {}
        self._samples: dict[tuple[RequestId, int], SampleEdits] = {}

    def of(self, request: EngineRequest, sample: SampleState) -> SampleEdits:
        """Valid for this step."""
        key = (request.request_id, sample.sample_index)
        known = self._samples.get(key)
        if known is not None and known.of_request.request is request and known.output is sample.output_token_ids:
            return known
        of_request = self._requests.get(request.request_id)
        if of_request is None or of_request.request is not request:
            of_request = self._requests[request.request_id] = RequestEdits(request, self._vocab_size)
        self._samples[key] = SampleEdits(of_request, sample)
        return self._samples[key]

    @property
    def num_kept(self) -> int:
        """Continuations."""
        return len(self._samples)

    def keep(self, used: Iterable[SampleEdits]) -> None:
        """At the end of a step: forget the others, once there are many."""
        kept = {(each.of_request.request.request_id, each.sample_index): each for each in used}
        if len(self._samples) > 2 * len(kept) + _NUM_SPARE:
            self._samples = kept
            self._requests = {each.of_request.request.request_id: each.of_request for each in kept.values()}


def _puts_off_end(sampling: SamplingParams) -> bool:
    """End-of-sequence is drawn only where its grammar lets nothing else through; without a grammar it is ignored later,
    when it was drawn."""
    return sampling.ignore_eos and sampling.grammar is not None


def _penalise(logits: Logits, seen: TokenIds, penalty: np.float32) -> None:
    values = logits[seen]
    logits[seen] = np.where(values > 0, values / penalty, values * penalty)


def _find(token_ids: TokenIds, token_id: TokenId) -> tuple[int, bool]:
    """Its place among sorted ids, and whether it is there."""
    place = int(np.searchsorted(token_ids, token_id))
    return place, place < len(token_ids) and int(token_ids[place]) == token_id


def _in_vocabulary(token_ids: Iterable[TokenId], vocab_size: int) -> TokenIds:
    """Sorted, without repeats, without ids that the model does not have."""
    unique = np.unique(np.fromiter(token_ids, dtype=np.int64))
    return unique[(unique >= 0) & (unique < vocab_size)]
