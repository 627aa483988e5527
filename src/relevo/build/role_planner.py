"""Composition of a model's planner in its gateway: what it watches, and the process in which the simulator is asked.

That process computes only when no other wants the cores, and ends with the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from relevo.build.clock import MonotonicClock
from relevo.build.configs import HistoryConfig, ServedModelConfig
from relevo.build.scale_command import run_program
from relevo.core.events import UNKNOWN_COSTS, StepCosts
from relevo.orchestrator.ports import TokenGenerator, WorkerStatus
from relevo.planner.loop import History, RolePlanning
from relevo.planner.not_simulated import NotSimulated
from relevo.planner.remembered import RememberedAnswers, present_of
from relevo.planner.scale_command import ScaleCommand
from relevo.planner.window import DemandWindow
from relevo.planner.worker_costs import WorkerCosts, WorkerRules
from relevo.planner.worker_number import WorkerNumber
from relevo.policy.host.auto_mode import AUTO_ITL_S, AUTO_TTFT_S
from relevo.policy.scaling.alike_workers import alike, best_mode
from relevo.policy.scaling.answer_pool import AnswerPool
from relevo.policy.scaling.demand import Demand, Sample
from relevo.policy.scaling.enough_workers import CountLimits, search
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode
from relevo.policy.scaling.planner_limits import PlannerLimits
from relevo.policy.scaling.role_planner import RolePlanner
from relevo.policy.scaling.scale_orders import LentNode
from relevo.policy.scaling.wanted_workers import WantedWorkers
from relevo.policy.scaling.worker_count import CountPlanner, CountSeen
from relevo.policy.scaling.worker_facts import WorkerFacts
from relevo.telemetry.latency import Slo
from relevo.telemetry.metrics import GatewayMetrics
from relevo.wire.leash import ask_for_end_with_parent

Answer = TypeVar("Answer")

_LEAST_URGENT = 19
_SIMULATED_REQUESTS = 160  # arbitrary
_ANSWER_S = 120.0  # arbitrary: on idle cores an answer takes some seconds; what comes later is about another demand


class ClusterView(Protocol):
    """What a planner asks of the cluster that its gateway is in."""

    def other_heads(self) -> tuple[str, ...]: ...

    def lent_nodes(self) -> tuple[LentNode, ...]: ...

    def drain(self, node: str, *, for_good: bool) -> bool: ...


def planned(
    config: ServedModelConfig, generator: TokenGenerator, cluster: ClusterView | None = None
) -> RolePlanning | None:
    """None unless it is asked for, or there is a history to start from."""
    if config.planner == "off" and config.history is None:
        return None
    clock, limits = MonotonicClock(), PlannerLimits()
    slo = Slo(ttft_s=config.slo_ttft_s or AUTO_TTFT_S, itl_s=config.slo_itl_s or AUTO_ITL_S)
    assert slo.ttft_s is not None
    assert slo.itl_s is not None
    window, is_dry = DemandWindow(generator, clock, slo), config.planner == "dry-run"
    simulator = SimulatorProcess(config, slo, limits)
    number = _worker_number(config, slo.ttft_s, simulator, cluster)
    return RolePlanning(
        model=config.served_model_names[0],
        window=window,
        planner=RolePlanner(limits, slo.ttft_s, slo.itl_s, acts=not is_dry),
        limits=limits,
        ask=RememberedAnswers(simulator.ask, clock, AnswerPool(window.span_s, limits.gain)).ask,
        close=partial(_close, simulator, number),
        clock=clock,
        unix_s=time.time,
        is_dry=is_dry,
        targets={"ttft_p90_s": slo.ttft_s, "itl_p90_s": slo.itl_s},
        history=None if config.history is None else _history(config.history),
        only_begins=config.planner == "off",
        number=number,
        elsewhere=(lambda: "") if cluster is None else partial(_elsewhere, cluster),
    )


def _worker_number(
    config: ServedModelConfig, ttft_s: float, simulator: SimulatorProcess, cluster: ClusterView | None
) -> WorkerNumber | None:
    number = config.number
    if number is None:
        return None
    limits = CountLimits(least=number.least, most=number.most, spare=number.spare)
    scaler = None
    if number.command and cluster is not None and config.planner == "on":
        scaler = ScaleCommand(
            model=config.served_model_names[0],
            words=number.command,
            timeout_s=number.command_timeout_s,
            cluster=cluster,
            run=run_program,
            clock=MonotonicClock(),
        )
    return WorkerNumber(
        model=config.served_model_names[0],
        planner=CountPlanner(limits, ttft_s, number.start_s),
        limits=limits,
        wanted=WantedWorkers(limits=limits, start_s=number.start_s),
        ask=partial(simulator.ask_numbers, limits=limits),
        unix_s=time.time,
        scaler=scaler,
    )


def _close(simulator: SimulatorProcess, number: WorkerNumber | None) -> None:
    simulator.close()
    if number is not None and number.scaler is not None:
        number.scaler.close()


def show_plans(metrics: GatewayMetrics, plannings: Sequence[RolePlanning]) -> None:
    for planning in plannings:
        metrics.on_request_finished(planning.window.finished)
    metrics.show_plans(lambda: plannings)


def _elsewhere(cluster: ClusterView) -> str:
    """Heads do not tell each other what comes in, and two planners would fight over the same workers."""
    heads = cluster.other_heads()
    return (
        f"requests come in through {', '.join(heads)}, too; one head has to serve where a planner runs" if heads else ""
    )


def _history(config: HistoryConfig) -> History:
    demand = Demand(
        requests_per_s=config.requests_per_s,
        samples=tuple(Sample(prompt, output, (cached,)) for prompt, output, cached in config.samples),
        longest_tokens=config.longest_tokens,
    )
    return History(config.source, demand)


@dataclass(slots=True)
class SimulatorProcess:
    config: ServedModelConfig
    slo: Slo
    limits: PlannerLimits
    _pool: ProcessPoolExecutor | None = None
    _costs: WorkerCosts = field(init=False)
    _best_modes: Mapping[int, Mode] = field(default_factory=dict)  # by the number of workers, as of the last answer

    def __post_init__(self) -> None:
        config = self.config
        before = config.history.costs if config.history is not None else ()
        self._costs = WorkerCosts(rules_of(config), before={number: _costs(*costs) for number, *costs in before})

    async def ask(
        self, modes: Sequence[Mode], demand: Demand, workers: Sequence[WorkerStatus], seed: int
    ) -> Mapping[Mode, ModeOutlook]:
        self._costs.learn(workers, time.monotonic())
        facts = self._costs.facts(workers)
        present = present_of(modes, workers)
        question = (facts, self.config.max_model_len, self.slo, self.limits, tuple(modes), present, demand, seed)
        return await self._answer(partial(_simulate, *question))

    async def ask_numbers(
        self, seen: CountSeen, demand: Demand, workers: Sequence[WorkerStatus], limits: CountLimits
    ) -> Mapping[int, ModeOutlook]:
        """All workers are taken for alike: as the first one that has said what its steps cost."""
        self._costs.learn(workers, time.monotonic())
        known = [worker for worker in workers if worker.load.costs != UNKNOWN_COSTS]
        if not known:
            raise NotSimulated("no worker has said what its steps cost")
        (one,) = self._costs.facts(known[:1])
        total = seen.num_there + seen.num_coming
        question = (one, self.config.max_model_len, self.slo, limits, total, self._best_modes, demand)
        outlooks, self._best_modes = await self._answer(partial(_simulate_numbers, *question))
        return outlooks

    async def _answer(self, simulate: Callable[[], Answer]) -> Answer:
        if self._pool is None:
            spawned = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, spawned, initializer=_give_way, initargs=(os.getpid(),))
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await asyncio.get_running_loop().run_in_executor(self._pool, simulate)
        except TimeoutError:
            self.close()
            raise NotSimulated(f"the simulator had no answer in {_ANSWER_S:.0f} s; the cores are busy") from None
        except BrokenExecutor:
            self.close()
            raise NotSimulated("the process of the simulator ended; another one is asked next") from None

    def close(self) -> None:
        """What is being computed is of no use any more. The next question starts another process."""
        pool, self._pool = self._pool, None
        if pool is not None:
            for process in list(pool._processes.values()):
                process.kill()
            pool.shutdown(wait=False, cancel_futures=True)


def rules_of(config: ServedModelConfig) -> WorkerRules:
    """What all workers of a model have in common."""
    return WorkerRules(
        budget_tokens=config.dispatch_ahead_tokens,
        block_size=config.block_size,
        max_running=config.max_num_seqs,
        itl_target_s=config.slo_itl_s,
    )


def _costs(base_s: float, per_token_s: float, per_kv_token_s: float) -> StepCosts:
    return StepCosts(base_s=base_s, per_token_s=per_token_s, per_kv_token_s=per_kv_token_s)


def _give_way_to_other_sessions() -> None:
    """Where the kernel shares cores among sessions first (autogroup), niceness counts within one only: workers are
    sessions of their own, and a session as nice as theirs would have as much of their cores as they have."""
    with contextlib.suppress(OSError):  # another kernel, or none of its files here
        os.setsid()
        Path("/proc/self/autogroup").write_text(str(_LEAST_URGENT), encoding="ascii")


def _give_way(parent: int) -> None:
    """In the process that simulates, once."""
    logging.getLogger("relevo").setLevel(logging.ERROR)  # what simulated workers warn of is of no worker here
    os.setpriority(os.PRIO_PROCESS, 0, _LEAST_URGENT)  # however urgent the server itself is
    _give_way_to_other_sessions()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the gateway that is stopped
    ask_for_end_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def _simulate(
    facts: tuple[WorkerFacts, ...],
    max_model_len: int,
    slo: Slo,
    limits: PlannerLimits,
    modes: tuple[Mode, ...],
    present: Mode,
    demand: Demand,
    seed: int,
) -> Mapping[Mode, ModeOutlook]:
    from relevo.sim.mode_race import ModeRace
    from relevo.sim.mode_worlds import ModeWorlds

    worlds = ModeWorlds(
        workers=facts, max_model_len=max_model_len, slo=slo, num_requests=_SIMULATED_REQUESTS, seed=seed
    )
    race = ModeRace(worlds=worlds, wide=limits.wide, least=limits.gain)
    return race.outlooks(modes, present, demand, limits.surge)


def _simulate_numbers(
    one: WorkerFacts,
    max_model_len: int,
    slo: Slo,
    limits: CountLimits,
    total: int,
    best_before: Mapping[int, Mode],
    demand: Demand,
) -> tuple[Mapping[int, ModeOutlook], Mapping[int, Mode]]:
    """What numbers of workers would make of the demand, and how they would share their work."""
    from relevo.sim.mode_worlds import ModeWorlds

    best = dict(best_before)

    def answer(number: int) -> ModeOutlook:
        workers = alike(one, number)
        worlds = ModeWorlds(workers=workers, max_model_len=max_model_len, slo=slo, num_requests=_SIMULATED_REQUESTS)
        best[number], outlook = best_mode(
            number, best.get(number), limits.goal, lambda mode: worlds.outlook(mode, demand)
        )
        return outlook

    assert slo.ttft_s is not None
    return search(total, limits, slo.ttft_s, answer), best
