"""A server under mixed load for a long time, its workers killed now and then: is every request accounted for, and does
memory grow?

`bench.soak.traffic` asks; every few minutes a worker gets SIGKILL, but the last of each role is spared, so that the
memory of every kind of process is judged over the whole run. At the end every request is looked up in the usage ledger,
and a line is fitted through each process's resident memory (shared memory left out: it is the KV arena). Knows the
server by its HTTP interface, its processes and its ledger file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from relevo.bench.leftovers import left_in_use
from relevo.bench.server_process import ServerProcess, free_port, serve_command
from relevo.bench.soak.memory_track import children_of
from relevo.bench.soak.report import SoakResult, compare_with_ledger
from relevo.bench.soak.traffic import REQUEST_TIMEOUT_S, SoakTraffic, TrafficOptions
from relevo.client.server import OpenAIServer
from relevo.telemetry.progress import Progress

SAMPLE_INTERVAL_S = 2.0  # arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    model: str
    serve_flags: tuple[str, ...]
    folder: Path  # of the ledger and the server's log
    duration_s: float
    kill_every_s: float  # 0: never
    warm_up_s: float  # memory before that is not counted
    traffic: TrafficOptions
    seed: int = 0


@dataclass(slots=True)
class _Disturbances:
    """Kills, looks at memory, and the look at what is left."""

    options: SoakOptions
    server: ServerProcess
    client: OpenAIServer
    result: SoakResult
    rng: random.Random
    started_at_s: float
    ends_at_s: float

    async def kill_workers(self, progress: Progress) -> None:
        while self.options.kill_every_s:
            await asyncio.sleep(self.options.kill_every_s)
            workers = await self._workers()
            if time.monotonic() < self.ends_at_s and workers:
                name = self.rng.choice(killable(workers))
                self.result.kills.append((time.monotonic() - self.started_at_s, name))
                progress.say(f"{self.result.kills[-1][0]:.0f} s: kill -9 of {name}")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(workers[name], signal.SIGKILL)

    async def watch_memory(self) -> None:
        assert self.server.pid is not None
        while True:
            names = {pid: worker_id for worker_id, pid in (await self._workers()).items()}
            children = {pid: names.get(pid, name) for pid, name in children_of(self.server.pid).items()}
            at_s = time.monotonic() - self.started_at_s
            self.result.memory.look(at_s, {self.server.pid: "supervisor", **children})
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def _workers(self) -> dict[str, int]:
        """Process ids by worker, of those that have one."""
        _, ready = await self.client.get_json("/ready")
        return {worker["worker_id"]: worker["pid"] for worker in ready.get("workers", ()) if worker["pid"]}


async def soak(options: SoakOptions, result: SoakResult, progress: Progress) -> None:
    """Run it and fill `result`. Raises StartError if the server cannot be started."""
    port = free_port()
    flags = ("--data-dir", str(options.folder), *options.serve_flags)
    server = ServerProcess(
        serve_command(options.model, port, flags),
        port,
        options.folder / "server.log",
        environment={"RELEVO_DATABASE_URL": "", "RELEVO_EXPOSE_PROCESSES": "true"},
    )
    client = OpenAIServer(server.url, request_timeout_s=REQUEST_TIMEOUT_S, reuse_connections=False)
    progress.begin("starting")
    async with server, client:
        progress.begin("noting answers")
        rng = random.Random(options.seed)
        traffic = SoakTraffic(options.traffic, client, result, rng)
        await traffic.note_answers()
        now_s = time.monotonic()
        disturb = _Disturbances(options, server, client, result, rng, now_s, now_s + options.duration_s)
        progress.begin_for(f"{options.traffic.num_clients} clients", options.duration_s)
        aside = [asyncio.create_task(disturb.kill_workers(progress)), asyncio.create_task(disturb.watch_memory())]
        try:
            await traffic.run(disturb.ends_at_s)
        finally:
            for task in aside:
                task.cancel()
            await asyncio.gather(*aside, return_exceptions=True)
        result.leftovers = await left_in_use(client)
    result.memory.end(options.warm_up_s)
    result.unaccounted = compare_with_ledger(result.asked, options.folder / "relevo.db")


def killable(worker_ids: Iterable[str]) -> list[str]:
    """Without the last of each role that several have; a role that only one has is not spared."""
    in_order = sorted(worker_ids)
    by_role: dict[str, list[str]] = {}
    for worker_id in in_order:
        by_role.setdefault(worker_id.rpartition("-")[0], []).append(worker_id)
    spared = {names[-1] for names in by_role.values() if len(names) > 1}
    return [worker_id for worker_id in in_order if worker_id not in spared]
