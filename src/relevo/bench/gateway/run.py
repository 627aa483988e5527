"""`relevo bench gateway`: what the HTTP side costs, in time and in CPU, with an engine that computes nothing.

The same streams are run in turns against a worker directly (over the wire protocol, as the gateway speaks it), through
the gateway, and through whatever proxies stand before the gateway: `relevo edge` and others given as commands. A step
of the fake engine takes a fixed time, so every gap between tokens that is longer was added on the way. CPU time is read
from the kernel, for the processes of the server that was added last, while streams run. Every way answers two streams
that are not counted before the first round.
"""

from __future__ import annotations

import asyncio
import codecs
import random
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from relevo.bench.client import OpenAIClient
from relevo.bench.load import run_open_loop
from relevo.bench.process_time import cpu_s, gateway_pids, process_tree
from relevo.bench.records import ClientRecord, Endpoint, Outcome, PlannedRequest
from relevo.bench.server_process import ServerProcess, free_port, serve_command
from relevo.core.errors import SettingsError, StartError
from relevo.core.ids import RequestId
from relevo.core.request import EngineRequest, SamplingParams
from relevo.telemetry.latency import summarise
from relevo.telemetry.progress import Progress
from relevo.wire import messages as wire
from relevo.wire.child_process import python_command
from relevo.wire.client import WorkerConnection

DIRECT, GATEWAY, EDGE = "worker", "gateway", "edge"
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
SPELLED = bytes(
    (*_PRINTABLE, *sorted({*range(0x100)} - {*_PRINTABLE}))
)  # by the tokens of the fake engine, but the last
VOCAB = len(SPELLED)
_new_decoder = codecs.getincrementaldecoder("utf-8")
_NUM_WARM_UP = 2  # streams of each way before the first round: some proxies load half of themselves then; arbitrary
_EXTRA: Mapping[str, Any] = {"ignore_eos": True, "temperature": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayCostOptions:
    """`proxies`: name -> command with {port} and {upstream} (the gateway's URL, without /v1)."""

    num_streams: int
    prompt_len: int
    output_len: int
    step_s: float  # of the fake engine
    rounds: int
    proxies: Mapping[str, str]
    log_dir: Path
    seed: int

    def check(self) -> None:
        """Raise SettingsError for commands that cannot work."""
        for name, command in self.proxies.items():
            if "{port}" not in command or "{upstream}" not in command:
                raise SettingsError(f"--proxy {name}: the command needs {{port}} and {{upstream}} in it")


@dataclass(slots=True)
class PathCost:
    """All rounds of one way to the engine. Seconds."""

    name: str
    ttft_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_failed: int = 0
    cpu_s: float | None = None  # of the processes that this way adds; None: none

    def take(self, records: list[ClientRecord], cpu_s: float | None) -> None:
        for record in records:
            if record.outcome is not Outcome.COMPLETED:
                self.num_failed += 1
                continue
            self.num_tokens += record.num_output_tokens
            if record.times.ttft_s is not None:
                self.ttft_s.append(record.times.ttft_s)
            self.itl_s += record.times.itl_s
        if cpu_s is not None:
            self.cpu_s = (self.cpu_s or 0.0) + cpu_s

    @property
    def cpu_us_per_token(self) -> float | None:
        return None if self.cpu_s is None or not self.num_tokens else 1e6 * self.cpu_s / self.num_tokens

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ttft_ms": _quantiles_ms(self.ttft_s),
            "itl_ms": _quantiles_ms(self.itl_s),
            "num_tokens": self.num_tokens,
            "num_failed": self.num_failed,
            "cpu_us_per_token": self.cpu_us_per_token,
        }


def _quantiles_ms(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    summary = summarise(seconds)
    return {"p50": 1e3 * summary.p50, "p99": 1e3 * summary.p99}


async def measure_gateway_cost(options: GatewayCostOptions, costs: list[PathCost], progress: Progress) -> None:
    """Every way in turn, `rounds` times; `costs` is filled as it goes."""
    options.check()
    async with AsyncExitStack() as stack:
        progress.begin("starting the server and what stands before it")
        gateway = await stack.enter_async_context(_server("gateway", _gateway_command, options))
        urls = {GATEWAY: gateway.url}
        pids = {GATEWAY: gateway_pids(gateway.pid)}
        commands = {EDGE: _EDGE_COMMAND, **options.proxies}
        for name, command in commands.items():
            proxy = await stack.enter_async_context(_server(name, _proxy_command(command, gateway.url), options))
            urls[name], pids[name] = proxy.url, process_tree(proxy.pid)
        address = await _worker_address(gateway.url)
        costs.extend(PathCost(name) for name in (DIRECT, *urls))
        for name, url in urls.items():
            progress.begin(f"warming up: {name}")
            await _over_http(url, replace(options, num_streams=_NUM_WARM_UP, output_len=2), options.seed - 1)
        progress.begin("", options.rounds * len(costs), "turns")
        for round_number in range(options.rounds):
            for cost in costs:
                progress.rename(f"round {round_number + 1} of {options.rounds}: {cost.name}")
                seed = options.seed + round_number
                if cost.name == DIRECT:
                    cost.take(await _direct(address, options, seed), None)
                else:
                    before_s = cpu_s(pids[cost.name])
                    records = await _over_http(urls[cost.name], options, seed)
                    cost.take(records, cpu_s(pids[cost.name]) - before_s)
                progress.advance()


_EDGE_COMMAND = " ".join(
    python_command("relevo", "edge", "--port", "{port}", "--region", "here={upstream}", "--log-level", "warning")
)


def _gateway_command(port: int, options: GatewayCostOptions) -> list[str]:
    flags = ("--topology", "unified", "--fake-base-s", str(options.step_s), "--max-num-seqs", str(options.num_streams))
    return serve_command("fake", port, (*flags, "--max-num-batched-tokens", "8192", "--expose-processes"))


def _proxy_command(command: str, upstream: str) -> Callable[[int, GatewayCostOptions], list[str]]:
    return lambda port, _: shlex.split(command.format(port=port, upstream=upstream))


@asynccontextmanager
async def _server(
    name: str, command: Callable[[int, GatewayCostOptions], list[str]], options: GatewayCostOptions
) -> AsyncIterator[ServerProcess]:
    options.log_dir.mkdir(parents=True, exist_ok=True)
    port = free_port()
    async with ServerProcess(command(port, options), port, options.log_dir / f"{name}.log", ends_group=True) as server:
        yield server


# ---- the streams -----------------------------------------------------------------------------------------------------


def _planned(options: GatewayCostOptions, seed: int) -> list[PlannedRequest]:
    """Starts are spread over the time of twenty steps, so that first tokens do not all come at once."""
    rng = random.Random(seed)
    return [
        PlannedRequest(
            prompt=[rng.randrange(VOCAB) for _ in range(options.prompt_len)],
            num_input_tokens=options.prompt_len,
            max_tokens=options.output_len,
            due_at_s=rng.uniform(0.0, 20 * options.step_s),
        )
        for _ in range(options.num_streams)
    ]


async def _over_http(url: str, options: GatewayCostOptions, seed: int) -> list[ClientRecord]:
    records: list[ClientRecord] = []
    async with OpenAIClient(url) as client:
        model = await client.pick_model(None)

        async def send(planned: PlannedRequest, record: ClientRecord) -> None:
            await client.stream(planned, record, model=model, endpoint=Endpoint.COMPLETIONS, extra=dict(_EXTRA))

        await run_open_loop(_planned(options, seed), send, records)
    return records


async def _direct(address: str, options: GatewayCostOptions, seed: int) -> list[ClientRecord]:
    """As the gateway does it, less everything the gateway is for. A token that ends no character makes no chunk here
    either: else the gaps between chunks would not be of the same tokens."""
    records: list[ClientRecord] = []
    connection = await WorkerConnection.open(address)
    ended: dict[str, asyncio.Event] = {}
    by_id: dict[str, ClientRecord] = {}
    texts: dict[str, codecs.IncrementalDecoder] = {}

    async def receive() -> None:
        while True:
            message = await connection.receive()
            if not isinstance(message, wire.StepOutputs):
                continue
            now_ns = time.monotonic_ns()
            for output in message.outputs:
                record = by_id[output.request_id]
                record.num_output_tokens += len(output.tokens)
                spelled = bytes(SPELLED[token.token_id] for token in output.tokens if token.token_id < VOCAB)
                text = texts[output.request_id].decode(spelled, output.finish_reason is not None)
                record.chunk_at_ns += [now_ns] if text else []
                if output.finish_reason is not None:
                    record.finished_at_ns, record.finish_reason = now_ns, str(output.finish_reason)
                    ended[output.request_id].set()

    async def send(planned: PlannedRequest, record: ClientRecord) -> None:
        request_id = f"bench-{seed}-{record.index}"
        by_id[request_id], ended[request_id] = record, asyncio.Event()
        texts[request_id] = _new_decoder("replace")
        assert isinstance(planned.prompt, list)
        sampling = SamplingParams(max_tokens=planned.max_tokens, seed=0, temperature=0.0, ignore_eos=True)
        request = EngineRequest(
            request_id=RequestId(request_id), prompt_token_ids=tuple(planned.prompt), sampling=sampling
        )
        record.sent_at_ns = time.monotonic_ns()
        connection.send(wire.Submit(request))
        await ended[request_id].wait()

    receiving = asyncio.create_task(receive())
    try:
        await run_open_loop(_planned(options, seed), send, records)
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        connection.close()
    return records


async def _worker_address(url: str) -> str:
    async with OpenAIClient(url) as client:
        _, ready = await client.get_json("/ready")
    workers = ready["workers"]
    if not workers[0].get("address"):
        raise StartError(f"{url}/ready does not tell its worker's address")
    return str(workers[0]["address"])


def added_ms(cost: PathCost, base: PathCost) -> dict[str, float]:
    """What `cost` adds to `base`: at the median and at p99, of TTFT and of ITL."""
    added: dict[str, float] = {}
    for name, ours, theirs in (("ttft", cost.ttft_s, base.ttft_s), ("itl", cost.itl_s, base.itl_s)):
        mine, other = _quantiles_ms(ours), _quantiles_ms(theirs)
        added |= {f"{name}_{q}": mine[q] - other[q] for q in mine if q in other}
    return added


def base_of(cost: PathCost, costs: Sequence[PathCost]) -> PathCost | None:
    """What it is counted against: the gateway against the worker, a proxy against the gateway."""
    base = {DIRECT: None, GATEWAY: DIRECT}.get(cost.name, GATEWAY)
    return next((each for each in costs if each.name == base), None)


def ways_json(costs: Sequence[PathCost]) -> list[dict[str, Any]]:
    """Each way, and what it adds to the one before it."""
    bases = [base_of(cost, costs) for cost in costs]
    return [
        cost.to_json() | {"adds_ms": added_ms(cost, base) if base is not None else {}}
        for cost, base in zip(costs, bases, strict=True)
    ]


def gateway_cost_table(costs: Sequence[PathCost]) -> Table:
    """One row per way; what the gateway adds is against the worker, what a proxy adds is against the gateway."""
    table = Table(title="What each way to the engine adds")
    for column in ("way", "TTFT p50 / p99 ms", "ITL p50 / p99 ms", "adds TTFT p50 / p99", "adds ITL p50 / p99"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for column in ("CPU us per token", "tokens", "failed"):
        table.add_column(column, justify="right")
    for cost in costs:
        base = base_of(cost, costs)
        added = added_ms(cost, base) if base is not None else {}
        cpu = cost.cpu_us_per_token
        table.add_row(
            cost.name,
            _pair(_quantiles_ms(cost.ttft_s), "p50", "p99"),
            _pair(_quantiles_ms(cost.itl_s), "p50", "p99"),
            _pair(added, "ttft_p50", "ttft_p99"),
            _pair(added, "itl_p50", "itl_p99"),
            "-" if cpu is None else f"{cpu:.1f}",
            str(cost.num_tokens),
            str(cost.num_failed),
        )
    return table


def _pair(values: Mapping[str, float], first: str, second: str) -> str:
    return f"{values[first]:.2f} / {values[second]:.2f}" if first in values else "-"
