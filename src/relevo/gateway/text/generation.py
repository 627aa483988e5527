"""One engine request as text: detokenised, cut at stop strings, with token counts and times.

Owns the text state of every choice and closes the token generator once all of them have ended. Does not know the
format of any API. Counting rule: output tokens are counted up to and including the one that completed a stop string;
the end-of-sequence token counts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from relevo.core.baton import PrefillFacts, SampledToken
from relevo.core.errors import CapacityError, DeadlineExceeded, RequestError, WorkerError
from relevo.core.events import TokenOutput
from relevo.core.ids import TokenId
from relevo.core.request import EngineRequest, FinishReason
from relevo.gateway.http.context import GatewayContext
from relevo.gateway.text.served_models import Detokenizer, ServedModel
from relevo.gateway.text.stop_strings import StopStringMatcher, StopStrings
from relevo.policy.billing.bill import Work
from relevo.telemetry.latency import RequestRecord, RequestTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """What the text side needs to know of a request."""

    stop_strings: StopStrings | None = None
    include_stop_string: bool = False  # also: show the text of the token that ended the choice
    skip_special_tokens: bool = True
    continues_text: bool = False  # the output goes on in the middle of a text, not in a message of its own
    min_tokens: int = 0  # stop strings are not looked for in the text of earlier tokens
    stop_token_ids: tuple[TokenId, ...] = ()


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one engine step added to one choice. A Struct, because one is made per token."""

    prompt_index: int
    sample_index: int
    text: str
    tokens: tuple[SampledToken, ...]  # those that count
    text_offsets: tuple[int, ...]  # per token: characters decoded before it
    finish_reason: str | None = None  # "stop" or "length"
    stop_reason: int | str | None = None  # the stop token id or stop string of the client's that ended it


class ChoiceText:
    """The text of one continuation."""

    def __init__(self, options: TextOptions, detokenizer: Detokenizer, matcher: StopStringMatcher | None) -> None:
        self._options = options
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._num_chars = 0  # decoded so far, held-back text included
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    def feed(self, output: TokenOutput) -> tuple[str, list[SampledToken], list[int]]:
        """Text to show, tokens that count, and the offset of each. Nothing once the choice has ended."""
        text: list[str] = []
        tokens: list[SampledToken] = []
        offsets: list[int] = []
        for position, token in enumerate(output.tokens):
            if self.finish_reason is not None:
                break
            self.num_tokens += 1
            tokens.append(token)
            offsets.append(self._num_chars)
            ends_choice = output.finish_reason is FinishReason.STOP and position == len(output.tokens) - 1
            if not ends_choice or self._options.include_stop_string:
                text.append(self._show(self._detokenizer.add(token.token_id)))
        if output.finish_reason is not None and self.finish_reason is None:
            text.append(self._finish(output))
        return "".join(text), tokens, offsets

    def _show(self, delta: str) -> str:
        self._num_chars += len(delta)
        if self._matcher is None or self.num_tokens < self._options.min_tokens:
            return delta
        outcome = self._matcher.feed(delta)
        if outcome.stopped:
            self.finish_reason, self.stop_reason = "stop", outcome.stop
        return outcome.text

    def _finish(self, output: TokenOutput) -> str:
        text = self._show(self._detokenizer.flush())
        if self.finish_reason is not None:  # the held-back text completed a stop string
            return text
        if self._matcher is not None:
            text += self._matcher.flush()
        if output.finish_reason is FinishReason.LENGTH:
            self.finish_reason = "length"
            return text
        self.finish_reason = "stop"
        if output.tokens and output.tokens[-1].token_id in self._options.stop_token_ids:
            self.stop_reason = output.tokens[-1].token_id
        return text


class TextGeneration:
    """Runs one engine request; iterate `deltas` once, then ask for counts and the record."""

    def __init__(
        self,
        served: ServedModel,
        context: GatewayContext,
        request: EngineRequest,
        options: TextOptions,
        *,
        model: str,
        prompt_index: int = 0,
        is_streamed: bool = False,
        on_first_output: Callable[[], None] | None = None,
    ) -> None:
        self.request = request
        self._on_first_output = on_first_output
        self._is_streamed = is_streamed
        self._model = model
        self._prompt_index = prompt_index
        self._generator = served.generator
        self._clock = context.clock
        self._metrics = context.metrics
        self._choices = [_choice(served, options) for _ in range(request.sampling.n)]
        self._num_unfinished = len(self._choices)
        self._token_at_ns: list[int] = []  # of the first continuation
        self._num_stamped_tokens = 0  # of all continuations
        self._num_output_tokens = 0
        self._outcome: str | None = None  # None: nothing to record (not started, or never admitted)
        self._facts: PrefillFacts | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that nobody had to compute."""
        return 0 if self._facts is None else min(self._facts.num_cached_tokens, self.num_prompt_tokens)

    @property
    def num_output_tokens(self) -> int:
        """Summed over the choices."""
        return self._num_output_tokens

    async def deltas(self) -> AsyncGenerator[TextDelta, None]:
        """Yield until every choice has ended. Closing it early aborts the request on every worker.

        Raises what the token generator raises, and WorkerError if that ends or gives up before all choices ended.
        """
        self._outcome = "aborted"
        try:
            async with aclosing(self._generator.generate(self.request)) as outputs:
                async for output in outputs:
                    delta = self._delta(output)
                    all_ended = self._num_unfinished == 0
                    if all_ended:
                        self._outcome = "finished"
                        await outputs.aclose()
                    if delta is not None:
                        yield delta
                    if all_ended:
                        return
            raise WorkerError("The generation ended before it was complete.")
        except Exception as error:
            if isinstance(error, DeadlineExceeded):  # it was in line, at least
                self._outcome = "aborted"
            else:
                was_admitted = bool(self.num_output_tokens) or not isinstance(error, CapacityError | RequestError)
                self._outcome = "failed" if was_admitted else None
            raise

    def stamp(self, delta: TextDelta) -> None:
        """Note that the delta has been written to the client (or kept, when the answer is not streamed)."""
        self._num_stamped_tokens += len(delta.tokens)
        if delta.sample_index == 0:
            self._token_at_ns.extend([self._clock.now_ns()] * len(delta.tokens))

    def work(self) -> Work | None:
        """What was done up to now, for the bill; None if it was never admitted. To be asked before `record`."""
        if self._outcome is None:
            return None
        return Work(
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.num_output_tokens,
            num_delivered_tokens=self._num_stamped_tokens if self._is_streamed else 0,
            is_prompt_computed=self._facts is not None,
        )

    def record(self) -> None:
        """Hand the record of this request to the metrics, once."""
        if self._outcome is None:
            return
        record = RequestRecord(
            request_id=self.request.request_id,
            model=self._model,
            times=RequestTimes(self.request.arrived_at_ns, self._token_at_ns, self._clock.now_ns()),
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.num_output_tokens,
            n=self.request.sampling.n,
            max_tokens=self.request.sampling.max_tokens,
            finish_reason=self._recorded_finish_reason(self._outcome),
            outcome=self._outcome,
            facts=self._facts,
        )
        self._outcome = None
        self._metrics.request_finished(record)

    def _delta(self, output: TokenOutput) -> TextDelta | None:
        if self._on_first_output is not None:
            self._on_first_output()
            self._on_first_output = None
        self._facts = self._facts or output.facts
        choice = self._choices[output.sample_index]
        if choice.finish_reason is not None:
            return None
        if output.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            raise WorkerError(f"The engine gave the request up ({output.finish_reason}).")
        text, tokens, offsets = choice.feed(output)
        self._num_output_tokens += len(tokens)
        if choice.finish_reason is not None:
            self._num_unfinished -= 1
        return TextDelta(
            prompt_index=self._prompt_index,
            sample_index=output.sample_index,
            text=text,
            tokens=tuple(tokens),
            text_offsets=tuple(offsets),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
        )

    def _recorded_finish_reason(self, outcome: str) -> str:
        if outcome == "finished":
            return self._choices[0].finish_reason or "stop"
        return str(FinishReason.ABORT if outcome == "aborted" else FinishReason.ERROR)


def _choice(served: ServedModel, options: TextOptions) -> ChoiceText:
    matcher = None
    if options.stop_strings is not None:
        matcher = StopStringMatcher(options.stop_strings, include_stop_str_in_output=options.include_stop_string)
    detokenizer = served.make_detokenizer(
        skip_special_tokens=options.skip_special_tokens, continues_text=options.continues_text
    )
    return ChoiceText(options, detokenizer, matcher)
