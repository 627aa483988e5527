"""What may come next in each output that is held to a grammar: asked of single tokens, and as masks, one bit for each
token of the vocabulary.

Owns where each of those outputs is in its grammar, and the memory of the masks, which is used again in every step.
Nothing of it is handed over with a request: it follows from the grammar and the output tokens alone, so a continuation
goes on in the same place on another worker, after a preemption and in every rank of a group. Does not know how a token
is drawn, which draws can do without a mask, or what becomes of an output that cannot go on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from relevo.core.baton import SampleState
from relevo.core.errors import GrammarFailed, RelevoError
from relevo.core.ids import RequestId, TokenId
from relevo.core.plan import StepFailure
from relevo.core.request import EngineRequest
from relevo.engine.grammars import Grammars
from relevo.engine.row_math import Masks
from relevo.vocabulary.grammars import GrammarMatcher

if TYPE_CHECKING:
    from llguidance import LLExecutor

SampleSpec = tuple[int, EngineRequest, SampleState]  # (row in logits, request, continuation)

_NUM_SPARE = 64  # arbitrary: outputs whose place is remembered although the last step did not draw for them
_EVERY_TOKEN = np.uint32(0xFFFFFFFF)


class HeldDraws(Protocol):
    """The draws of one step that grammars hold, by their place among its draws. All the answers say one thing: which
    tokens the mask of a draw has."""

    @property
    def places(self) -> Collection[int]: ...

    def forced(self, place: int) -> TokenId | None:
        """The only token of the mask, if that is known without it."""
        ...

    def lets_through(self, place: int, token_id: TokenId) -> bool:
        """Where nothing is forced."""
        ...

    def masks(self, places: Sequence[int]) -> Masks:
        """[N, ceil(V / 32)], valid until the next are asked for."""
        ...


class HeldOutput:
    """One continuation in its grammar."""

    __slots__ = ("has_own_bounds", "matcher", "output", "request", "sample_index")

    def __init__(self, request: EngineRequest, sample: SampleState, matcher: GrammarMatcher) -> None:
        self.request = request
        self.sample_index = sample.sample_index
        self.output = sample.output_token_ids
        self.matcher = matcher
        self.has_own_bounds = False  # no earlier output has used up some of its grammar's bounds of work

    def is_of(self, request: EngineRequest, sample: SampleState) -> bool:
        return self.request is request and self.output is sample.output_token_ids


class StepGrammars:
    """Implements `HeldDraws`; valid until the next step. `failures` is complete once all is drawn."""

    def __init__(
        self,
        held: Mapping[int, HeldOutput],
        failures: dict[RequestId, StepFailure],
        masks: GrammarMasks | None = None,
    ) -> None:
        """`held`: by place among the draws."""
        self.failures = failures  # of requests; none of their draws counts
        self._held = held
        self._masks = masks

    @property
    def places(self) -> Collection[int]:
        return self._held.keys()

    def forced(self, place: int) -> TokenId | None:
        return self._held[place].matcher.forced_token()

    def lets_through(self, place: int, token_id: TokenId) -> bool:
        return self._held[place].matcher.lets_through(token_id)

    def masks(self, places: Sequence[int]) -> Masks:
        """An output that cannot go on is among `failures` from here on, and draws what it likes."""
        assert self._masks is not None, "there are no places"
        bits = self._masks.fill([self._held[place].matcher for place in places])
        for row, place in enumerate(places):
            output = self._held[place]
            if output.matcher.failure and self._masks.renews(output):
                bits[row] = self._masks.fill_alone(output.matcher)
            if output.matcher.failure or not bits[row].any():
                self.failures[output.request.request_id] = _failure(output)
                bits[row] = _EVERY_TOKEN
        return bits


NOTHING_HELD = StepGrammars({}, {})


class GrammarMasks:
    def __init__(self, grammars: Grammars, vocab_size: int, num_threads: int = 1) -> None:
        """`num_threads`: that masks of one step are made by."""
        self._grammars = grammars
        self._num_words = (vocab_size + 31) // 32
        self._num_threads = num_threads
        self._bits: Masks = np.zeros((0, self._num_words), dtype=np.uint32)
        self._outputs: dict[tuple[RequestId, int], HeldOutput] = {}
        self._executor: LLExecutor | None = None

    def of(self, specs: Sequence[SampleSpec]) -> StepGrammars:
        """Of those that draw for a request with a grammar."""
        places = [place for place, (_, request, _) in enumerate(specs) if request.sampling.grammar is not None]
        if not places:
            return NOTHING_HELD
        held: dict[int, HeldOutput] = {}
        failures: dict[RequestId, StepFailure] = {}
        for place in places:
            _, request, sample = specs[place]
            try:
                output = held[place] = self._follow(request, sample)
            except RelevoError as error:  # compiled here, because the grammar was forgotten meanwhile
                failures[request.request_id] = StepFailure(error.code, error.message)
            else:
                if output.matcher.failure and not self.renews(output):
                    failures[request.request_id] = _failure(output)
        self._forget_others(held.values())
        able = {place: each for place, each in held.items() if each.request.request_id not in failures}
        return StepGrammars(able, failures, self)

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

    def renews(self, output: HeldOutput) -> bool:
        """Whether an output that cannot go on can with a grammar compiled for it alone: then others had used up what
        bounds its work. Asked once of an output, on the step's thread."""
        assert output.request.sampling.grammar is not None
        if output.has_own_bounds:
            return False
        output.has_own_bounds = True
        try:
            output.matcher = self._grammars.renew(output.request.sampling.grammar).start()
        except RelevoError:  # it stays as it is
            return False
        output.matcher.follow(output.output)
        return not output.matcher.failure

    def fill_alone(self, matcher: GrammarMatcher) -> Masks:
        """[ceil(V / 32)], of its own."""
        bits: Masks = np.zeros(self._num_words, dtype=np.uint32)
        matcher.state.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        return bits

    def fill(self, matchers: Sequence[GrammarMatcher]) -> Masks:
        """A mask for each. Without the interpreter lock, and on several threads where there are several."""
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
