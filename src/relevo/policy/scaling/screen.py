"""What a candidate would make of a load, by formulas: microseconds where a simulation takes seconds.

Prompts wait in a queue of several servers (`queueing`), decode steps find the number of rows at which as many requests
end as begin, and a unified worker's steps hold a chunk as often as prompts come. Finds what is worth simulating; the
numbers that are told of a plan are the simulator's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, sqrt
from statistics import fmean

from relevo.core.role import DECODE, PREFILL, Role
from relevo.policy.perf.reshard import reshard_s
from relevo.policy.perf.step_time import StepShape, StepTimeModel, decode_shape
from relevo.policy.scaling.candidates import Candidate, Stage, WorkerKind
from relevo.policy.scaling.demand import Demand
from relevo.policy.scaling.queueing import Wait, response_quantile, wait_for
from relevo.policy.scaling.worker_times import WorkerTimes

_NINETY, _DEVIATIONS = 0.9, 1.2816  # the 90th percentile, and where it lies on a normal curve
_MOST_LINK_LOAD = 0.8  # of a port, beyond which handoffs queue for it. Arbitrary
_NUM_ROUNDS = 60  # of a damped fixed point. Arbitrary
_CACHE_SHARE = 0.9  # of a pool that prompts of the past may keep while others are computed. Arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What a plan promises: the 90th percentile over all requests, and over all gaps between tokens."""

    ttft_s: float
    itl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutlook:
    """`load`: of what the stage can do at most; 1 and above means a queue that grows without end."""

    role: Role
    load: float
    ttft_p90_s: float = 0.0
    itl_p90_s: float = 0.0
    num_rows: float = 0.0  # that decode at a time on a worker
    hit_fraction: float = 0.0
    limit: str = ""  # what is full, if anything is


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    ttft_p90_s: float
    itl_p90_s: float
    stages: tuple[StageOutlook, ...]

    def misses(self, targets: Targets) -> tuple[str, ...]:
        """A sentence for each promise that would not be kept; none: it holds."""
        found = [stage.limit for stage in self.stages if stage.limit]
        if not found and self.ttft_p90_s > targets.ttft_s:
            found.append(f"TTFT p90 {self.ttft_p90_s:.2f} s is above {targets.ttft_s:g} s")
        if not found and self.itl_p90_s > targets.itl_s:
            found.append(f"ITL p90 {self.itl_p90_s * 1e3:.1f} ms is above {targets.itl_s * 1e3:g} ms")
        return tuple(found)


@dataclass(slots=True)
class Screen:
    """Answers for one demand's samples at any rate. Remembers what prompts cost on each kind of worker."""

    times: WorkerTimes
    _prompts: dict[tuple[WorkerKind, int, bool], list[tuple[float, float]]] = field(default_factory=dict)

    def outlook(self, candidate: Candidate, demand: Demand) -> Outlook:
        if not candidate.is_split:
            only = self.unified(candidate.stages[0], demand)
            return Outlook(ttft_p90_s=only.ttft_p90_s, itl_p90_s=only.itl_p90_s, stages=(only,))
        prefill, decode = candidate.stages
        first, second = self.prefill(prefill, demand), self.decode(decode, demand)
        cutting = self._cutting_load(prefill, decode, demand)
        if cutting > _MOST_LINK_LOAD:
            limit = (
                f"cutting KV of {prefill.kind.spread} for {decode.kind.spread} keeps each prefill worker busy for"
                f" {cutting:.0%} of the time"
            )
            first = replace(first, load=max(first.load, cutting), limit=first.limit or limit)
        return Outlook(ttft_p90_s=first.ttft_p90_s, itl_p90_s=second.itl_p90_s, stages=(first, second))

    def load_limit(self, candidate: Candidate, demand: Demand, targets: Targets, most: float = 8.0) -> float:
        """How many times the rate the promises hold for: the edge of the cliff. 0: not at any rate."""
        low, high = 0.0, most
        for _ in range(12):
            middle = (low + high) / 2
            holds = not self.outlook(candidate, demand.at(middle)).misses(targets)
            low, high = (middle, high) if holds else (low, middle)
        return low

    def prefill(self, stage: Stage, demand: Demand) -> StageOutlook:
        kind, index = stage.kind, self._cache_index(stage, demand)
        costs = self._prompt_costs(kind, index, demand, 0)
        num_servers = stage.num_workers * kind.parallelism.attention_data
        wait = wait_for(demand.requests_per_s, [busy for _, busy in costs], num_servers, demand.burstiness)
        link_load = self._link_load(stage, demand)
        return StageOutlook(
            role=stage.role,
            load=max(wait.load, link_load),
            ttft_p90_s=self._ttft_p90_s(kind, wait, costs),
            hit_fraction=demand.hit_fraction(index),
            limit=_limit(stage, wait.load, link_load),
        )

    def decode(self, stage: Stage, demand: Demand) -> StageOutlook:
        kind, model = stage.kind, self.times.of(stage.kind)
        context = demand.decode_context
        most_rows = _most_rows(kind, context)
        tokens_per_s = demand.requests_per_s / stage.num_workers * demand.mean_output_tokens
        rows = _rows_in_balance(model, tokens_per_s, context, most_rows)
        high = min(most_rows, rows + _DEVIATIONS * sqrt(rows * demand.burstiness))
        link_load = self._link_load(stage, demand)
        is_full = rows >= most_rows
        most_per_s = most_rows / model.step_s(decode_shape(max(1, int(most_rows)), most_rows * context))
        return StageOutlook(
            role=stage.role,
            load=max(tokens_per_s / most_per_s, link_load) if not is_full else max(1.0, tokens_per_s / most_per_s),
            itl_p90_s=model.step_s(decode_shape(ceil(high), ceil(high) * context)),
            num_rows=rows,
            limit=_limit(stage, 1.0 if is_full else 0.0, link_load),
        )

    def unified(self, stage: Stage, demand: Demand) -> StageOutlook:
        """Steps hold a chunk as often as prompts come; while one waits, every step does."""
        kind, model = stage.kind, self.times.of(stage.kind)
        context, index = demand.decode_context, self._cache_index(stage, demand)
        most_rows = _most_rows(kind, context)
        per_worker = demand.requests_per_s / stage.num_workers
        num_new = fmean(sample.num_prompt_tokens - sample.cached[index] for sample in demand.samples)
        rows, mixed_fraction, step_s = 1.0, 0.0, 0.0
        for _ in range(_NUM_ROUNDS):
            decode_s, mixed_s = _mixed_steps(model, kind, rows, context)
            stall = per_worker * num_new * (mixed_s - decode_s) / kind.chunk_tokens
            if stall >= 1.0:
                rows = most_rows
                break
            step_s = decode_s / (1.0 - stall)
            mixed_fraction = min(1.0, per_worker * num_new * step_s / kind.chunk_tokens)
            rows += 0.5 * (min(most_rows, per_worker * demand.mean_output_tokens * step_s) - rows)
        costs = self._prompt_costs(kind, index, demand, max(1, round(rows)))
        num_servers = stage.num_workers * kind.parallelism.attention_data
        wait = wait_for(demand.requests_per_s, [busy for _, busy in costs], num_servers, demand.burstiness)
        high = min(most_rows, rows + _DEVIATIONS * sqrt(rows * demand.burstiness))
        decode_s, mixed_s = _mixed_steps(model, kind, high, context)
        is_full = rows >= 0.999 * most_rows
        return StageOutlook(
            role=stage.role,
            load=max(wait.load, rows / most_rows),
            ttft_p90_s=self._ttft_p90_s(kind, wait, costs),
            itl_p90_s=mixed_s if mixed_fraction > 1.0 - _NINETY else decode_s,
            num_rows=rows,
            hit_fraction=demand.hit_fraction(index),
            limit=_limit(stage, 1.0 if is_full else wait.load, 0.0),
        )

    def best_ttft_s(self, kind: WorkerKind, demand: Demand) -> float:
        """The 90th percentile on idle machines, whatever their number."""
        costs = self._prompt_costs(kind, len(demand.cache_sizes) - 1, demand, 0, alone=True)
        return self.times.front_end_s(kind) + response_quantile(Wait(0.0, 0.0, 0.0), [s for s, _ in costs], _NINETY)

    def best_itl_s(self, kind: WorkerKind, demand: Demand) -> float:
        """Of a row alone."""
        return self.times.of(kind).step_s(decode_shape(1, demand.decode_context))

    def _ttft_p90_s(self, kind: WorkerKind, wait: Wait, costs: Sequence[tuple[float, float]]) -> float:
        return self.times.front_end_s(kind) + response_quantile(wait, [s for s, _ in costs], _NINETY)

    def _cache_index(self, stage: Stage, demand: Demand) -> int:
        """Of what the stage's workers keep together; the CPU's memory adds to it."""
        tokens = _CACHE_SHARE * stage.num_pool_tokens
        if self.times.assumed.cpu_cache_bytes:
            token_bytes = self.times.shape.growing_kv_bytes_per_token(self.times.assumed.kv_value_bytes)
            tokens += stage.num_workers * self.times.assumed.cpu_cache_bytes / token_bytes
        return demand.cache_index(tokens)

    def _prompt_costs(
        self, kind: WorkerKind, index: int, demand: Demand, num_rows: int, *, alone: bool = False
    ) -> list[tuple[float, float]]:
        """(seconds until the first token, seconds of the server that are gone for others) of each sample."""
        rows = 0 if not num_rows else 2 ** (num_rows.bit_length() - 1)  # in powers of two: hardly more is different
        key = (kind, index * 1024 + rows, alone)
        found = self._prompts.get(key)
        if found is None:
            model, width = self.times.of(kind), 1 if alone else kind.parallelism.attention_data
            beside = decode_shape(rows, rows * demand.decode_context)
            load_s = self.times.load_s_per_token() if self.times.assumed.cpu_cache_bytes else 0.0
            found = []
            for sample in demand.samples:
                cached = min(sample.cached[index], sample.num_prompt_tokens - 1)
                in_steps, busy = _prompt_s(model, kind.chunk_tokens, sample.num_prompt_tokens, cached, width, beside)
                found.append((in_steps + load_s * cached, busy))
            self._prompts[key] = found
        return found

    def _cutting_load(self, prefill: Stage, decode: Stage, demand: Demand) -> float:
        """Of the prefill workers, where the decode workers cut heads into another number of parts."""
        spreads = prefill.kind.parallelism, decode.kind.parallelism
        page = self.times.assumed.page_tokens
        each_s = reshard_s(self.times.shape, *spreads, demand.mean_prompt_tokens, page)
        return demand.requests_per_s * each_s / prefill.num_workers

    def _link_load(self, stage: Stage, demand: Demand) -> float:
        """Of the ports of a stage that hands KV over or gets it."""
        assumed = self.times.assumed
        port = assumed.link_bytes_per_s
        if port is None:
            port = stage.kind.device.network_bytes_per_s * stage.kind.num_devices
        num_bytes = demand.mean_prompt_tokens * self.times.shape.growing_kv_bytes_per_token(assumed.kv_value_bytes)
        return demand.requests_per_s * num_bytes / (stage.num_workers * port) if port else inf


def _prompt_s(
    model: StepTimeModel, chunk: int, num_tokens: int, num_cached: int, width: int, beside: StepShape
) -> tuple[float, float]:
    """A prompt in chunks, on `width` ranks that have one each. A last chunk that leaves room in its step is shared."""
    in_steps = busy = 0.0
    done = num_cached
    while done < num_tokens:
        size = min(chunk, num_tokens - done)
        step_s = _chunks_s(model, size, done, width, beside)
        in_steps += step_s
        if size < chunk:  # others' prompts fill it when there are others
            busy += min(step_s, size / chunk * _chunks_s(model, chunk, done, width, beside))
        else:
            busy += step_s
        done += size
    return in_steps, busy


def _chunks_s(model: StepTimeModel, size: int, done: int, width: int, beside: StepShape) -> float:
    step = beside
    for _ in range(width):
        step = step.with_chunk(size, done)
    return model.step_s(step)


def _most_rows(kind: WorkerKind, context: float) -> float:
    """That the pool holds, each with a context in the middle of its answer."""
    return max(1.0, min(kind.max_rows, kind.memory.num_pool_tokens / context))


def _rows_in_balance(model: StepTimeModel, tokens_per_s: float, context: float, most: float) -> float:
    """The number of rows at which a step brings as many tokens as are asked for in its time."""
    low, high = 0.0, most
    for _ in range(_NUM_ROUNDS // 3):
        middle = (low + high) / 2
        rows = max(1, round(middle))
        brings = middle / model.step_s(decode_shape(rows, rows * context))
        low, high = (middle, high) if brings < tokens_per_s else (low, middle)
    return high


def _mixed_steps(model: StepTimeModel, kind: WorkerKind, num_rows: float, context: float) -> tuple[float, float]:
    """A step of decodes alone, and one with a chunk beside them."""
    rows = max(1, round(num_rows))
    decode = decode_shape(rows, rows * context)
    num_cached = max(0.0, context / 2)
    width = kind.parallelism.attention_data
    return model.step_s(decode), _chunks_s(model, kind.chunk_tokens, int(num_cached), width, decode)


def _limit(stage: Stage, load: float, link_load: float) -> str:
    if load >= 1.0:
        what = {PREFILL: "prompts come faster than they can be computed", DECODE: "decode is full"}
        return f"{stage.num_workers} {stage.role} workers are too few: {what.get(stage.role, 'they are full')}"
    if link_load > _MOST_LINK_LOAD:
        return f"handing KV over takes {link_load:.0%} of the network of the {stage.role} workers"
    return ""
