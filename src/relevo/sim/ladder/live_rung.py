"""Rung 6: our own live runs on one machine, replayed: the recorded arrivals and lengths on simulated workers.

Data: a folder of `relevo bench record`. The simulated server has the live one's block pools, step budgets and roles.
Step times are `StepCosts` that the live workers fitted to their own steps:

- before the run, by the end of the closed loop that measured capacity: the run was not seen;
- during the run: what its steps cost, and nothing of its requests' latencies.

What a step and a request take beside that (the turn of a worker, HTTP, the sockets between processes) is measured where
it cannot queue: with one client alone, as what its TPOT and TTFT are beyond a simulation of the same requests. Not
modelled: the load generator and the gateway take cores from the workers, more so under load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from relevo.core.kv import KVGroup, KVLayout
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.sim.config import NetworkSpec, RegionSpec, ServingSpec, WorkerSpec, WorldConfig
from relevo.sim.ladder.clusters import finished
from relevo.sim.ladder.errors import RungReport, ValueTable
from relevo.sim.tables.live_runs import LiveRun, LiveServer, LiveWorker, read_live_servers
from relevo.sim.world import World
from relevo.telemetry.latency import percentile
from relevo.workload.requests import Workload, WorkloadRequest

_COLUMNS = ("run", "requests", "TPOT mean, ms", "TTFT p50, ms", "TTFT p90, ms")
_GOAL = "TPOT 5 %, TTFT p50 10 %, p90 20 %"

Latencies = Sequence[tuple[float, float | None]]  # TTFT and TPOT of each request, in the order of arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """What one client alone meets beyond the steps of its requests."""

    step_s: float = 0.0  # of each step of a worker that decodes
    request_s: float = 0.0  # of each request, before its first token


def live_rung(folder: Path) -> RungReport:
    servers = read_live_servers(folder)
    before, during, facts = [], [], {}
    for server in servers:
        front_end = measured_front_end(server)
        facts[server.topology] = (
            f"sustains {server.capacity_per_s:.3f} requests/s; beside steps {front_end.step_s * 1e3:.2f} ms a step,"
            f" {front_end.request_s * 1e3:.1f} ms a request"
        )
        for percent, run in server.loads.items():
            name = f"{server.topology} at {percent} %"
            before.append([name, *_compared(run, replayed(server, run, server.capacity.costs, front_end))])
            during.append([name, *_compared(run, replayed(server, run, run.costs, front_end))])
    most_late_s = max(run.lateness_p99_s for server in servers for run in server.loads.values())
    return RungReport(
        rung=6,
        title="own live runs, end to end",
        facts=facts,
        tables=[
            ValueTable(
                title=f"step costs fitted {when} the run: live, simulated, error",
                goal=_GOAL,
                columns=_COLUMNS,
                rows=rows,
            )
            for when, rows in (("before", before), ("during", during))
        ],
        notes=[f"requests were sent up to {most_late_s * 1e3:.0f} ms late (p99); a tenth of them lies beyond p90"],
    )


def measured_front_end(server: LiveServer) -> FrontEnd:
    """From one client alone, with step costs fitted by the end of its run."""
    run = server.quiet
    bare = replayed(server, run, run.costs, FrontEnd(), one_client=True)
    pairs = [(live.tpot_s, tpot_s) for live, (_, tpot_s) in zip(run.requests, bare, strict=True)]
    beyond_s = fmean(live_s - tpot_s for live_s, tpot_s in pairs if live_s is not None and tpot_s is not None)
    turns = FrontEnd(step_s=max(0.0, beyond_s))
    timed = replayed(server, run, run.costs, turns, one_client=True)
    first_s = [live.ttft_s - ttft_s for live, (ttft_s, _) in zip(run.requests, timed, strict=True) if live.ttft_s]
    return replace(turns, request_s=median(first_s))


def replayed(
    server: LiveServer,
    run: LiveRun,
    costs: Mapping[str, FittedStepTimes],
    front_end: FrontEnd,
    *,
    one_client: bool = False,
) -> Latencies:
    """The same arrivals and lengths, simulated. `one_client`: each request waits for the answer before it instead."""
    rows = [
        WorkloadRequest(
            row=row,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            arrived_at_s=None if one_client and row else request.sent_at_s,
            parent=row - 1 if one_client and row else None,
            gap_s=0.0 if one_client and row else None,
        )
        for row, request in enumerate(run.requests)
    ]
    world = World(world_config(server, costs, front_end.step_s), Workload(requests=rows))
    times = [result.times for result in finished(world.run())]
    return [((each.ttft_s or 0.0) + front_end.request_s, each.tpot_s) for each in times]


def world_config(server: LiveServer, costs: Mapping[str, FittedStepTimes], turn_s: float) -> WorldConfig:
    """One box, whose workers share memory: a handoff copies nothing, so how large a token's KV is does not matter."""
    workers = tuple(_spec(worker, server.max_running, costs[worker.worker_id], turn_s) for worker in server.workers)
    layout = KVLayout("live", "float16", server.workers[0].block_size, (KVGroup.latent([0], 1),))
    return WorldConfig(
        regions=(RegionSpec(workers=workers),),
        serving=ServingSpec(layout=layout, max_model_len=server.max_model_len),
        network=NetworkSpec(shares_memory=True),
    )


def _spec(worker: LiveWorker, max_running: int, times: FittedStepTimes, turn_s: float) -> WorkerSpec:
    if worker.role == "prefill":  # its turns are in what a request takes
        turn_s = 0.0
    return WorkerSpec(
        worker_id=worker.worker_id,
        role=worker.role,
        times=FittedStepTimes(replace(times.costs, base_s=times.costs.base_s + turn_s)),
        num_blocks=worker.num_blocks,
        max_batched_tokens=worker.step_budget_tokens,
        max_prefill_tokens=worker.prefill_budget_tokens,
        max_running=max_running,
    )


def _compared(run: LiveRun, simulated: Latencies) -> list[str]:
    """Of the requests that were answered; the others are in the simulation too, and their number is told."""
    pairs = [(live, times) for live, times in zip(run.requests, simulated, strict=True) if live.ttft_s is not None]
    tokens = [(live.tpot_s, tpot_s) for live, (_, tpot_s) in pairs if live.tpot_s is not None and tpot_s is not None]
    cells = [_cell(fmean(live_s for live_s, _ in tokens), fmean(tpot_s for _, tpot_s in tokens))]
    live_firsts = sorted(live.ttft_s or 0.0 for live, _ in pairs)
    firsts = sorted(ttft_s for _, (ttft_s, _) in pairs)
    cells += [_cell(percentile(live_firsts, share), percentile(firsts, share)) for share in (0.5, 0.9)]
    number = f"{len(pairs)}" if len(pairs) == len(run.requests) else f"{len(pairs)} of {len(run.requests)}"
    return [number, *cells]


def _cell(live_s: float, simulated_s: float) -> str:
    return f"{live_s * 1e3:,.1f} {simulated_s * 1e3:,.1f} {simulated_s / live_s - 1.0:+.1%}"
