"""`relevo bench record`: load tests of our own servers, written down with everything that a simulation of them needs.

Owns the plan: per topology one server, one client alone (what a request takes beside its steps), clients that wait for
their answers (what the server sustains), and open loops at shares of that. After each run the server's metrics are
scraped: step costs as the workers have fitted them by then, pools and step budgets. `sim.tables.live_runs` reads it.

    FOLDER/TOPOLOGY/server.json, NAME.json (as `bench serve --json`) and NAME.prom for quiet, capacity, load-30, ...
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relevo.bench.client import OpenAIClient
from relevo.bench.record.pictures import RecordedRun
from relevo.bench.records import ClientRecord, Endpoint
from relevo.bench.serve.report import report_load
from relevo.bench.serve.run import LoadTest, ServeOptions
from relevo.bench.server_process import ServerProcess, free_port, serve_command
from relevo.core.errors import SettingsError, StartError
from relevo.telemetry.progress import SILENT, Progress
from relevo.workload.arrivals import ArrivalKind
from relevo.workload.lengths import Lengths

MAX_RUNNING = 64  # `--max-num-seqs`, which no metric tells
_RAMP = 0.25  # of the closed loop is left out: its clients begin together. Arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    folder: Path
    model: str | None
    topologies: Sequence[str]
    serve_flags: tuple[str, ...]  # for every server
    load_percents: Sequence[int]  # of capacity, an open loop each
    duration_s: float  # of an open loop's arrivals
    calibration_s: float  # of the client alone, and of the closed loop
    num_clients: int  # of the closed loop
    input_lengths: Lengths
    output_lengths: Lengths
    seed: int

    def check(self) -> None:
        """Raise SettingsError before anything is started or overwritten."""
        if not self.topologies or not self.load_percents:
            raise SettingsError("there is nothing to record: give --topology and --load-percent")
        for topology in self.topologies:
            if (self.folder / topology).exists():
                raise SettingsError(f"{self.folder / topology} is there already; record into another folder")


async def record(
    options: RecordOptions, environment: dict[str, Any], runs: list[RecordedRun], progress: Progress
) -> None:
    """All topologies, one after the other. What has ended is on disk and in `runs`, also when this is cancelled."""
    options.check()
    for topology in options.topologies:
        folder = options.folder / topology
        folder.mkdir(parents=True)
        port = free_port()
        flags = ("--topology", topology, "--max-num-seqs", str(MAX_RUNNING), *options.serve_flags)
        progress.begin(f"{topology}: starting")
        async with ServerProcess(serve_command(options.model, port, flags), port, folder / "server.log") as server:
            await _Recording(options, topology, folder, server.url, environment, runs, progress).run()


@dataclass(frozen=True, slots=True)
class _Recording:
    """Of one server."""

    options: RecordOptions
    topology: str
    folder: Path
    url: str
    environment: dict[str, Any]
    runs: list[RecordedRun]
    progress: Progress

    async def run(self) -> None:
        await self._run("quiet", concurrency=1)
        clients = await self._run("capacity", concurrency=self.options.num_clients)
        capacity = steady_rate(clients, self.options.calibration_s)
        self.progress.say(f"{self.topology}: sustains {capacity:.3f} requests/s")
        self._write("server.json", await self._facts(capacity))
        for percent in self.options.load_percents:
            await self._run(f"load-{percent}", rate=capacity * percent / 100)

    async def _run(self, name: str, *, concurrency: int | None = None, rate: float | None = None) -> list[ClientRecord]:
        load = self._load(name, concurrency, rate)
        self.progress.begin_for(f"{self.topology}: {name}", load.duration_s or 0.0)
        test = LoadTest(load)
        await test.run(SILENT)
        report = report_load(test.records)
        if report.num_completed == 0:
            raise StartError(f"no request of the run {name} was answered; see {self.folder / 'server.log'}")
        self.runs.append(RecordedRun(topology=self.topology, name=name, offered_per_s=rate, report=report))
        self._write(f"{name}.json", {"environment": self.environment, **test.to_json(report)})
        async with OpenAIClient(self.url) as client:
            (self.folder / f"{name}.prom").write_text(await client.metrics_text(), encoding="utf-8")
        return test.records

    def _load(self, name: str, concurrency: int | None, rate: float | None) -> ServeOptions:
        options = self.options
        return ServeOptions(
            url=self.url,
            model=None,
            endpoint=Endpoint.COMPLETIONS,
            api_key=None,
            seed=options.seed * 1000 + sum(name.encode()),  # no run repeats prompts of another
            input_lengths=options.input_lengths,
            output_lengths=options.output_lengths,
            num_requests=None,
            duration_s=options.duration_s if concurrency is None else options.calibration_s,
            request_rate_per_s=rate,
            arrival=ArrivalKind.POISSON,
            burstiness=1.0,
            concurrency=concurrency,
            trace=None,
            ignore_eos=True,
            temperature=0.0,
            num_warmup_requests=2 if concurrency == 1 else 0,
            request_timeout_s=None,
        )

    async def _facts(self, capacity: float) -> dict[str, Any]:
        async with OpenAIClient(self.url) as client:
            _, card = await client.pick_card(None)
        return {
            "topology": self.topology,
            "max_running": MAX_RUNNING,
            "max_model_len": card["max_model_len"],
            "capacity_per_s": capacity,
            "load_percents": list(self.options.load_percents),
        }

    def _write(self, name: str, body: dict[str, Any]) -> None:
        (self.folder / name).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def steady_rate(records: Sequence[ClientRecord], duration_s: float) -> float:
    """Answers a second while all clients were at work. Raises StartError if there was none."""
    start_ns = min(record.sent_at_ns for record in records)
    first_s = _RAMP * duration_s
    ends_s = [(record.finished_at_ns - start_ns) / 1e9 for record in records if record.finished_at_ns]
    num_ended = sum(first_s <= end_s < duration_s for end_s in ends_s)
    if not num_ended:
        raise StartError(f"no request ended between {first_s:.0f} and {duration_s:.0f} s; give --calibration-s more")
    return num_ended / (duration_s - first_s)
