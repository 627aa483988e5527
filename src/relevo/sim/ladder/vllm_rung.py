"""Rung 2: four recorded vLLM runs, end to end: the simulator is given arrivals, lengths and step times.

Data: LLMServingSim's bench examples and public model configs. Step times come from the analytic model with constants

- of vLLM on another card (H100): nothing of this card was seen;
- fitted to the other runs on the card, if there are any: this run was not seen;
- fitted to the run's own seconds (running requests, tokens per second), as a layer profile of the card would be.

Requests' latencies have no part in any of them. A run over two engines that share experts is one worker with two
attention-data ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from relevo.policy.perf.devices import device
from relevo.policy.perf.engine_constants import EngineConstants
from relevo.policy.perf.fitting import FitOptions, MeasuredSteps, fit_constants
from relevo.policy.perf.known_engines import known_engine
from relevo.policy.perf.memory_plan import MemoryLimits, memory_plan
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.roofline import RooflineModel
from relevo.policy.perf.step_time import decode_shape
from relevo.policy.perf.step_work import DeviceWork
from relevo.sim.ladder.clusters import Cluster, Group, finished, simulate
from relevo.sim.ladder.errors import RungReport, ValueTable
from relevo.sim.tables.model_files import config_path, read_model_shape
from relevo.sim.tables.vllm_runs import VllmRun, read_vllm_run
from relevo.workload.requests import WorkloadRequest

RUNS = Path("profiles/llmservingsim_bench/bench/examples")
CONFIGS = Path("model_configs")
_CONFIG_NAMES = {
    "meta-llama/Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "Qwen/Qwen3-30B-A3B",
}
_UTILIZATION = 0.9  # required: vLLM's default, with which the runs were made
_BLOCK_SIZE = 16
_FEWEST_RUNNING = 4  # in a second that counts: with fewer, its figures are too coarse
_OF_OTHERS, _OWN = FitOptions(prior_weight=0.5), FitOptions(prior_weight=0.1)
_QUANTILES = (0.5, 0.9, 0.99)


def vllm_rung(folder: Path) -> RungReport:
    runs = [read_vllm_run(path) for path in sorted((folder / RUNS).glob("*/*/vllm"))]
    if not runs:
        raise FileNotFoundError(2, "no such folder", str(folder / RUNS))
    works = {run.name: _device_work(folder, run) for run in runs}
    seconds = {run.name: measured_seconds(run, works[run.name]) for run in runs}
    unseen = known_engine("vllm", "h100")
    rows = []
    for run in runs:
        of_others = [row for other in runs if _is_other(other, run) for row in seconds[other.name]]
        ways = {"vLLM on H100": unseen, "own seconds": fit_constants(seconds[run.name], unseen, _OWN)}
        if of_others:
            ways["card's other runs"] = fit_constants(of_others, unseen, _OF_OTHERS)
        for way in sorted(ways, reverse=True):
            rows += compared(run, works[run.name], ways[way], way)
    columns = ("run, step times of", "metric", "measured mean, ms", "simulated", "mean", "p50", "p90", "p99")
    return RungReport(
        rung=2,
        title="recorded vLLM runs, end to end",
        facts={"runs": len(runs), "requests": sum(len(run.requests) for run in runs)},
        tables=[ValueTable(title="errors", goal="TPOT below 3 %, TTFT below 10 %", columns=columns, rows=rows)],
    )


def measured_seconds(run: VllmRun, work: DeviceWork) -> list[MeasuredSteps]:
    """Each second as the mean step in it. Contexts follow from the requests' first and last tokens."""
    found = []
    mean_prompt = fmean(request.num_prompt_tokens for request in run.requests)
    for second in run.seconds:
        contexts = [seen for each in run.requests if (seen := each.context_at(second.ends_at_s - 0.5))]
        if len(contexts) < _FEWEST_RUNNING or second.output_tokens_per_s < len(contexts):
            continue
        step_s = len(contexts) / second.output_tokens_per_s
        num_prompt = second.prompt_tokens_per_s * step_s  # per step
        decode = decode_shape(len(contexts), sum(contexts))
        room = run.data * (run.max_step_tokens - len(contexts) / run.data)
        chunk = min(room, run.data * mean_prompt)
        fraction = min(1.0, num_prompt / chunk)
        if not fraction:
            found.append(MeasuredSteps(((1.0, work.work(decode)),), step_s))
            continue
        num_tokens = max(1, round(num_prompt / fraction))
        mixed = decode._replace(
            num_prefill_rows=max(1, round(num_tokens / mean_prompt)),
            num_prefill_tokens=num_tokens,
            num_prefill_kv_tokens=num_tokens,
            num_prefill_pairs=num_tokens * mean_prompt / 2,
        )
        found.append(MeasuredSteps(((1.0 - fraction, work.work(decode)), (fraction, work.work(mixed))), step_s))
    return found


def compared(run: VllmRun, work: DeviceWork, constants: EngineConstants, way: str) -> list[list[str]]:
    """Rows of the table: one per metric."""
    limits = MemoryLimits(max_step_tokens=run.max_step_tokens, max_rows=run.max_rows, utilization=_UTILIZATION)
    plan = memory_plan(work.shape, work.device, work.parallelism, limits)
    group = Group(
        role="unified",
        num_workers=1,
        times=RooflineModel(work, constants),
        num_pool_tokens=run.num_blocks * _BLOCK_SIZE if run.num_blocks else plan.num_pool_tokens,
        max_step_tokens=run.max_step_tokens * run.data,
        max_rows=run.max_rows * run.data,
    )
    arrivals = [
        WorkloadRequest(
            row=row,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            arrived_at_s=request.arrived_at_s,
        )
        for row, request in enumerate(run.requests)
    ]
    results = [each.times for each in finished(simulate(Cluster(groups=[group], has_prefix_cache=True), arrivals))]
    pairs = {
        "TTFT": ([times.ttft_s for times in results], [each.ttft_s for each in run.requests]),
        "TPOT": (
            [times.tpot_s for times in results],
            [each.tpot_s for each in run.requests if each.num_output_tokens > 1],
        ),
        "E2E": ([times.e2e_s for times in results], [each.e2e_s for each in run.requests]),
    }
    return [
        _row(f"{run.name}: {way}", metric, [value for value in simulated if value is not None], measured)
        for metric, (simulated, measured) in pairs.items()
    ]


def _row(name: str, metric: str, simulated: Sequence[float], measured: Sequence[float]) -> list[str]:
    means = fmean(measured), fmean(simulated)
    errors = [means[1] / means[0] - 1.0]
    errors += [_quantile(simulated, share) / _quantile(measured, share) - 1.0 for share in _QUANTILES]
    return [name, metric, *(f"{mean * 1e3:,.1f}" for mean in means), *(f"{error:+.1%}" for error in errors)]


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _is_other(other: VllmRun, run: VllmRun) -> bool:
    return other is not run and other.card == run.card


def _device_work(folder: Path, run: VllmRun) -> DeviceWork:
    shape = read_model_shape(config_path(folder / CONFIGS, _CONFIG_NAMES.get(run.model, run.model)))
    num_expert_groups = run.tensor * run.data if run.is_expert_parallel else 1
    spread = Parallelism(tensor=run.tensor, attention_data=run.data, expert=num_expert_groups)
    return DeviceWork(shape, device(run.card), spread)
