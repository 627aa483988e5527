"""One request as the planner's window knows it: what was asked, what came of it so far, whether it meets the targets.

A sink between the request and its client counts tokens as they come, so that a stream that is too slow counts long
before it ends. Holds no token.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.events import TokenOutput
from relevo.core.outcome import RequestEnd
from relevo.core.ports import Clock
from relevo.orchestrator.ports import OutputSink
from relevo.telemetry.latency import RequestRecord, Slo

_FEWEST_GAPS = 8  # between tokens, to judge a stream that goes on. Arbitrary
_LATE_PART = 0.1  # of the gaps of a request may be above the target: it is one of the 90th percentile


@dataclass(slots=True)
class WatchedRequest:
    """Implements orchestrator.ports.OutputSink. Counted are the tokens of its first continuation."""

    at_ns: int
    num_prompt_tokens: int
    slo: Slo
    clock: Clock
    sink: OutputSink
    num_output_tokens: int | None = None  # None: it has not ended
    num_cached_tokens: int = 0
    num_so_far: int = 0  # tokens that have come
    _is_met: bool | None = None  # None: it has not ended, or not of its own
    _is_over: bool = False
    _first_at_ns: int = 0
    _last_at_ns: int = 0
    _num_late: int = 0  # gaps above the target

    def on_output(self, output: TokenOutput) -> None:
        if output.sample_index == 0 and output.tokens:
            self._take(len(output.tokens))
            if output.facts is not None:
                self.num_cached_tokens = output.facts.num_cached_tokens
        self.sink.on_output(output)

    def on_end(self, end: RequestEnd) -> None:
        self._is_over = True
        self.sink.on_end(end)

    def _take(self, num_tokens: int) -> None:
        """Some that come together share the time since the one before."""
        now_ns, itl_s = self.clock.now_ns(), self.slo.itl_s
        if not self.num_so_far:
            self._first_at_ns = now_ns
        elif itl_s is not None and now_ns - self._last_at_ns > num_tokens * itl_s * 1e9:
            self._num_late += num_tokens
        self._last_at_ns = now_ns
        self.num_so_far += num_tokens

    def ended(self, record: RequestRecord) -> None:
        """One that was aborted says nothing of the server."""
        self.num_output_tokens = record.num_output_tokens
        self.num_cached_tokens = record.num_cached_tokens
        if record.outcome != "aborted":
            self._is_met = record.outcome == "finished" and self.slo.is_met(record.times, record.times.tpot_s)

    def is_met(self, now_ns: int) -> bool | None:
        """Whether it met the targets, or does so far; None: that cannot be told."""
        if self._is_met is not None or self._is_over or self.num_output_tokens is not None:
            return self._is_met
        first_at_ns = self._first_at_ns if self.num_so_far else now_ns
        if self.slo.ttft_s is not None and first_at_ns - self.at_ns > self.slo.ttft_s * 1e9:
            return False
        num_gaps = self.num_so_far - 1
        return self._num_late <= _LATE_PART * num_gaps if num_gaps >= _FEWEST_GAPS else None
