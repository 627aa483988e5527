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

from relevo.build.scenario import Scenario, machines_json
from relevo.build.served_history import ServedHistory
from relevo.build.served_workers import ServedWorkers, who_served
from relevo.build.simulated_machines import Machines, ModelOptions
from relevo.build.what_if import Common, WhatIf, served_scenarios
from relevo.core.decisions import DecisionLines
from relevo.core.errors import SettingsError
from relevo.sim.config import NetworkSpec, RegionSpec, ServingSpec, WorldConfig
from relevo.sim.fleet import Fleet
from relevo.sim.measured import Comparison, measured_facts, simulated_facts
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
from relevo.workload.timing import Timing, in_order, time_workload
from relevo.workload.traces.files import ReadOptions, read_trace_file
from relevo.workload.traces.rows import Tally, whole_sessions

FINE_BLOCK_SIZE = 16  # of workloads that name no block size; what engines use

Progress = Callable[[str, int, int], None]  # configuration, requests that have ended, of how many


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """Everything that was asked for."""

    trace: Path | None = None
    history: ServedHistory | None = None  # of this server, instead of a trace
    reading: ReadOptions
    made_up: SessionShape | None = None  # where there is no trace
    num_requests: int = 1000  # made up
    max_request_tokens: int | None = None  # prompt and answer; longer ones are left out
    timing: Timing
    fleets: tuple[Fleet, ...]
    what_if: WhatIf = field(
        default_factory=WhatIf
    )  # with a history and no model: other sharings of what served, instead of fleets
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
    served: ServedWorkers | None = None  # the machines are theirs
    comparison: Comparison | None = None  # of what was measured with the same simulated
    labels: list[str] = field(default_factory=list)  # of all that is to be simulated

    def __post_init__(self) -> None:
        options = self.options
        _check_fleets(options.fleets)
        self.workload = make_workload(options)
        notes: tuple[str, ...] = ()
        if options.history is not None and options.model.model is None and options.model.step_costs is None:
            times_s = [request.at_s for request in options.history.requests]
            self.served, notes = who_served(options.history.serving, times_s)
        self.facts = workload_facts(_source(options), replace(self.workload, notes=(*self.workload.notes, *notes)))

    def run(self, progress: Progress, *, keep_samples: bool = False) -> None:
        """All configurations, one after the other. What cannot run is refused before the first begins."""
        options, scenarios = self.options, self._scenarios()
        self.labels = [scenario.label for scenario in scenarios]
        for scenario in scenarios:
            label = scenario.label
            with ExitStack() as files:
                lines = None
                if options.decision_log is not None:
                    path = _log_path(options.decision_log, label, len(scenarios))
                    lines = DecisionLines(files.enter_context(_writable(path)).write)
                world = World(scenario.config, self.workload, decisions=lines)
                result = _run_world(world, label, len(self.workload.requests), progress)
            if scenario.is_as_served:
                self._compare(result)
            self.reports.append(self._report(scenario, result))
            self.machines.append(scenario.machines)
            if keep_samples:
                self.samples[label] = latency_samples(result.requests).samples
                self.requests[label] = RequestColumns.of(result.requests)

    def _scenarios(self) -> list[Scenario]:
        options, longest = self.options, self.facts.longest_tokens
        if self.served is not None and options.history is not None:
            return served_scenarios(self.served, options.what_if, self._common(options.history), longest)
        block_size = options.block_size or self.facts.hash_block_size or FINE_BLOCK_SIZE
        machines = Machines(options.model, block_size)
        found = []
        for fleet in options.fleets:
            config = world_config(options, machines, fleet, longest)
            prices = {pool.role: pool.machine.price for pool in fleet.pools if pool.machine.price is not None}
            found.append(
                Scenario(label=fleet.label, config=config, prices_per_h=prices, machines=machines_json(fleet, config))
            )
        return found

    def _common(self, history: ServedHistory) -> Common:
        """The front end takes what it took."""
        fronts_s = sorted(request.front_s for request in history.requests if request.front_s is not None)
        return Common(
            front_end_s=fronts_s[len(fronts_s) // 2] if fronts_s else 0.0,
            seed=self.options.seed,
            jumps=self.options.jumps,
            until_s=self.options.until_s,
        )

    def _compare(self, result: WorldResult) -> None:
        """With what was measured of the same requests; not where they come at other times than they came."""
        history, timing = self.options.history, self.options.timing
        if (
            history is None
            or timing.num_clients is not None
            or timing.arrival
            or timing.rate_per_s
            or timing.speed != 1
        ):
            return
        measured = [history.requests[request.row] for request in self.workload.requests]
        self.comparison = Comparison(measured=measured_facts(measured), simulated=simulated_facts(result.requests))

    def to_json(self) -> dict[str, Any]:
        """The same options give the same bytes: nothing here is measured on this machine."""
        pairs = zip(self.machines, self.reports, strict=True)
        compared = {} if self.comparison is None else {"as_served": self.comparison.to_json()}
        return {
            "workload": asdict(self.facts),
            **compared,
            "configurations": [{"machines": machines, **report.to_json()} for machines, report in pairs],
        }

    def _report(self, scenario: Scenario, result: WorldResult) -> SimReport:
        prices = scenario.prices_per_h
        num_unsent = len(self.workload.requests) - len(result.requests)
        if num_unsent:
            reason = "the answer that they wait for did not come"
            if self.options.until_s is not None:
                reason = f"the world was stopped before, or {reason}"
            result.notes += (f"{num_unsent:,} requests were never sent: {reason}",)
        return report_world(scenario.label, result, replace(self.options.report, prices_per_h=prices or None))


def _source(options: SimulateOptions) -> str:
    if options.history is not None:
        return options.history.source
    return options.trace.name if options.trace else MADE_UP


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
    if options.history is not None:
        workload = _part_of(options.history.workload(warm=True), options.reading)
    elif options.trace is not None:
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


def _part_of(workload: Workload, reading: ReadOptions) -> Workload:
    stop = None if reading.limit is None else reading.skip + reading.limit
    requests = in_order(whole_sessions(workload.requests[reading.skip : stop], Tally()))
    return Workload(requests=requests, notes=workload.notes)


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


def _run_world(world: World, label: str, num_requests: int, progress: Progress) -> WorldResult:
    def tell() -> None:
        progress(label, len(world.result.requests) - len(world.clients), num_requests)

    return world.run(tell)


def _log_path(path: Path, label: str, num_scenarios: int) -> Path:
    """Each configuration has a log of its own: `decisions.log` becomes `decisions-8p8d.log` if there are several."""
    if num_scenarios == 1:
        return path
    return path.with_name(f"{path.stem}-{re.sub('[^A-Za-z0-9]+', '-', label)}{path.suffix}")


def _writable(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write --decision-log {path}: {error.strerror}") from error
