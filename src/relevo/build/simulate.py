"""Composes `relevo simulate`: a workload, the machines of each configuration, a world for each, and their reports."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, TextIO

from relevo.build.simulated_machines import Machines, ModelOptions
from relevo.core.decisions import DecisionLines
from relevo.core.errors import SettingsError
from relevo.sim.config import NetworkSpec, RegionSpec, ServingSpec, WorldConfig
from relevo.sim.fleet import Fleet
from relevo.sim.network import LinkTraits
from relevo.sim.pictures import RequestColumns
from relevo.sim.report import ReportOptions, SimReport, report_world
from relevo.sim.results import WorldResult
from relevo.sim.samples import latency_samples
from relevo.sim.workload_facts import MADE_UP, WorkloadFacts, workload_facts
from relevo.sim.world import World
from relevo.telemetry.distribution import Samples
from relevo.workload.generated import generate
from relevo.workload.requests import Workload
from relevo.workload.sessions import SessionShape
from relevo.workload.timing import Timing, time_workload
from relevo.workload.traces.files import ReadOptions, read_trace_file
from relevo.workload.traces.rows import Tally, whole_sessions

FINE_BLOCK_SIZE = 16  # of workloads that name no block size; what engines use

Progress = Callable[[str, int, int], None]  # configuration, requests that have ended, of how many


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """Everything that was asked for."""

    trace: Path | None = None
    reading: ReadOptions
    made_up: SessionShape | None = None  # where there is no trace
    num_requests: int = 1000  # made up
    max_request_tokens: int | None = None  # prompt and answer; longer ones are left out
    timing: Timing
    fleets: tuple[Fleet, ...]
    model: ModelOptions
    block_size: int | None = None  # None: that of the workload's hash ids
    max_model_len: int = 131_072
    num_gateways: int = 1
    link_bytes_per_s: float | None = None  # of a worker's port; None: of its devices' network
    link_latency_s: float = 5e-6
    until_s: float | None = None
    jumps: bool = True
    seed: int = 0
    report: ReportOptions
    decision_log: Path | None = None


@dataclass(slots=True)
class Simulation:
    """A run of the command. `reports`, `machines`, `samples` and `requests` grow by one per configuration."""

    options: SimulateOptions
    workload: Workload = field(init=False)
    facts: WorkloadFacts = field(init=False)
    machines: list[dict[str, Any]] = field(default_factory=list)  # of each configuration, for the record
    reports: list[SimReport] = field(default_factory=list)
    samples: dict[str, dict[str, Samples]] = field(default_factory=dict)
    requests: dict[str, RequestColumns] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_fleets(self.options.fleets)
        self.workload = make_workload(self.options)
        self.facts = workload_facts(self.options.trace.name if self.options.trace else MADE_UP, self.workload)

    def run(self, progress: Progress, *, keep_samples: bool = False) -> None:
        """All configurations, one after the other. What cannot run is refused before the first begins."""
        options = self.options
        block_size = options.block_size or self.facts.hash_block_size or FINE_BLOCK_SIZE
        machines = Machines(options.model, block_size)
        configs = [world_config(options, machines, fleet, self.facts.longest_tokens) for fleet in options.fleets]
        for fleet, config in zip(options.fleets, configs, strict=True):
            with ExitStack() as files:
                lines = None
                if options.decision_log is not None:
                    path = _log_path(options.decision_log, fleet, options.fleets)
                    lines = DecisionLines(files.enter_context(_writable(path)).write)
                world = World(config, self.workload, decisions=lines)
                result = _run_world(world, fleet.label, len(self.workload.requests), progress)
            self.reports.append(self._report(fleet, result))
            self.machines.append(_machines_json(fleet, config))
            if keep_samples:
                self.samples[fleet.label] = latency_samples(result.requests).samples
                self.requests[fleet.label] = RequestColumns.of(result.requests)

    def to_json(self) -> dict[str, Any]:
        """The same options give the same bytes: nothing here is measured on this machine."""
        pairs = zip(self.machines, self.reports, strict=True)
        return {
            "workload": asdict(self.facts),
            "configurations": [{"machines": machines, **report.to_json()} for machines, report in pairs],
        }

    def _report(self, fleet: Fleet, result: WorldResult) -> SimReport:
        prices = {pool.role: pool.machine.price for pool in fleet.pools if pool.machine.price is not None}
        num_unsent = len(self.workload.requests) - len(result.requests)
        if num_unsent:
            reason = "the answer that they wait for did not come"
            if self.options.until_s is not None:
                reason = f"the world was stopped before, or {reason}"
            result.notes += (f"{num_unsent:,} requests were never sent: {reason}",)
        return report_world(fleet.label, result, replace(self.options.report, prices_per_h=prices or None))


def _check_fleets(fleets: Sequence[Fleet]) -> None:
    """Raises SettingsError for configurations that nothing could tell apart, and for costs of a part of one."""
    for index, fleet in enumerate(fleets):
        if any(fleet.label == other.label for other in fleets[:index]):
            raise SettingsError(f"--topology {fleet.label} is given twice; give each configuration once")
        free = [pool.role for pool in fleet.pools if pool.machine.price is None]
        if 0 < len(free) < len(fleet.pools):
            raise SettingsError(
                f"--topology {fleet.label}: {free[0]} workers have no price and the others have one; give"
                f" --price-per-h, or {free[0]}.price"
            )


def make_workload(options: SimulateOptions) -> Workload:
    """Read or made up, timed, and without what is too long. Raises SettingsError."""
    if options.trace is not None:
        workload = read_trace_file(options.trace, options.reading)
    elif options.made_up is not None:
        rng = random.Random(f"workload:{options.seed}")
        block_size = options.block_size or FINE_BLOCK_SIZE
        workload = Workload(requests=list(islice(generate(options.made_up, rng, block_size), options.num_requests)))
    else:
        raise SettingsError("there is nothing to simulate: give --trace FILE, or --rate with --prompt-tokens")
    workload = _without_longer(workload, options.max_request_tokens)
    try:
        timed = time_workload(workload, options.timing)
    except ValueError as error:
        raise SettingsError(f"{options.trace or 'the workload'}: {error}") from error
    if not timed.requests:
        raise SettingsError("no request is left to send; check --duration-s and --max-request-tokens")
    return timed


def _without_longer(workload: Workload, max_tokens: int | None) -> Workload:
    if max_tokens is None:
        return workload
    tally = Tally()
    short = [r for r in workload.requests if r.num_prompt_tokens + r.num_output_tokens <= max_tokens]
    kept = whole_sessions(short, tally)
    left_out = len(workload.requests) - len(kept)
    note = (f"{left_out:,} requests of more than {max_tokens:,} tokens are left out",) if left_out else ()
    return Workload(requests=kept, notes=(*workload.notes, *note))


def world_config(options: SimulateOptions, machines: Machines, fleet: Fleet, longest_tokens: int) -> WorldConfig:
    """One configuration. Raises SettingsError for what cannot run."""
    region = RegionSpec(workers=machines.workers(fleet, longest_tokens), num_gateways=options.num_gateways)
    bandwidth = options.link_bytes_per_s
    if bandwidth is None:
        bandwidth = machines.link_bytes_per_s(fleet) if fleet.is_split else inf
    port = LinkTraits(latency_s=options.link_latency_s, bandwidth_bytes_per_s=bandwidth)
    return WorldConfig(
        regions=(region,),
        serving=ServingSpec(layout=machines.layout, max_model_len=max(options.max_model_len, longest_tokens)),
        network=NetworkSpec(port=port),
        front_end_s=machines.front_end_s(fleet),
        seed=options.seed,
        jumps=options.jumps,
        until_s=options.until_s,
    )


def _machines_json(fleet: Fleet, config: WorldConfig) -> dict[str, Any]:
    layout, workers = config.serving.layout, config.regions[0].workers
    num_blocks = {worker.role: worker.num_blocks for worker in workers}
    pools = [
        {"role": pool.role, "num_workers": pool.num_workers, **asdict(pool.machine), "kv_blocks": num_blocks[pool.role]}
        for pool in fleet.pools
    ]
    return {
        "model": layout.model_hash,
        "block_size": layout.block_size,
        "kv_bytes_per_token": layout.bytes_per_token,
        "front_end_s": config.front_end_s,
        "link_bytes_per_s": _finite(config.network.port.bandwidth_bytes_per_s),
        "pools": pools,
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return None if value == inf else value


def _run_world(world: World, label: str, num_requests: int, progress: Progress) -> WorldResult:
    def tell() -> None:
        progress(label, len(world.result.requests) - len(world.clients), num_requests)

    return world.run(tell)


def _log_path(path: Path, fleet: Fleet, fleets: Sequence[Fleet]) -> Path:
    """Each configuration has a log of its own: `decisions.log` becomes `decisions-8p8d.log` if there are several."""
    if len(fleets) == 1:
        return path
    return path.with_name(f"{path.stem}-{re.sub('[^A-Za-z0-9]+', '-', fleet.label)}{path.suffix}")


def _writable(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write --decision-log {path}: {error.strerror}") from error
