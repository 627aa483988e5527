"""What a mode would make of a demand: the workers that are there, in its roles, as a simulated world.

Step times are those that workers have learned about themselves. Prompts are as long as what is to be computed of them:
what is cached at present is taken for cached in every mode. Decides nothing: modes are `policy.scaling.modes`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from relevo.core.ids import WorkerId
from relevo.core.kv import KVGroup, KVLayout
from relevo.core.role import Role
from relevo.policy.host.core_roles import cores_by_role
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.policy.scaling.demand import Demand
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode
from relevo.policy.scaling.worker_facts import WorkerFacts
from relevo.sim.config import NetworkSpec, RegionSpec, ServingSpec, WorkerSpec, WorldConfig
from relevo.sim.report import ReportOptions, SimReport, report_world
from relevo.sim.world import World
from relevo.telemetry.latency import Slo
from relevo.workload.requests import Workload, WorkloadRequest

WARM_FRACTION = 0.2  # of the requests, that only fill the workers. Arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeWorlds:
    workers: Sequence[WorkerFacts]
    max_model_len: int
    slo: Slo
    num_requests: int = 240  # of one run. Arbitrary: about a second of computing
    seed: int = 0

    def outlook(self, mode: Mode, demand: Demand, surge: float = 0.0) -> ModeOutlook:
        """`surge`: how many times as many may come; 0: that is not asked."""
        report = self._run(mode, demand, self.num_requests, WARM_FRACTION)
        surged = self._run(mode, demand.at(surge), self.num_requests // 2, 0.0) if surge else None
        told = report.steady_latencies
        ends = told["e2e_s"]
        return ModeOutlook(
            attained=_attained(report),
            ttft_p90_s=told["ttft_s"].value("p90"),
            itl_p90_s=told["itl_s"].value("p90"),
            floor_ttft_s=self.floor_s(mode, demand),
            surge_attained=None if surged is None else _attained(surged),
            num_judged=report.phases.num_steady,
            num_surged=0 if surged is None else surged.phases.num_steady,
            answer_s=ends.mean,
            answered=1.0 - ends.num_missing / ends.count if ends.count else 0.0,
        )

    def facts_of(self, mode: Mode) -> tuple[object, ...]:
        """All that an outlook on that mode depends on, but for the demand."""
        roles = dict(mode.roles)
        cores = self._cores(roles)
        times = [(facts.costs_on(cores[facts.worker_id]), facts.num_blocks) for facts in self.workers]
        return (mode, *times, self.num_requests, self.seed)

    def _run(self, mode: Mode, demand: Demand, num_requests: int, warm_fraction: float) -> SimReport:
        world, first_row = self.world(mode, demand, num_requests, warm_fraction)
        warm_up_s = world.workload.requests[first_row].arrived_at_s or 0.0
        return report_world(mode.name, world.run(), ReportOptions(slo=self.slo, warm_up_s=warm_up_s))

    def world(self, mode: Mode, demand: Demand, num_requests: int, warm_fraction: float) -> tuple[World, int]:
        """Not yet run; and the row of the first request that counts: those before it fill the workers."""
        roles = dict(mode.roles)
        cores = self._cores(roles)
        specs = tuple(self._worker(facts, roles[facts.worker_id], cores) for facts in self.workers)
        block_size = self.workers[0].block_size
        layout = KVLayout("planned", "float16", block_size, (KVGroup.full(range(1), 1, 64),))
        config = WorldConfig(
            regions=(RegionSpec(workers=specs),),
            serving=ServingSpec(layout=layout, max_model_len=self.max_model_len, enable_prefix_caching=False),
            network=NetworkSpec(shares_memory=True),
            seed=self.seed,
        )
        workload = self._workload(demand, num_requests)
        num_warm = 0 if demand.num_waiting else int(warm_fraction * num_requests)  # a line fills the workers
        return World(config, workload), len(workload.requests) - num_requests + num_warm

    def _cores(self, roles: Mapping[WorkerId, Role]) -> dict[WorkerId, int]:
        boxes: dict[str, dict[WorkerId, tuple[int, ...]]] = {}
        for facts in self.workers:
            boxes.setdefault(facts.box, {})[facts.worker_id] = facts.cores
        counts = {facts.worker_id: len(facts.cores) for facts in self.workers}
        for started_on in boxes.values():
            counts |= {worker_id: len(own) for worker_id, own in cores_by_role(started_on, roles).items()}
        return counts

    def _worker(self, facts: WorkerFacts, role: Role, cores: Mapping[WorkerId, int]) -> WorkerSpec:
        return WorkerSpec(
            worker_id=facts.worker_id,
            role=str(role),
            times=FittedStepTimes(facts.costs_on(cores[facts.worker_id])),
            num_blocks=facts.num_blocks,
            box=facts.box,
            max_batched_tokens=facts.max_batched_tokens,
            max_prefill_tokens=facts.max_prefill_tokens,
            max_running=facts.max_running,
            itl_target_s=facts.itl_target_s,
        )

    def _workload(self, demand: Demand, num_requests: int) -> Workload:
        """What waits in line now is ahead of it: a world that begins empty promises what a loaded one does not keep."""
        rng, even_s, rhythm = Random(self.seed), 0.0, demand.rhythm
        requests = []
        num_ahead = min(demand.num_waiting, num_requests)
        for row in range(num_ahead + num_requests):
            if row >= max(1, num_ahead):
                even_s += rng.expovariate(demand.requests_per_s)
            at_s = even_s if rhythm is None else rhythm.time_of(even_s)
            sample = demand.samples[rng.randrange(len(demand.samples))]
            num_prompt = max(1, sample.num_prompt_tokens - sample.cached[0])
            num_output = max(1, min(sample.num_output_tokens, self.max_model_len - num_prompt))
            requests.append(
                WorkloadRequest(row=row, num_prompt_tokens=num_prompt, num_output_tokens=num_output, arrived_at_s=at_s)
            )
        return Workload(requests=requests)

    def floor_s(self, mode: Mode, demand: Demand) -> float:
        """Of the median prompt, alone on the best worker that computes prompts in this mode."""
        roles = dict(mode.roles)
        cores = self._cores(roles)
        uncached = sorted(max(1, sample.num_prompt_tokens - sample.cached[0]) for sample in demand.samples)
        median = uncached[len(uncached) // 2]
        able = [facts for facts in self.workers if roles[facts.worker_id].computes_prompts] or self.workers
        return min(facts.costs_on(cores[facts.worker_id]).step_s(median, median) for facts in able)


def _attained(report: SimReport) -> float:
    goodput = report.goodput
    return (goodput.steady_met_fraction if goodput is not None else None) or 0.0
