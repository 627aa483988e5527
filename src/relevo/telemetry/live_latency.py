"""What the requests of one model show while they run: first tokens and gaps as they are written, ends as they come.

Owns the interval that is under way; `take` closes it. The same events, counted once a request has ended, are on
/metrics. Does not know clocks: durations are told.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from relevo.core.request import FinishReason
from relevo.telemetry.latency import RequestRecord
from relevo.telemetry.latency_histogram import LatencyHistogram

_COMPLETED = frozenset((FinishReason.STOP, FinishReason.LENGTH))


@dataclass(slots=True)
class LiveLatency:
    ttft: LatencyHistogram = field(default_factory=LatencyHistogram)
    itl: LatencyHistogram = field(default_factory=LatencyHistogram)
    e2e: LatencyHistogram = field(default_factory=LatencyHistogram)  # of completed requests
    num_requests: int = 0  # ended
    num_output_tokens: int = 0  # written, of first continuations
    num_prompt_tokens: int = 0  # of requests that got their first token
    num_cached_tokens: int = 0  # of these

    def wrote_first(self, ttft_ns: int, num_tokens: int, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        """The first tokens of a request, together."""
        self.ttft.add(ttft_ns)
        self.num_output_tokens += num_tokens
        self.num_prompt_tokens += num_prompt_tokens
        self.num_cached_tokens += num_cached_tokens
        if num_tokens > 1:
            self.itl.add(0, num_tokens - 1)

    def wrote(self, gap_ns: int, num_tokens: int) -> None:
        """More of them, together, so long after those before."""
        self.itl.add(gap_ns)
        self.num_output_tokens += num_tokens
        if num_tokens > 1:
            self.itl.add(0, num_tokens - 1)

    def ended(self, record: RequestRecord) -> None:
        self.num_requests += 1
        e2e_s = record.times.e2e_s
        if e2e_s is not None and record.finish_reason in _COMPLETED:
            self.e2e.add(round(e2e_s * 1e9))

    def take(self) -> LiveLatency:
        """All since the last call; counting begins anew."""
        taken = LiveLatency(
            self.ttft,
            self.itl,
            self.e2e,
            self.num_requests,
            self.num_output_tokens,
            self.num_prompt_tokens,
            self.num_cached_tokens,
        )
        self.ttft, self.itl, self.e2e = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()
        self.num_requests = self.num_output_tokens = self.num_prompt_tokens = self.num_cached_tokens = 0
        return taken
