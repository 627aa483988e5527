"""What each of several modes would make of a demand, at less cost than simulating all of them to the end.

Every mode is a simulated world under the same requests, advanced in heats; one that is beaten by more than chance is
left where it is, and so are all once nothing more would change (`policy.scaling.race`) and nothing piles up. A surge
is simulated of those that are left, and only where the expected load leaves room for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from relevo.policy.scaling.demand import Demand
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode
from relevo.policy.scaling.race import HEATS, Race
from relevo.sim.kernel import seconds
from relevo.sim.mode_worlds import WARM_FRACTION, ModeWorlds
from relevo.sim.results import RequestOutcome, RequestResult
from relevo.sim.samples import latency_samples
from relevo.sim.world import World
from relevo.telemetry.latency import Slo

_DRAIN_FRACTION = 0.1  # of the requests, that only follow those that are judged. Arbitrary
_CALM = 0.9  # part of requests that has to meet the targets, for a surge to be of interest. Arbitrary
_SETTLED = 0.5  # part of the requests, before which lines have not had the time to grow. Arbitrary
_GROWTH, _FEW = 1.3, 3  # times and requests by which what is under way may grow by chance. Arbitrary
_LOOK_NS = seconds(0.5)  # between looks whether all are judged. Arbitrary


@dataclass(slots=True)
class _Runner:
    """One world. `met`: of the requests that are judged, in order."""

    world: World
    slo: Slo
    first_row: int  # that is judged
    num_most: int  # that can be
    arrivals_ns: Sequence[int]  # of every row
    met: list[bool] = field(default_factory=list)
    num_at_first: int | None = None  # requests that were under way when the first that is judged came
    num_at_last: int = 0  # likewise, the last so far

    @classmethod
    def of(cls, worlds: ModeWorlds, mode: Mode, demand: Demand, num_requests: int, warm_fraction: float) -> _Runner:
        world, first_row = worlds.world(mode, demand, num_requests, warm_fraction)
        world.start()
        rows = world.workload.requests
        num_most = max(1, len(rows) - first_row - int(_DRAIN_FRACTION * num_requests))
        arrivals_ns = [world.traffic_at_ns + seconds(row.arrived_at_s or 0.0) for row in rows]
        return cls(world, worlds.slo, first_row, num_most, arrivals_ns)

    def run_to(self, num_judged: int) -> None:
        kernel = self.world.kernel
        last = self.first_row + min(num_judged, self.num_most) - 1
        if self.num_at_first is None:
            kernel.run(until_ns=self.arrivals_ns[self.first_row])
            self.num_at_first = len(self.world.clients)
        kernel.run(until_ns=self.arrivals_ns[last])
        self.num_at_last = len(self.world.clients)
        while not self._judge(last) and kernel.next_at_ns is not None:
            kernel.run(until_ns=kernel.now_ns() + _LOOK_NS)

    def _judge(self, last: int) -> bool:
        """As far as can be told, in order. True: all are, up to that row."""
        self.world.quiet.catch_up()
        results = self.world.result.requests
        while (row := self.first_row + len(self.met)) <= last:
            met = self._is_met(results[row])
            if met is None:
                return False
            self.met.append(met)
        return True

    def _is_met(self, result: RequestResult) -> bool | None:
        times = result.times
        if result.ended_at_ns is not None:
            return result.outcome is RequestOutcome.FINISHED and self.slo.is_met(times, times.tpot_s)
        if self.slo.ttft_s is None:
            return None
        first_ns = times.token_at_ns[0] if len(times.token_at_ns) else self.world.kernel.now_ns()
        return False if first_ns - result.arrived_at_ns > seconds(self.slo.ttft_s) else None

    @property
    def is_growing(self) -> bool:
        """More and more is under way: what is met now will not be met later."""
        return self.num_at_last > _GROWTH * (self.num_at_first or 0) + _FEW

    @property
    def part(self) -> float:
        return sum(self.met) / len(self.met) if self.met else 0.0

    def times_s(self) -> tuple[float | None, float | None]:
        """TTFT and ITL, p90, of those that are judged; None: of too few to tell."""
        results = self.world.result.requests[self.first_row : self.first_row + len(self.met)]
        told = latency_samples(results).distributions()
        return told["ttft_s"].value("p90"), told["itl_s"].value("p90")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRace:
    """`wide`, `least`: see `policy.scaling.race.Race`."""

    worlds: ModeWorlds
    wide: float
    least: float

    def outlooks(
        self, modes: Sequence[Mode], present: Mode, demand: Demand, surge: float = 0.0
    ) -> Mapping[Mode, ModeOutlook]:
        """`present` is among `modes`. `surge`: how many times as many may come; 0: that is not asked."""
        number = self.worlds.num_requests
        runners = {mode: _Runner.of(self.worlds, mode, demand, number, WARM_FRACTION) for mode in modes}
        left = self._race(runners, present)
        surged: dict[Mode, _Runner] = {}
        if surge and max(runner.part for runner in runners.values()) >= _CALM:
            surged = {mode: _Runner.of(self.worlds, mode, demand.at(surge), number // 2, 0.0) for mode in left}
            self._race(surged, present)
        return {
            mode: self._outlook(mode, demand, runner, surged.get(mode), is_beaten=mode not in left)
            for mode, runner in runners.items()
        }

    def _race(self, runners: Mapping[Mode, _Runner], present: Mode) -> tuple[Mode, ...]:
        left = tuple(runners)
        for part in HEATS:
            for mode in left:
                runners[mode].run_to(round(part * runners[mode].num_most))
            race = Race({mode: runners[mode].met for mode in left}, present, self.wide, self.least)
            left = race.still_in
            if part >= _SETTLED and race.is_decided and not any(runners[mode].is_growing for mode in left):
                break
        return left

    def _outlook(
        self, mode: Mode, demand: Demand, runner: _Runner, surged: _Runner | None, *, is_beaten: bool
    ) -> ModeOutlook:
        ttft_p90_s, itl_p90_s = runner.times_s()
        return ModeOutlook(
            attained=runner.part,
            ttft_p90_s=ttft_p90_s,
            itl_p90_s=itl_p90_s,
            floor_ttft_s=self.worlds.floor_s(mode, demand),
            surge_attained=None if surged is None else surged.part,
            num_judged=len(runner.met),
            num_surged=0 if surged is None else len(surged.met),
            is_beaten=is_beaten,
        )
