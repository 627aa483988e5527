"""`relevo bench serve`: one load test against one URL. Plans the requests, makes the prompts, drives the load.

Knows no terminal: progress goes to a port, results to `LoadTest.records`, which are complete at any moment, so
that an interrupted test can still be reported.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from relevo.bench.client import OpenAIClient
from relevo.bench.load import run_closed_loop, run_open_loop
from relevo.bench.prompt_source import PromptSource
from relevo.bench.records import ClientRecord, Endpoint, PlannedRequest
from relevo.bench.serve.report import LoadReport
from relevo.core.errors import SettingsError, StartError
from relevo.telemetry.progress import Progress
from relevo.workload.arrivals import ArrivalKind, arrival_offsets
from relevo.workload.lengths import Lengths
from relevo.workload.requests import WorkloadRequest
from relevo.workload.timing import spread_ticks
from relevo.workload.traces.files import ReadOptions, read_trace_file
from relevo.workload.traces.formats import TraceFormat

PROMPTS_AHEAD = 4  # closed loop: prompts made ahead per client; arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    path: Path
    format: TraceFormat | None = None  # None: by its content
    speed: float = 1.0  # 2.0 replays twice as fast
    spread: bool = False  # spread arrivals inside the trace's ticks
    max_input_len: int | None = None  # longer requests of the trace are left out


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Everything that was asked for. Open loop: `request_rate_per_s` or a trace with times; else `concurrency`."""

    url: str
    model: str | None
    endpoint: Endpoint
    api_key: str | None
    seed: int
    input_lengths: Lengths
    output_lengths: Lengths
    num_requests: int | None
    duration_s: float | None
    request_rate_per_s: float | None
    arrival: ArrivalKind
    burstiness: float
    concurrency: int | None
    trace: TraceOptions | None
    ignore_eos: bool
    temperature: float
    num_warmup_requests: int
    request_timeout_s: float | None

    def check(self) -> None:
        """Raise SettingsError for wishes that exclude each other, before anything is sent."""
        if self.request_rate_per_s is not None and self.concurrency is not None:
            raise SettingsError("--request-rate is open loop and --concurrency is closed loop; give one of them")
        if self.num_requests is None and self.duration_s is None and self.trace is None:
            raise SettingsError("a load test needs an end: give --num-requests, --duration-s or --trace")


@dataclass(slots=True)
class LoadTest:
    """A load test while it runs and after it."""

    options: ServeOptions
    model: str = ""
    exact_lengths: bool = True
    records: list[ClientRecord] = field(default_factory=list)

    async def run(self, progress: Progress) -> None:
        """Probe, prepare, warm up, load. Raises StartError, Unauthorized, ModelNotFound or SettingsError."""
        options = self.options
        options.check()
        lengths = list(_bounded(options, _wanted(options)))
        async with OpenAIClient(
            options.url, api_key=options.api_key, request_timeout_s=options.request_timeout_s
        ) as client:
            self.model = await client.pick_model(options.model)
            prompts = await PromptSource.open(client, self.model, options.endpoint, seed=options.seed)
            self.exact_lengths = prompts.exact
            send = _sender(client, self.model, options, progress)
            await _warm_up(options, prompts, send, progress)
            if options.concurrency is None:
                planned = await _make_all(lengths, prompts, progress)
                progress.begin("sending, open loop", len(planned), "requests")
                await run_open_loop(planned, send, self.records)
                return
            loading = f"sending with {options.concurrency} clients, closed loop"
            if lengths:
                progress.begin(loading, len(lengths), "requests")
            else:
                progress.begin_for(loading, options.duration_s or 0.0)
            wanted = iter(lengths) if lengths else _wanted(options)
            async with asyncio.TaskGroup() as tasks:
                queue: asyncio.Queue[PlannedRequest | None] = asyncio.Queue(PROMPTS_AHEAD * options.concurrency)
                making = tasks.create_task(_fill(queue, wanted, prompts))
                await run_closed_loop(
                    _drain(queue),
                    send,
                    self.records,
                    concurrency=options.concurrency,
                    duration_s=options.duration_s,
                )
                making.cancel()

    def to_json(self, report: LoadReport) -> dict[str, Any]:
        """Every record and the sums over them; times count from the first request."""
        start_ns = min((record.sent_at_ns for record in self.records if record.sent_at_ns), default=0)
        return {
            "model": self.model,
            "exact_lengths": self.exact_lengths,
            "report": report.to_json(),
            "requests": [record.to_json(start_ns) for record in self.records],
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request before its prompt exists."""

    num_input_tokens: int
    num_output_tokens: int
    due_at_s: float | None = None
    traced: WorkloadRequest | None = None


def _wanted(options: ServeOptions) -> Iterator[Wanted]:
    """Endless unless a trace ends it; times only in open loop."""
    rng = random.Random(f"lengths:{options.seed}")
    if options.trace is not None:
        yield from _wanted_of_trace(options, options.trace)
        return
    offsets = _offsets(options)
    while True:
        due_at_s = next(offsets) if offsets else None
        yield Wanted(options.input_lengths.draw(rng), options.output_lengths.draw(rng), due_at_s)


def _wanted_of_trace(options: ServeOptions, trace: TraceOptions) -> Iterator[Wanted]:
    requests = load_trace(trace, options.seed)
    timed = all(request.arrived_at_s is not None for request in requests)
    if not timed and options.request_rate_per_s is None and options.concurrency is None:
        raise SettingsError(f"the trace {trace.path} lacks arrival times; give --request-rate or --concurrency")
    offsets = _offsets(options)
    for request in requests:
        due_at_s = None
        if offsets:
            due_at_s = next(offsets)
        elif options.concurrency is None and request.arrived_at_s is not None:
            due_at_s = request.arrived_at_s / trace.speed
        yield Wanted(request.num_prompt_tokens, request.num_output_tokens, due_at_s, request)


def _offsets(options: ServeOptions) -> Iterator[float] | None:
    if options.request_rate_per_s is None:
        return None
    rng = random.Random(f"arrivals:{options.seed}")
    return arrival_offsets(options.arrival, options.request_rate_per_s, rng, burstiness=options.burstiness)


def load_trace(trace: TraceOptions, seed: int) -> list[WorkloadRequest]:
    """Read and cut a trace file. Raises SettingsError if it cannot be read or nothing is left."""
    requests = read_trace_file(trace.path, ReadOptions(format=trace.format, seed=seed)).requests
    if trace.spread:
        requests = spread_ticks(requests, random.Random(f"ticks:{seed}"))
    kept = [r for r in requests if trace.max_input_len is None or r.num_prompt_tokens <= trace.max_input_len]
    if not kept:
        raise SettingsError(f"no request of {trace.path} has at most {trace.max_input_len} input tokens")
    return kept


def _bounded(options: ServeOptions, wanted: Iterator[Wanted]) -> Iterator[Wanted]:
    """The requests of a test whose number is known beforehand; nothing for a closed loop that only time ends."""
    if options.concurrency is not None and options.num_requests is None and options.trace is None:
        return
    for request in islice(wanted, options.num_requests):
        timed_out = options.duration_s is not None and (request.due_at_s or 0.0) >= options.duration_s
        if timed_out:
            return
        yield request


def _sender(
    client: OpenAIClient, model: str, options: ServeOptions, progress: Progress
) -> Callable[[PlannedRequest, ClientRecord], Coroutine[Any, Any, None]]:
    extra: dict[str, Any] = {"temperature": options.temperature}
    if options.ignore_eos:
        extra["ignore_eos"] = True

    async def send(planned: PlannedRequest, record: ClientRecord) -> None:
        await client.stream(planned, record, model=model, endpoint=options.endpoint, extra=extra)
        progress.advance()

    return send


async def _make(wanted: Wanted, prompts: PromptSource) -> PlannedRequest:
    prompt, num_tokens = await prompts.make(wanted.num_input_tokens, wanted.traced)
    return PlannedRequest(
        prompt=prompt, num_input_tokens=num_tokens, max_tokens=wanted.num_output_tokens, due_at_s=wanted.due_at_s
    )


async def _make_all(wanted: list[Wanted], prompts: PromptSource, progress: Progress) -> list[PlannedRequest]:
    progress.begin("making prompts", len(wanted), "prompts")
    made = []
    for request in wanted:
        made.append(await _make(request, prompts))
        progress.advance()
    return made


async def _fill(queue: asyncio.Queue[PlannedRequest | None], wanted: Iterator[Wanted], prompts: PromptSource) -> None:
    for request in wanted:
        await queue.put(await _make(request, prompts))
    await queue.put(None)


async def _drain(queue: asyncio.Queue[PlannedRequest | None]) -> AsyncIterator[PlannedRequest]:
    while (planned := await queue.get()) is not None:
        yield planned


async def _warm_up(
    options: ServeOptions,
    prompts: PromptSource,
    send: Callable[[PlannedRequest, ClientRecord], Coroutine[Any, Any, None]],
    progress: Progress,
) -> None:
    """Requests that are not measured; a server that fails all of them is not worth a load test."""
    if options.num_warmup_requests == 0:
        return
    progress.begin("warming up", options.num_warmup_requests, "requests")
    rng = random.Random(f"warm-up:{options.seed}")
    records: list[ClientRecord] = []
    for _ in range(options.num_warmup_requests):
        wanted = Wanted(options.input_lengths.draw(rng), min(8, options.output_lengths.draw(rng)))
        await run_open_loop([await _make(wanted, prompts)], send, records)
    if all(record.error is not None for record in records):
        first = records[0]
        raise StartError(f"every warm-up request failed; the first one with {first.error}: {first.error_detail}")
