"""One prompt of a request while an engine answers it: its choices, its counts and times, and how it ended.

Does not know APIs, nor what becomes of a delta: that is its listener's. The orchestrator says how it ended, unless the
listener has ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from relevo.core.baton import PrefillFacts
from relevo.core.errors import CapacityError, DeadlineExceeded, RelevoError, RequestError, WorkerError
from relevo.core.events import TokenOutput
from relevo.core.outcome import COMPLETE, Outcome, RequestEnd
from relevo.core.ports import Clock
from relevo.core.prompt_scores import PromptScores
from relevo.core.request import EngineRequest, FinishReason
from relevo.core.timeline import Timeline
from relevo.gateway.generation.choice import Choice
from relevo.gateway.generation.prompt_scores import PromptScoring
from relevo.gateway.http.context import RequestMetrics
from relevo.gateway.text.parts import Delta
from relevo.orchestrator.ports import RequestStarter, StartedRequest
from relevo.policy.billing.bill import Work
from relevo.policy.tracing.words import PromptTrace
from relevo.telemetry.latency import RequestRecord, RequestTimes
from relevo.telemetry.live_latency import LiveLatency


class RunListener(Protocol):
    """Told on the event loop; raises nothing."""

    def on_delta(self, run: PromptRun, delta: Delta) -> None: ...

    def on_scores(self, run: PromptRun, num_bytes: int) -> None:
        """More is known of the prompt, before its first delta; about so many bytes are kept of it."""
        ...

    def on_failure(self, error: Exception) -> None:
        """No delta follows, though choices have not ended."""
        ...


class PromptRun:
    """Implements orchestrator.ports.OutputSink. `start` once, `end` once it is of no use any more, then `record`."""

    def __init__(
        self,
        request: EngineRequest,
        choices: Sequence[Choice],
        *,
        generator: RequestStarter,
        clock: Clock,
        metrics: RequestMetrics,
        latency: LiveLatency,
        model: str,
        is_streamed: bool = False,
        on_first_output: Callable[[str], None] | None = None,
        scoring: PromptScoring | None = None,
        trace_id: str = "",
    ) -> None:
        """`trace_id`: of a trace that is recorded; empty: none is."""
        self.request = request
        self._choices = choices
        self._generator = generator
        self._clock = clock
        self._metrics = metrics
        self._latency = latency
        self._model = model
        self._is_streamed = is_streamed
        self._on_first_output = on_first_output
        self._trace_id = trace_id
        self._scoring = scoring  # None: nothing is to be told of the prompt
        self._listener: RunListener | None = None  # until it has started
        self._started: StartedRequest | None = None
        self._end: RequestEnd | None = None
        self._num_unfinished = len(choices)
        self._was_let_in = True  # until it is known that it was not
        self._token_at_ns: list[int] = []  # of the first continuation
        self._num_stamped_tokens = 0  # of all continuations
        self._num_output_tokens = 0
        self._num_tokens_of = [0] * len(choices)  # of each continuation
        self._facts: PrefillFacts | None = None
        self._timeline = Timeline(accepted_at_ns=request.arrived_at_ns)  # until it has started
        self._unread_ns = 0  # as its stream counts, up to where that was taken into the timeline

    @property
    def timeline(self) -> Timeline:
        """What happened to it so far, on both sides of the orchestrator."""
        return self._timeline

    @property
    def ended(self) -> RequestEnd | None:
        """How; None: it runs, or never did."""
        return self._end

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were not computed for this request."""
        return 0 if self._facts is None else min(self._facts.num_cached_tokens, self.num_prompt_tokens)

    @property
    def num_output_tokens(self) -> int:
        """Summed over the choices."""
        return self._num_output_tokens

    @property
    def num_reasoning_tokens(self) -> int:
        """Of the output tokens."""
        return sum(choice.num_reasoning_tokens for choice in self._choices)

    def start(self, listener: RunListener) -> None:
        """Outputs may come before this returns."""
        self._listener = listener
        self._started = self._generator.start(self.request, self)
        self._timeline = self._started.timeline
        if self._end is not None:
            self._started.end(self._end)

    def end(self, end: RequestEnd) -> None:
        """Nothing more is wanted of it; every worker lets go. Without effect once it has ended."""
        if self._end is None:
            self._end = end
            if self._started is not None:
                self._started.end(end)

    # ---- OutputSink --------------------------------------------------------------------------------------------------

    def on_output(self, output: TokenOutput) -> None:
        if self._end is not None:
            return
        if output.prompt_scores is not None:
            self._take_scores(output.prompt_scores)
            return
        if (output.facts is not None and self._facts is None) or self._is_better_known(output.facts):
            self._facts = output.facts
        if self._on_first_output is not None:
            self._on_first_output(self._started.route if self._started is not None else "")
            self._on_first_output = None
        choice = self._choices[output.sample_index]
        if choice.finish_reason is not None:
            return
        if output.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            self._fail(WorkerError(f"The engine gave the request up ({output.finish_reason})."))
            return
        if not self._num_output_tokens and not self._has_all_scores():
            return
        delta = choice.feed(output)
        self._num_output_tokens += len(delta.tokens)
        self._num_tokens_of[output.sample_index] += len(delta.tokens)
        if delta.finish_reason is not None:
            self._num_unfinished -= 1
        assert self._listener is not None, "started"
        self._listener.on_delta(self, delta)
        if not self._num_unfinished:
            self.end(COMPLETE)

    def _is_better_known(self, facts: PrefillFacts | None) -> bool:
        """The worker that computed the prompt says it once more, as engines do that know only at the end."""
        return facts is not None and self._facts is not None and facts.worker_id == self._facts.worker_id

    def _take_scores(self, scores: PromptScores) -> None:
        if self._scoring is None:
            return
        assert self._listener is not None, "started"
        try:
            num_bytes = self._scoring.take(scores)
        except WorkerError as error:
            self._fail(error)
        else:
            self._listener.on_scores(self, num_bytes)

    def _has_all_scores(self) -> bool:
        """If not, it has failed."""
        if self._scoring is not None:
            try:
                self._scoring.check_complete()
            except WorkerError as error:
                self._fail(error)
                return False
        return True

    def on_end(self, end: RequestEnd) -> None:
        if self._end is None:
            self._fail(WorkerError("The generation ended before it was complete.") if end.code is None else end.error())

    def _fail(self, error: RelevoError) -> None:
        is_turned_away = isinstance(error, CapacityError | RequestError) and not isinstance(error, DeadlineExceeded)
        self._was_let_in = bool(self._num_output_tokens) or not is_turned_away
        self.end(RequestEnd.of(error))
        assert self._listener is not None, "started"
        self._listener.on_failure(error)

    # ---- what it did -------------------------------------------------------------------------------------------------

    def stamp(self, index: int, num_tokens: int) -> None:
        """Note that tokens of this choice were written to the client (or kept, when the answer is not streamed)."""
        self._num_stamped_tokens += num_tokens
        if not num_tokens:
            return
        now_ns = self._clock.now_ns()
        self._timeline.last_written_at_ns = now_ns
        if index % len(self._choices) == 0:
            if self._token_at_ns:
                self._latency.wrote(now_ns - self._token_at_ns[-1], num_tokens)
            else:
                self._timeline.first_written_at_ns = now_ns
                ttft_ns = now_ns - self.request.arrived_at_ns
                self._latency.wrote_first(ttft_ns, num_tokens, self.num_prompt_tokens, self.num_cached_tokens)
            for _ in range(num_tokens):
                self._token_at_ns.append(now_ns)

    def stamp_late(self, index: int, num_tokens: int, put_ns: int, unread_ns: int) -> None:
        """The same of tokens that had to wait: their stream had waited for its client for `put_ns` in all when they
        came, and for `unread_ns` when they left. What outputs waited together counts once."""
        waited_s = max(0, unread_ns - max(put_ns, self._unread_ns)) / 1e9
        self._unread_ns = max(self._unread_ns, unread_ns)
        self._timeline.blocked_s += waited_s
        if not self._token_at_ns:
            self._timeline.blocked_first_s += waited_s
        elif waited_s and not num_tokens:  # the end of its stream waited
            self._timeline.last_written_at_ns = self._clock.now_ns()
        self.stamp(index, num_tokens)

    def work(self) -> Work | None:
        """What was done up to now, for the bill; None if it was never let in."""
        if self._listener is None or not self._was_let_in:
            return None
        return Work(
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.num_output_tokens,
            num_delivered_tokens=self._num_stamped_tokens if self._is_streamed else 0,
            is_prompt_computed=self._facts is not None,
        )

    def record(self) -> None:
        """It is over for its client. Hand the record of this request to the metrics, if it was let in."""
        now_ns = self._timeline.ended_at_ns = self._clock.now_ns()
        if self._end is None or self.work() is None:
            return
        record = RequestRecord(
            request_id=self.request.request_id,
            model=self._model,
            times=RequestTimes(self.request.arrived_at_ns, self._token_at_ns, now_ns),
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.num_output_tokens,
            num_longest_output_tokens=max(self._num_tokens_of),
            n=self.request.sampling.n,
            max_tokens=self.request.sampling.max_tokens,
            finish_reason=self._recorded_finish_reason(self._end.outcome),
            outcome=self._end.outcome,
            facts=self._facts,
            tenant=self.request.terms.tenant,
            trace_id=self._trace_id,
        )
        self._metrics.request_finished(record)
        self._latency.ended(record)

    def traced(self) -> PromptTrace | None:
        """Once it has ended; None if it was never started."""
        if self._started is None or self._end is None:
            return None
        return PromptTrace(
            request_id=self.request.request_id,
            timeline=self._started.timeline,
            end=self._end,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.num_output_tokens,
            finish_reasons=tuple(choice.finish_reason or "" for choice in self._choices),
        )

    def _recorded_finish_reason(self, outcome: Outcome) -> str:
        if outcome is Outcome.FINISHED:
            return self._choices[0].finish_reason or "stop"
        return FinishReason.ABORT if outcome is Outcome.ABORTED else FinishReason.ERROR
