"""Composes `relevo plan`: the load, the candidates, simulations of the best of them, and what is told of each.

Decides nothing: what is worth building is `policy.scaling`'s, what it would do is the simulator's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from relevo.build.plan_load import PlanLoad, plan_load
from relevo.build.plan_options import PlanOptions
from relevo.build.simulated_machines import read_shape
from relevo.core.errors import SettingsError
from relevo.core.role import DECODE, PREFILL, UNIFIED, Role
from relevo.gateway.metering.database import Connection
from relevo.policy.perf.engine_constants import DEFAULT_CONSTANTS, EngineConstants
from relevo.policy.perf.known_engines import KNOWN, is_measured_version
from relevo.policy.perf.model_shape import ModelShape
from relevo.policy.scaling.candidates import GIB, Candidate, Stage
from relevo.policy.scaling.error_band import Validity, validity
from relevo.policy.scaling.refine import RefineLimits, Verdict, cheapest, refine
from relevo.policy.scaling.screen import Outlook, Screen
from relevo.policy.scaling.search import LEAST_HEADROOM, Found, Infeasible, Question, search
from relevo.policy.scaling.worker_times import WorkerTimes
from relevo.sim.planned_world import PlannedWorlds, held
from relevo.sim.report import SimReport

PEAK = 1.5  # times the rate at which head-room is told
_MARGIN = 1.0 / (1.0 - LEAST_HEADROOM)
_MOST_ROWS = 5  # plans in the table
_NO_DIFFERENCE = 0.03  # of cost: repeats of one real server differ by as much in throughput. Measured
Progress = Callable[[str, int], None]  # what is simulated, and how many have been


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One candidate as it is told. `with_peak` and `with_death`: None of those that were not asked about."""

    candidate: Candidate
    report: SimReport
    outlook: Outlook
    load_limit: float  # times the rate, by the screen
    keeps_margin: bool  # the promises hold at the rate and the least head-room on top, simulated
    holds: bool  # at the rate
    why_not: str = ""
    with_peak: SimReport | None = None
    with_death: SimReport | None = None
    dying: Role | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """`rows`: the plan first. Empty: see `found` for why."""

    rows: tuple[PlanRow, ...]
    found: Found | Infeasible
    validity: Validity | None
    is_enough: bool  # the devices at hand keep the promises

    @property
    def best_unsplit(self) -> PlanRow | None:
        return next((row for row in self.rows if not row.candidate.is_split), None)


@dataclass(slots=True)
class Planner:
    """One run of the command."""

    options: PlanOptions
    connection: Connection | None = None
    now_ms: int = 0
    shape: ModelShape = field(init=False)
    load: PlanLoad = field(init=False)
    screen: Screen = field(init=False)
    worlds: PlannedWorlds = field(init=False)

    def __post_init__(self) -> None:
        options = self.options
        engines = sorted({engine for engine, _ in KNOWN})
        if options.engine is not None and options.engine not in engines:
            raise SettingsError(f"--engine {options.engine} was not measured; there are {', '.join(engines)}")
        _check_version(options)
        self.shape = read_shape(options.model)
        if not self.shape.growing_kv_bytes_per_token(options.assumed.kv_value_bytes):
            raise SettingsError(f"{self.shape.name} keeps a window or a state in every layer; this cannot be planned")
        self.load = plan_load(options, self.connection, self.now_ms)
        times = WorkerTimes(self.shape, self._constants, options.assumed)
        self.screen = Screen(times)
        self.worlds = PlannedWorlds(
            times, self.load.demand, self.load.piece, options.targets, self.load.block_size, options.seed
        )

    def plan(self, progress: Progress = lambda label, count: None) -> CapacityPlan:
        options = self.options
        question = Question(
            shape=self.shape,
            holdings=options.holdings,
            demand=self.load.demand,
            targets=options.targets,
            assumed=options.assumed,
            block_size=self.load.block_size,
        )
        found = search(question, self.screen)
        if isinstance(found, Infeasible):
            return CapacityPlan(rows=(), found=found, validity=None, is_enough=False)
        if not found.candidates:
            raise SettingsError(_cannot_be_built(self.shape, found))
        chosen, margins = self._choose(found, progress)
        rows = self._rows(chosen, margins, progress)
        highest = max(stage.load for stage in rows[0].outlook.stages)
        return CapacityPlan(
            rows=tuple(rows),
            found=found,
            validity=validity(rows[0].candidate, self.load.demand, options.engine, highest, options.engine_version),
            is_enough=rows[0].keeps_margin,
        )

    def _constants(self, device: str) -> EngineConstants:
        """Of the engine on the device, or general ones where it was not measured, which `validity` says."""
        engine = self.options.engine
        return DEFAULT_CONSTANTS if engine is None else KNOWN.get((engine, device), DEFAULT_CONSTANTS)

    def _choose(self, found: Found, progress: Progress) -> tuple[list[Candidate], dict[Candidate, Verdict]]:
        """The plan first, then what it is compared with: the cheapest other ways, one without a split among them."""

        def judge(candidate: Candidate) -> Verdict:
            progress(candidate.layout, self.worlds.num_simulated)
            report, full = self.worlds.report(candidate, _MARGIN), self._full_role(candidate)
            holds = full is None and held(report, self.options.targets)
            return Verdict(holds, full or _short_role(candidate, report, self))

        seen: dict[Candidate, Verdict] = {}
        for start in _starts(found):
            if found.is_enough:
                seen |= refine(start, self.options.holdings, judge, RefineLimits())
            else:
                seen[start] = judge(start)
        best = cheapest(seen)
        others = sorted(seen, key=lambda c: (not seen[c].holds, c.weight, c.layout))
        if not found.is_enough:
            others = list(seen)  # by how much of the load they carry
        ordered = ([best] if best else []) + [c for c in others if c != best]
        kept = ordered[:_MOST_ROWS]
        for other in (next((c for c in ordered if c.is_split), None), _unsplit_for(kept[0], found)):
            if other is not None and other not in kept:  # both kinds are always told, at equal cost where they can be
                kept = [*kept[: _MOST_ROWS - 1], other]
                seen.setdefault(other, judge(other))
        return kept, seen

    def _full_role(self, candidate: Candidate) -> Role | None:
        """Of a stage whose queue would grow without end, which a simulation may be too short to show."""
        outlook = self.screen.outlook(candidate, self.load.demand.at(_MARGIN))
        return next((stage.role for stage in outlook.stages if stage.limit), None)

    def _rows(self, chosen: list[Candidate], seen: dict[Candidate, Verdict], progress: Progress) -> list[PlanRow]:
        rows: list[PlanRow] = []
        for index, candidate in enumerate(chosen):
            progress(candidate.layout, self.worlds.num_simulated)
            report = self.worlds.report(candidate)
            outlook = self.screen.outlook(candidate, self.load.demand)
            dying = _dearest_loss(candidate) if index == 0 else None
            row = PlanRow(
                candidate=candidate,
                report=report,
                outlook=outlook,
                load_limit=self.screen.load_limit(candidate, self.load.demand, self.options.targets),
                keeps_margin=seen[candidate].holds,
                holds=held(report, self.options.targets),
                with_peak=self.worlds.report(candidate, PEAK) if index == 0 else None,
                with_death=self._with_death(candidate, dying),
                dying=dying,
            )
            rows.append(row)
        return [rows[0], *(_explained(row, rows[0], self) for row in rows[1:])]

    def _with_death(self, candidate: Candidate, dying: Role | None) -> SimReport | None:
        """None also where the only worker of all dies: nothing is served until it is back."""
        if dying is None or sum(stage.num_workers for stage in candidate.stages) == 1:
            return None
        return self.worlds.report(candidate, 1.0, dying)


def _starts(found: Found) -> list[Candidate]:
    """The cheapest of each kind of answer: unified, split on one device, split on two."""
    kinds: dict[tuple[bool, bool], Candidate] = {}
    for candidate in found.candidates:
        devices = {stage.kind.device.name for stage in candidate.stages}
        kinds.setdefault((candidate.is_split, len(devices) > 1), candidate)
    return list(kinds.values())


def _unsplit_for(best: Candidate, found: Found) -> Candidate | None:
    """Without a split, as many workers as cost no more than the plan; None if that is one, or one costs more."""
    first = next((c for c in found.candidates if not c.is_split), None)
    if first is None or not best.is_split:
        return None
    kind = first.stages[0].kind
    number = int(best.weight / Candidate((Stage(UNIFIED, kind, 1),)).weight + 1e-9)
    return Candidate((Stage(UNIFIED, kind, number),)) if number >= 1 else None


def _dearest_loss(candidate: Candidate) -> Role:
    """Of the stage that loses the largest part of itself with one worker."""
    return min(candidate.stages, key=lambda stage: stage.num_workers).role


def _short_role(candidate: Candidate, report: SimReport, planner: Planner) -> Role:
    """Which stage a candidate that does not hold needs more of."""
    if not candidate.is_split:
        return candidate.stages[0].role
    itl_s = report.steady_latencies["itl_s"].value("p90")
    return DECODE if itl_s is not None and itl_s > planner.options.targets.itl_s else PREFILL


def _explained(row: PlanRow, best: PlanRow, planner: Planner) -> PlanRow:
    return replace(row, why_not=why_not(row, best, planner.options.targets.ttft_s, planner.options.targets.itl_s))


def why_not(row: PlanRow, best: PlanRow, ttft_s: float, itl_s: float) -> str:
    """What speaks against it, the heaviest first."""
    told = row.report.steady_latencies
    first, gap = told["ttft_s"].value("p90"), told["itl_s"].value("p90")
    computing, decoding = row.report.pools[0], row.report.pools[-1]  # the same one where nothing is split
    when = "" if not row.holds else f" at {_MARGIN:.2f} times the load"
    if not row.keeps_margin:
        if not row.holds and (first is None or first > ttft_s):
            shown = "is not reached by a tenth of the requests" if first is None else f"is {first:.2f} s"
            return f"TTFT p90 {shown}, {ttft_s:g} s promised: {computing.role} is {computing.busy_fraction:.0%} busy"
        if not row.holds and gap is not None and gap > itl_s:
            return f"ITL p90 is {gap * 1e3:.1f} ms, {itl_s * 1e3:g} ms promised: {decoding.role} has too many rows"
        return f"does not keep the promises{when}: no head-room to the edge of its cliff"
    more = row.candidate.weight / best.candidate.weight - 1.0
    if more < -_NO_DIFFERENCE:
        return "carries less of the load"
    if more <= _NO_DIFFERENCE:
        return f"costs the same within {_NO_DIFFERENCE:.0%}, what repeats of one server differ by"
    return f"costs {more:.0%} more"


def _check_version(options: PlanOptions) -> None:
    if options.engine_version is None:
        return
    if options.engine is None:
        raise SettingsError(f"--engine-version {options.engine_version} is of no --engine; name one, such as vllm")
    try:
        is_measured_version(options.engine, options.engine_version)
    except ValueError as error:
        raise SettingsError(f"--engine-version: {error}") from None


def _cannot_be_built(shape: ModelShape, found: Found) -> str:
    nearest = min(found.refused, key=lambda refused: refused.missing_bytes, default=None)
    if nearest is None:
        return f"{shape.name}: none of --devices can hold a worker"
    return (
        f"{shape.name} ({shape.weight_bytes / GIB:,.0f} GiB of weights) fits no worker that --devices can build;"
        f" nearest is {nearest.name}: {nearest.reason}"
    )
