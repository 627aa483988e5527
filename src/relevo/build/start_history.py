"""What `--topology auto` starts from where a history is named: the demand of the busiest hour of a trace or the ledger,
and what steps cost when this model was served here before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from relevo.build.configs import HistoryConfig, ServedModelConfig
from relevo.build.ledger import database_location, open_prepared, traffic_folder
from relevo.build.metering import unix_ms
from relevo.build.plan import ServePlan
from relevo.build.resolve import ModelPlan
from relevo.build.served_history import HistoryAsk, NoHistory, last_costs, read_history
from relevo.core.errors import SettingsError
from relevo.policy.host.auto_mode import AUTO_ITL_S, AUTO_TTFT_S
from relevo.policy.scaling.demand import Sample, strata
from relevo.policy.scaling.screen import Targets
from relevo.settings import Settings
from relevo.sim.planned_load import opened
from relevo.sim.reuse import hit_blocks
from relevo.workload.busiest import busiest_hour
from relevo.workload.requests import WorkloadRequest
from relevo.workload.timing import Timing, time_workload
from relevo.workload.traces.files import read_trace_file

LEDGER = "ledger"
_DAYS = 7  # arbitrary: a week has every hour of a week
_NUM_SAMPLES = 64  # that stand for all. Arbitrary


def with_histories(plan: ServePlan, settings: Settings) -> ServePlan:
    """Raises SettingsError, StartError for a history that was named and cannot be read."""
    models, notes = [], list(plan.notes)
    for model in plan.models:
        asked = model.ask.settings.auto_from
        if asked is None:
            models.append(model)
            continue
        found = _from_ledger(model, settings) if asked == LEDGER else _from_trace(model, Path(asked))
        if isinstance(found, str):
            notes.append(f"auto: {found}; it starts as {model.topology} and learns from what comes")
            models.append(model)
            continue
        costs = last_costs(traffic_folder(settings.data_dir), model.ask.model_hash)
        models.append(_with(model, msgspec.structs.replace(found, costs=costs)))
    gateway = msgspec.structs.replace(plan.gateway, models=tuple(model.served for model in models))
    return replace(plan, models=tuple(models), gateway=gateway, notes=tuple(notes))


def _with(model: ModelPlan, history: HistoryConfig) -> ModelPlan:
    served: ServedModelConfig = msgspec.structs.replace(model.served, history=history)
    return replace(model, served=served)


def _from_trace(model: ModelPlan, path: Path) -> HistoryConfig:
    """What a cache of this server's size would hit comes from the trace's hash chains."""
    try:
        requests = time_workload(read_trace_file(path), Timing()).requests
    except ValueError as error:
        raise SettingsError(f"--auto-from {path}: {error}") from error
    slo = Targets(ttft_s=model.served.slo_ttft_s or AUTO_TTFT_S, itl_s=model.served.slo_itl_s or AUTO_ITL_S)
    requests = opened(requests, slo)
    tokens = [request.num_prompt_tokens + request.num_output_tokens for request in requests]
    _, places = busiest_hour([request.arrived_at_s or 0.0 for request in requests], tokens)
    busiest = [requests[place] for place in places]
    fitting = [r for r in busiest if r.num_prompt_tokens + r.num_output_tokens <= model.served.max_model_len]
    if len(fitting) < 2:
        raise SettingsError(
            f"--auto-from {path}: {len(fitting)} of its {len(requests)} requests fit --max-model-len"
            f" {model.served.max_model_len}; give a trace of what this model is to be asked for"
        )
    size = next((request.hash_block_size for request in fitting if request.hash_ids), 1)
    capacity = sum(worker.num_blocks for worker in model.workers) * model.served.block_size
    hits = hit_blocks(fitting, size, capacity)
    rows = [
        (r.arrived_at_s or 0.0, Sample(r.num_prompt_tokens, r.num_output_tokens, (_cached(r, number, size),)))
        for r, number in zip(fitting, hits, strict=True)
    ]
    return _config(f"{path.name} ({len(fitting):,} requests)", rows)


def _cached(request: WorkloadRequest, num_hit_blocks: int | None, block_size: int) -> int:
    """The last token of a prompt is always computed."""
    return min((num_hit_blocks or 0) * block_size, request.num_prompt_tokens - 1)


def _from_ledger(model: ModelPlan, settings: Settings) -> HistoryConfig | str:
    """What was cached then is taken for cached. A text: why there is no history; a first start has none."""
    name = model.served.served_model_names[0]
    ask = HistoryAsk(days=_DAYS, folder=traffic_folder(settings.data_dir), model=name, now_ms=unix_ms())
    connection = open_prepared(_database(settings))
    try:
        history = read_history(ask, connection).busiest_hour()
    except NoHistory as none:
        return none.found
    finally:
        connection.close()
    label = f"the busiest hour of the last {_DAYS} days ({len(history.requests):,} requests, {history.source})"
    rows = [
        (each.at_s, Sample(each.num_prompt_tokens, max(1, each.num_output_tokens), (each.num_cached_tokens,)))
        for each in history.requests
    ]
    return _config(label, rows)


def _database(settings: Settings) -> str:
    """Raises SettingsError where nothing is kept."""
    location = database_location(settings.data_dir, settings.database_url)
    if location == "memory":
        raise SettingsError("--auto-from ledger: --database-url memory keeps nothing; name a trace instead")
    return location


def _config(source: str, rows: Sequence[tuple[float, Sample]]) -> HistoryConfig:
    """`rows`: when each request came, in order, and what it was."""
    span_s = max(1.0, rows[-1][0] - rows[0][0])
    samples = [sample for _, sample in rows]
    chosen = strata([sample.num_prompt_tokens for sample in samples], _NUM_SAMPLES)
    return HistoryConfig(
        source=source,
        requests_per_s=len(rows) / span_s,
        samples=tuple(
            (samples[row].num_prompt_tokens, samples[row].num_output_tokens, samples[row].cached[0]) for row in chosen
        ),
        longest_tokens=max(sample.num_prompt_tokens + sample.num_output_tokens for sample in samples),
    )
