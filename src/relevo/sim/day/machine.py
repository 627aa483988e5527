"""Machines of the simulated days: what two workers on one of them have, and what their steps cost.

`SIXTEEN_CORES`: prompts grow with cores, decoding waits for memory. `TWO_CORES`: one core a worker, as a small model
was measured on two cores with AVX2 (docs/lab-log.md): 28 rows take 121 ms on one core and 74 ms on both. There 0.1 s
hold 27 prompt tokens, so blocks are as small as a server's are: a step beside streams computes a whole one at least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relevo.core.events import StepCosts
from relevo.core.kv import KVGroup, KVLayout
from relevo.policy.host.topology import choose_topology
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.sim.config import WorkerSpec
from relevo.telemetry.latency import Slo
from relevo.workload.open_loop import Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`answer_s`: that an answer of the simulator takes beside a server that is busy."""

    name: str
    cores: int  # of each worker
    times_on: Callable[[int], FittedStepTimes]  # so many cores
    slo: Slo
    max_batched_tokens: int
    itl_target_s: float
    answer_s: float
    scale: Scale  # of the lengths of the five workloads
    num_blocks: int = 1500
    block_size: int = 64
    max_prefill_tokens: int = 512
    max_running: int = 128

    @property
    def layout(self) -> KVLayout:
        return KVLayout("day", "float16", self.block_size, (KVGroup.full(range(1), 1, 64),))

    @property
    def start_mode(self) -> str:
        """In which `--topology auto` begins."""
        return str(choose_topology(2 * self.cores)[0])

    def workers(self) -> tuple[WorkerSpec, ...]:
        roles = ("hybrid", "hybrid") if self.start_mode == "hybrid" else ("prefill", "decode")
        return tuple(
            WorkerSpec(
                worker_id=f"{first}-0",
                role=role,
                times=self.times_on(self.cores),
                num_blocks=self.num_blocks,
                max_batched_tokens=self.max_batched_tokens,
                max_prefill_tokens=self.max_prefill_tokens,
                max_running=self.max_running,
                itl_target_s=self.itl_target_s,
                cores=tuple(range(self.cores * place, self.cores * (place + 1))),
                times_on=self.times_on,
            )
            for place, (first, role) in enumerate(zip(("prefill", "decode"), roles, strict=True))
        )


def times_on(num_cores: int) -> FittedStepTimes:
    """Six milliseconds of a step are memory's; what a token computes is shared by the cores."""
    return FittedStepTimes(
        StepCosts(base_s=0.006 + 0.032 / num_cores, per_token_s=8e-4 / num_cores, per_kv_token_s=1e-7)
    )


def _small_times_on(num_cores: int) -> FittedStepTimes:
    """Two cores are 1.6 times as fast as one."""
    slowness = 1.0 if num_cores == 1 else 1.6 / num_cores
    return FittedStepTimes(
        StepCosts(base_s=0.0075 * slowness, per_token_s=0.0034 * slowness, per_kv_token_s=4e-6 * slowness)
    )


SIXTEEN_CORES = Machine(
    name="sixteen-cores",
    cores=8,
    times_on=times_on,
    slo=Slo(ttft_s=1.5, itl_s=0.05),
    max_batched_tokens=2048,
    itl_target_s=0.03,
    answer_s=1.0,
    scale=Scale(0.5, 0.5),
)
TWO_CORES = Machine(
    name="two-cores",
    cores=1,
    times_on=_small_times_on,
    slo=Slo(ttft_s=2.0, itl_s=0.1),
    max_batched_tokens=512,
    itl_target_s=0.1,
    answer_s=5.0,
    scale=Scale(0.2, 0.4),
    num_blocks=6000,
    block_size=16,
)
MACHINES = {machine.name: machine for machine in (SIXTEEN_CORES, TWO_CORES)}
