"""One phase of the interference measurement, against one running server: streams decode, long prompts arrive.

Owns what is measured and when. Which servers are compared, and in which order, is decided by `bench.interference.run`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from relevo.bench.client import OpenAIClient
from relevo.bench.load import run_closed_loop, run_open_loop
from relevo.bench.prompt_source import PromptSource
from relevo.bench.records import ClientRecord, Endpoint, Outcome, PlannedRequest
from relevo.core.errors import StartError
from relevo.telemetry.progress import SILENT, Progress

SETTLE_CHUNKS = 3  # outputs of every stream before the clock starts; arbitrary
SETTLE_TIMEOUT_S = 120.0  # for that; arbitrary, generous for a cold CPU server
SETTLE_POLL_S = 0.02
RATE_CONCURRENCY = 2  # one prompt computes while the next one waits: back to back without a gap
EXTRA: Mapping[str, Any] = {"ignore_eos": True, "temperature": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseOptions:
    """The load of a phase. Lengths in tokens. The same options on two servers give the same prompts and arrivals."""

    num_streams: int
    stream_prompt_len: int
    stream_output_len: int  # a stream that ends is started again with a new prompt
    prompt_len: int
    prompt_output_len: int
    duration_s: float
    baseline_s: float  # streams alone, before the first arrival; 0: no such stage
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseResult:
    """Gaps of the streams that ended within the window of arrivals, and what became of the long prompts."""

    itl_s: list[float]
    baseline_itl_s: list[float]
    ttft_s: list[float]
    num_prompts: int
    num_failed: int
    errors: list[str]


async def open_loop_phase(url: str, options: PhaseOptions, arrivals_s: Sequence[float]) -> PhaseResult:
    """Run the streams, send long prompts at `arrivals_s`, stop. Raises StartError if the streams cannot be started."""
    async with _Target(url, options.seed) as target:
        prompts = [
            await target.plan(options.prompt_len, options.prompt_output_len, due_at_s=due_at_s)
            for due_at_s in arrivals_s
        ]
        streams: list[list[ClientRecord]] = [[] for _ in range(options.num_streams)]
        running = [asyncio.create_task(_stream_for_ever(target, options, records)) for records in streams]
        try:
            await _settle(streams, running)
            baseline_ns = await _window(options.baseline_s)
            started_ns = time.monotonic_ns()
            arrived: list[ClientRecord] = []
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(run_open_loop(prompts, target.send, arrived))
                tasks.create_task(asyncio.sleep(options.duration_s))
            window_ns = (started_ns, started_ns + round(options.duration_s * 1e9))
        finally:
            for task in running:
                task.cancel()
            outcomes = await asyncio.gather(*running, return_exceptions=True)
        _raise_first(outcomes)
    return _phase_result(streams, arrived, baseline_ns, window_ns)


async def sustained_prompts_per_s(
    url: str, options: PhaseOptions, num_prompts: int, progress: Progress = SILENT
) -> float:
    """Prompts of `prompt_len` tokens prefilled per second: back to back, one output token each, no streams."""
    async with _Target(url, options.seed + 1) as target:
        records: list[ClientRecord] = []
        planned = [await target.plan(options.prompt_len, 1) for _ in range(num_prompts + 1)]

        async def send(planned: PlannedRequest, record: ClientRecord) -> None:
            await target.send(planned, record)
            progress.advance()

        await run_open_loop(planned[:1], send, [])  # warm-up

        async def each() -> Any:
            for one in planned[1:]:
                yield one

        await run_closed_loop(each(), send, records, concurrency=RATE_CONCURRENCY)
    ended_ns = [record.finished_at_ns for record in records if record.finished_at_ns is not None]
    if len(ended_ns) < num_prompts:
        failed = next(record for record in records if record.outcome is not Outcome.COMPLETED)
        raise StartError(f"a prompt failed while the prefill rate was measured: {failed.error}: {failed.error_detail}")
    return num_prompts / ((max(ended_ns) - min(record.sent_at_ns for record in records)) / 1e9)


class _Target:
    """A server with its model, prompts and a way to send to it."""

    def __init__(self, url: str, seed: int) -> None:
        self._client = OpenAIClient(url)
        self._seed = seed
        self._model = ""

    async def __aenter__(self) -> _Target:
        await self._client.__aenter__()
        try:
            self._model = await self._client.pick_model(None)
            self._prompts = await PromptSource.open(self._client, self._model, Endpoint.COMPLETIONS, seed=self._seed)
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._client.__aexit__(None, None, None)

    async def plan(self, num_tokens: int, max_tokens: int, *, due_at_s: float | None = None) -> PlannedRequest:
        prompt, num_input = await self._prompts.make(num_tokens)
        return PlannedRequest(prompt=prompt, num_input_tokens=num_input, max_tokens=max_tokens, due_at_s=due_at_s)

    async def send(self, planned: PlannedRequest, record: ClientRecord) -> None:
        await self._client.stream(planned, record, model=self._model, endpoint=Endpoint.COMPLETIONS, extra=dict(EXTRA))


async def _stream_for_ever(target: _Target, options: PhaseOptions, records: list[ClientRecord]) -> None:
    while True:
        planned = await target.plan(options.stream_prompt_len, options.stream_output_len)
        await run_open_loop([planned], target.send, records)
        if records[-1].error is not None:
            raise StartError(f"a decoding stream failed: {records[-1].error}: {records[-1].error_detail}")


async def _settle(streams: Sequence[Sequence[ClientRecord]], running: Sequence[asyncio.Task[None]]) -> None:
    deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
    while any(sum(len(record.chunk_at_ns) for record in records) < SETTLE_CHUNKS for records in streams):
        _raise_first([task.exception() for task in running if task.done() and not task.cancelled()])
        if time.monotonic() > deadline_s:
            raise StartError(f"not every decoding stream had {SETTLE_CHUNKS} outputs after {SETTLE_TIMEOUT_S:.0f} s")
        await asyncio.sleep(SETTLE_POLL_S)


async def _window(duration_s: float) -> tuple[int, int]:
    started_ns = time.monotonic_ns()
    await asyncio.sleep(duration_s)
    return started_ns, time.monotonic_ns()


def _raise_first(outcomes: Sequence[BaseException | None]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


def _phase_result(
    streams: Sequence[Sequence[ClientRecord]],
    arrived: Sequence[ClientRecord],
    baseline_ns: tuple[int, int],
    window_ns: tuple[int, int],
) -> PhaseResult:
    completed = [record for record in arrived if record.outcome is Outcome.COMPLETED]
    return PhaseResult(
        itl_s=gaps_within(streams, window_ns),
        baseline_itl_s=gaps_within(streams, baseline_ns),
        ttft_s=[ttft_s for record in completed if (ttft_s := record.times.ttft_s) is not None],
        num_prompts=len(arrived),
        num_failed=len(arrived) - len(completed),
        errors=sorted({record.error for record in arrived if record.error is not None}),
    )


def gaps_within(streams: Sequence[Sequence[ClientRecord]], window_ns: tuple[int, int]) -> list[float]:
    """Seconds between consecutive chunks of one request, for gaps that end in [from, to). Restarts are not gaps."""
    first_ns, end_ns = window_ns
    return [
        (later_ns - earlier_ns) / 1e9
        for records in streams
        for record in records
        for earlier_ns, later_ns in pairwise(record.chunk_at_ns)
        if first_ns <= later_ns < end_ns
    ]
