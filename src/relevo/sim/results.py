"""What a simulated world hands to the report: what came of each request, and what each worker and link did.

Plain data, filled while the world runs. Times are nanoseconds of virtual time, as a client at the gateway sees them.
Knows no percentiles (sim.report) and no workload: a request is named by its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import overload

from relevo.telemetry.latency import RequestTimes


class RequestOutcome(StrEnum):
    FINISHED = "finished"
    REJECTED = "rejected"  # by admission
    ABORTED = "aborted"  # by its client
    FAILED = "failed"
    UNFINISHED = "unfinished"  # still in the world when it was stopped


class TokenTimes(Sequence[int]):
    """Runs of times as one sequence."""

    def __init__(self, runs: Sequence[Sequence[int]]) -> None:
        self._runs = [run for run in runs if len(run)]

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._runs)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if index == 0 and self._runs:
            return self._runs[0][0]
        if index == -1 and self._runs:
            return self._runs[-1][-1]
        return list(self)[index]


@dataclass(slots=True, kw_only=True)
class RequestResult:
    """One request from its arrival on. `token_at_ns` holds the time of every output token, in runs.

    A run is an ascending sequence of times; so is the sequence of all runs of a request. Requests that decode in the
    same steps may share one run object: a stretch of steps costs one array for the whole batch.
    """

    row: int  # WorkloadRequest.row
    arrived_at_ns: int
    num_prompt_tokens: int
    num_cached_tokens: int = 0  # prompt tokens that were not computed
    token_at_ns: list[Sequence[int]] = field(default_factory=list)
    ended_at_ns: int | None = None  # None: unfinished
    outcome: RequestOutcome = RequestOutcome.UNFINISHED
    reason: str = ""  # why it was rejected or failed
    prefill_worker: str | None = None
    decode_worker: str | None = None  # the last one
    num_preemptions: int = 0
    num_restarts: int = 0  # replays on another worker after a fault

    @property
    def num_output_tokens(self) -> int:
        return sum(map(len, self.token_at_ns))

    @property
    def times(self) -> RequestTimes:
        """TTFT, ITL, TPOT and E2E of it. An end without an answer is no end of an answer."""
        ended_at_ns = self.ended_at_ns if self.outcome is RequestOutcome.FINISHED else None
        return RequestTimes(self.arrived_at_ns, TokenTimes(self.token_at_ns), ended_at_ns)


@dataclass(slots=True, kw_only=True)
class WorkerResult:
    """What one worker did between the first arrival and the end of the world."""

    worker_id: str
    role: str  # "prefill", "decode" or "unified"
    num_devices: int = 1
    num_steps: int = 0
    busy_ns: int = 0  # in steps
    num_prefill_tokens: int = 0  # prompt tokens computed
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_evicted_blocks: int = 0
    num_blocks: int = 0
    most_held_blocks: int = 0
    # Time that the device, at its limit, would have needed for the products and for the bytes of these steps; None if
    # the step-time model does not tell. Divided by the duration they are the utilisation of products and of bandwidth.
    products_limit_ns: int | None = None
    bytes_limit_ns: int | None = None


@dataclass(slots=True, kw_only=True)
class LinkResult:
    """What went over one link."""

    name: str
    num_bytes: int = 0
    busy_ns: int = 0


@dataclass(slots=True, kw_only=True)
class WorldResult:
    """A whole simulated run. `requests` are in the order of arrival and hold every arrival once."""

    started_at_ns: int = 0  # first arrival
    ended_at_ns: int = 0  # last event
    requests: list[RequestResult] = field(default_factory=list)
    workers: list[WorkerResult] = field(default_factory=list)
    links: list[LinkResult] = field(default_factory=list)
    num_handoffs: int = 0
    kv_transfer_bytes: int = 0
    num_events: int = 0  # of the kernel
    notes: tuple[str, ...] = ()  # what the world had to assume
