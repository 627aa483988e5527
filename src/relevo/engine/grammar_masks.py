"""What may come next in each output that is held to a grammar: one bit for every token of the vocabulary.

Owns where each of those outputs is in its grammar, and the memory of the masks, which is used again in every step.
Nothing of it is handed over with a request: it follows from the grammar and the output tokens alone, so a continuation
goes on in the same place on another worker, after a preemption and in every rank of a group. Does not know how a token
is drawn, or what becomes of an output that cannot go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from relevo.core.baton import SampleState
from relevo.core.errors import GrammarFailed, RelevoError
from relevo.core.ids import RequestId
from relevo.core.plan import StepFailure
from relevo.core.request import EngineRequest
from relevo.engine.grammars import Grammars
from relevo.engine.row_math import Masks
from relevo.vocabulary.grammars import GrammarMatcher

if TYPE_CHECKING:
    from llguidance import LLExecutor

SampleSpec = tuple[int, EngineRequest, SampleState]  # (row in logits, request, continuation)

NO_BITS: Masks = np.zeros((0, 0), dtype=np.uint32)
_NUM_SPARE = 64  # arbitrary: outputs whose place is remembered although the last step did not draw for them


@dataclass(frozen=True, slots=True)
class StepMasks:
    """For the draws of one step, valid until the next is asked for."""

    bits: Masks = field(default_factory=lambda: NO_BITS)
    row_of: Mapping[int, int] = field(default_factory=dict)  # of `bits`, by place among the draws; others are free
    failures: Mapping[RequestId, StepFailure] = field(default_factory=dict)  # none of their draws counts


NO_MASKS = StepMasks()


class HeldOutput:
    """One continuation in its grammar."""

    __slots__ = ("matcher", "output", "request", "sample_index")

    def __init__(self, request: EngineRequest, sample: SampleState, matcher: GrammarMatcher) -> None:
        self.request = request
        self.sample_index = sample.sample_index
        self.output = sample.output_token_ids
        self.matcher = matcher

    def is_of(self, request: EngineRequest, sample: SampleState) -> bool:
        return self.request is request and self.output is sample.output_token_ids


class GrammarMasks:
    def __init__(self, grammars: Grammars, vocab_size: int, num_threads: int = 1) -> None:
        """`num_threads`: that masks of one step are made by."""
        self._grammars = grammars
        self._num_words = (vocab_size + 31) // 32
        self._num_threads = num_threads
        self._bits: Masks = np.zeros((0, self._num_words), dtype=np.uint32)
        self._outputs: dict[tuple[RequestId, int], HeldOutput] = {}
        self._executor: LLExecutor | None = None

    def of(self, specs: Sequence[SampleSpec]) -> StepMasks:
        """Of those that draw for a request with a grammar."""
        places = [place for place, (_, request, _) in enumerate(specs) if request.sampling.grammar is not None]
        if not places:
            return NO_MASKS
        held: dict[int, HeldOutput] = {}
        failures: dict[RequestId, StepFailure] = {}
        for place in places:
            _, request, sample = specs[place]
            try:
                held[place] = self._follow(request, sample)
            except RelevoError as error:  # compiled here, because the grammar was forgotten meanwhile
                failures[request.request_id] = StepFailure(error.code, error.message)
        bits = self._fill([each.matcher for each in held.values()])
        for row, output in enumerate(held.values()):
            if output.matcher.failure or not bits[row].any():
                failures[output.request.request_id] = _failure(output)
        self._forget_others(held.values())
        row_of = {
            place: row for row, (place, each) in enumerate(held.items()) if each.request.request_id not in failures
        }
        return StepMasks(bits, row_of, failures)

    @property
    def num_kept(self) -> int:
        """Outputs whose place is remembered."""
        return len(self._outputs)

    def _follow(self, request: EngineRequest, sample: SampleState) -> HeldOutput:
        key = (request.request_id, sample.sample_index)
        output = self._outputs.get(key)
        if output is None or not output.is_of(request, sample):
            assert request.sampling.grammar is not None
            matcher = self._grammars.get(request.sampling.grammar).start()
            output = self._outputs[key] = HeldOutput(request, sample, matcher)
        output.matcher.follow(sample.output_token_ids)
        return output

    def _fill(self, matchers: Sequence[GrammarMatcher]) -> Masks:
        """Without the interpreter lock, and on several threads where there are several."""
        if len(self._bits) < len(matchers):
            self._bits = np.zeros((len(matchers), self._num_words), dtype=np.uint32)
        bits = self._bits[: len(matchers)]
        row_bytes = self._num_words * bits.itemsize
        if len(matchers) == 1 or self._num_threads == 1:
            for row, matcher in enumerate(matchers):
                matcher.state.unsafe_compute_mask_ptr(bits.ctypes.data + row * row_bytes, row_bytes)
        elif matchers:
            states = [(matcher.state, row) for row, matcher in enumerate(matchers)]
            self._shared().unsafe_compute_mask_ptr(states, bits.ctypes.data, row_bytes, len(matchers))
        return bits

    def _shared(self) -> LLExecutor:
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor(self._num_threads)
        return self._executor

    def _forget_others(self, used: Iterable[HeldOutput]) -> None:
        """Once there are many."""
        kept = {(each.request.request_id, each.sample_index): each for each in used}
        if len(self._outputs) > 2 * len(kept) + _NUM_SPARE:
            self._outputs = kept


def _failure(output: HeldOutput) -> StepFailure:
    why = output.matcher.failure or "no token of the model can come next"
    count = len(output.output)
    return StepFailure(
        GrammarFailed.code,
        f"After {count:,} tokens the output cannot go on in its grammar: {why}. Use a simpler schema or pattern.",
    )
