"""What is kept of one request: who asked, what for, how it ended, and its marks. Never a text of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from relevo.core.outcome import RequestEnd
from relevo.core.request import EngineRequest
from relevo.core.timeline import Timeline
from relevo.gateway.requests.packing import packed, unpacked

MAX_PROMPTS = 64  # arbitrary; of a request with more the first ones are told
_FIXED_BYTES = 1_100  # measured: an entry, its numbers and its places in the index, without texts and marks


class TimedRun(Protocol):
    """One prompt; `gateway.generation.run` has it."""

    @property
    def request(self) -> EngineRequest: ...

    @property
    def timeline(self) -> Timeline: ...

    @property
    def ended(self) -> RequestEnd | None: ...

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_cached_tokens(self) -> int: ...

    @property
    def num_output_tokens(self) -> int: ...


@dataclass(slots=True)  # not frozen, as KeptRequest: to make one then takes a quarter of the time
class PromptFacts:
    """Of one prompt, beside its marks. Never changed."""

    engine_request_id: str
    num_samples: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    end: RequestEnd | None  # without its reason, which may quote the client; None: it runs, or never did


@dataclass(slots=True, eq=False, kw_only=True)
class LiveRequest:
    """One that has not ended: noted while it is read, looked at by those who ask."""

    x_request_id: str
    tenant: str
    key_id: str
    path: str
    accepted_at_ns: int
    arrived_at_unix_ms: int
    model: str = ""  # a name that is served; empty: it did not come so far
    response_id: str = ""
    is_streamed: bool = False
    num_choices: int = 0
    runs: Sequence[TimedRun] = field(default_factory=tuple)
    code: str = ""  # of the error that its client was told

    def began(
        self, model: str, response_id: str, runs: Sequence[TimedRun], num_choices: int, *, is_streamed: bool
    ) -> None:
        """It has been read, and will be asked of an engine."""
        self.model, self.response_id, self.runs = model, response_id, runs
        self.num_choices, self.is_streamed = num_choices, is_streamed

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.x_request_id, self.response_id, *(run.request.request_id for run in self.runs[:MAX_PROMPTS]))

    def as_kept(self, status: int | None, now_ns: int) -> KeptRequest:
        """`status`: that its client was answered; None: it runs."""
        runs = self.runs[:MAX_PROMPTS]
        timelines = [run.timeline for run in runs]
        ended = [timeline.ended_at_ns for timeline in timelines if timeline.ended_at_ns is not None]
        ends_ns = now_ns if status is None or not ended else max(ended)
        first = [each.first_written_at_ns for each in timelines if each.first_written_at_ns is not None]
        gaps = [each.worst_gap.gap_s for each in timelines if each.worst_gap is not None]
        return KeptRequest(
            x_request_id=self.x_request_id,
            response_id=self.response_id,
            tenant=self.tenant,
            key_id=self.key_id,
            path=self.path,
            model=self.model,
            accepted_at_ns=self.accepted_at_ns,
            arrived_at_unix_ms=self.arrived_at_unix_ms,
            is_streamed=self.is_streamed,
            num_choices=self.num_choices,
            status=status,
            code=self.code,
            ttft_s=(min(first) - self.accepted_at_ns) / 1e9 if first else None,
            e2e_s=(ends_ns - self.accepted_at_ns) / 1e9,
            gap_s=max(gaps, default=None),
            prompts=tuple(_facts(run) for run in runs),
            marks=packed(timelines),
        )


@dataclass(slots=True, eq=False, kw_only=True)
class KeptRequest:
    """Never changed."""

    x_request_id: str
    response_id: str
    tenant: str
    key_id: str
    path: str
    model: str
    accepted_at_ns: int
    arrived_at_unix_ms: int
    is_streamed: bool
    num_choices: int
    status: int | None  # None: it runs
    code: str
    ttft_s: float | None  # None: its client was given no token
    e2e_s: float
    gap_s: float | None
    prompts: tuple[PromptFacts, ...]
    marks: bytes  # see `requests.packing`

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.x_request_id, self.response_id, *(prompt.engine_request_id for prompt in self.prompts))

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """One per prompt."""
        return unpacked(self.marks)

    @property
    def num_bytes(self) -> int:
        """About."""
        return _FIXED_BYTES + len(self.marks) + len(self.x_request_id) + 500 * max(0, len(self.prompts) - 1)


def _facts(run: TimedRun) -> PromptFacts:
    end = run.ended
    if end is not None and end.reason:
        end = RequestEnd(cause=end.cause, code=end.code, limit=end.limit)
    return PromptFacts(
        engine_request_id=run.request.request_id,
        num_samples=run.request.sampling.n,
        num_prompt_tokens=run.num_prompt_tokens,
        num_cached_tokens=run.num_cached_tokens,
        num_output_tokens=run.num_output_tokens,
        end=end,
    )
