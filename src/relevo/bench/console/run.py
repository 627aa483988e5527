"""`relevo bench console`: what open streams of the state cost a gateway, in processor time.

A server whose engine computes nothing serves the same load in turns without viewers and with them: its gateway's
processor time is read from the kernel, the difference is the viewers'. Clients read all they are sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from relevo.bench.process_time import cpu_s, gateway_pids
from relevo.bench.server_process import ServerProcess, free_port, serve_command
from relevo.client.http import CLIENT_ERRORS, HttpClient, Request
from relevo.telemetry.progress import Progress

_OPENED_AT_ONCE = 20  # arbitrary: connections, so that none is refused for want of a place in the kernel's queue
_SETTLE_S = 2.0  # between the last connection and the first look at the clock; arbitrary
_PROMPT = "A line of a song that is sung while nothing is computed. "


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleCostOptions:
    num_viewers: int
    num_requests: int  # running all the time
    seconds: float  # of each turn
    rounds: int
    log_dir: Path


@dataclass(slots=True)
class ConsoleCost:
    """All turns with so many viewers."""

    num_viewers: int
    cpu_s: float = 0.0
    took_s: float = 0.0
    num_events: int = 0
    num_bytes: int = 0
    num_broken: int = 0  # streams that ended before their time

    @property
    def core_fraction(self) -> float:
        return self.cpu_s / self.took_s if self.took_s else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "num_viewers": self.num_viewers,
            "core_fraction": self.core_fraction,
            "cpu_s": self.cpu_s,
            "took_s": self.took_s,
            "num_events": self.num_events,
            "bytes_per_event": self.num_bytes / self.num_events if self.num_events else None,
            "num_broken": self.num_broken,
        }


async def measure_console_cost(options: ConsoleCostOptions, costs: list[ConsoleCost], progress: Progress) -> None:
    """`costs` is filled as it goes: without viewers, with them."""
    options.log_dir.mkdir(parents=True, exist_ok=True)
    port = free_port()
    flags = ("--topology", "1p1d", "--share-cores", "--fake-base-s", "0.05", "--max-num-seqs", "256")
    progress.begin("starting the server")
    async with ServerProcess(serve_command("fake", port, flags), port, options.log_dir / "server.log") as server:
        pids = gateway_pids(server.pid)
        costs += [ConsoleCost(0), ConsoleCost(options.num_viewers)]
        async with _load(server.url, options.num_requests):
            progress.begin("", options.rounds * len(costs), "turns")
            for number in range(options.rounds):
                for cost in costs:
                    progress.rename(f"round {number + 1} of {options.rounds}: {cost.num_viewers} viewers")
                    await _turn(server.url, pids, options.seconds, cost)
                    progress.advance()


async def _turn(url: str, pids: list[int], seconds: float, cost: ConsoleCost) -> None:
    async with _viewers(url, cost.num_viewers) as viewers:
        await asyncio.sleep(_SETTLE_S)
        before = [(each.num_events, each.num_bytes) for each in viewers]
        began_s, cpu_before_s = time.monotonic(), cpu_s(pids)
        await asyncio.sleep(seconds)
        cost.cpu_s += cpu_s(pids) - cpu_before_s
        cost.took_s += time.monotonic() - began_s
        cost.num_events += sum(each.num_events for each in viewers) - sum(events for events, _ in before)
        cost.num_bytes += sum(each.num_bytes for each in viewers) - sum(num_bytes for _, num_bytes in before)
        cost.num_broken += sum(each.has_ended for each in viewers)


@dataclass(slots=True)
class _Viewer:
    num_events: int = 0
    num_bytes: int = 0
    has_ended: bool = False
    is_open: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(self, client: HttpClient, url: str) -> None:
        request = Request(method="GET", url=f"{url}/v1/state/stream", headers={})
        try:
            async with client.open(request) as response:
                self.has_ended = response.status != 200
                async for piece in response.pieces():
                    self.is_open.set()
                    self.num_bytes += len(piece)
                    self.num_events += piece.count(b"\nid: ") + piece.startswith(b"id: ")
        except CLIENT_ERRORS:
            pass
        finally:
            self.has_ended = True
            self.is_open.set()


@asynccontextmanager
async def _viewers(url: str, num_viewers: int) -> AsyncIterator[list[_Viewer]]:
    viewers = [_Viewer() for _ in range(num_viewers)]
    tasks: list[asyncio.Task[None]] = []
    async with HttpClient(timeout_s=None, reuse_connections=False) as client:
        try:
            for first in range(0, num_viewers, _OPENED_AT_ONCE):
                some = viewers[first : first + _OPENED_AT_ONCE]
                tasks += [asyncio.create_task(viewer.watch(client, url)) for viewer in some]
                await asyncio.gather(*(viewer.is_open.wait() for viewer in some))
            yield viewers
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _load(url: str, num_requests: int) -> AsyncIterator[None]:
    """So many answers are always under way, streamed and read."""
    async with HttpClient(timeout_s=None, reuse_connections=True) as client:

        async def ask(number: int) -> None:
            for turn in range(10**9):
                prompt = f"{number}.{turn} {_PROMPT * 8}".replace(chr(34), "")
                body = f'{{"model":"fake","prompt":"{prompt}","max_tokens":64,"ignore_eos":true,"stream":true}}'
                request = Request(
                    method="POST",
                    url=f"{url}/v1/completions",
                    headers={"content-type": "application/json"},
                    body=body.encode(),
                )
                async with client.open(request) as response:
                    await response.read()

        tasks = [asyncio.create_task(ask(number)) for number in range(num_requests)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(*CLIENT_ERRORS):
                await asyncio.gather(*tasks, return_exceptions=True)


def console_cost_table(costs: Sequence[ConsoleCost]) -> Table:
    table = Table(title="Processor time of the gateway")
    for column in ("viewers", "of a core", "events", "bytes per event", "broken"):
        table.add_column(column, justify="right")
    for cost in costs:
        per_event = f"{cost.num_bytes / cost.num_events:,.0f}" if cost.num_events else "-"
        table.add_row(
            str(cost.num_viewers), f"{cost.core_fraction:.2%}", f"{cost.num_events:,}", per_event, str(cost.num_broken)
        )
    if len(costs) == 2:
        table.add_row("added", f"{costs[1].core_fraction - costs[0].core_fraction:.2%}", "", "", "")
    return table
