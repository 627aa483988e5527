"""Step times of a worker that ran here: from a scrape of `/metrics`, or from `relevo bench engine --json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from relevo.core.errors import StartError
from relevo.core.events import StepCosts
from relevo.policy.perf.step_costs import StepCostModel
from relevo.policy.perf.step_time import FittedStepTimes

_FIELDS = {"step": "base_s", "token": "per_token_s", "kv_token": "per_kv_token_s"}
_LONGEST_S = 60.0  # arbitrary
_METRIC = "relevo:step_cost_seconds"


def read_metrics(text: str) -> dict[str, FittedStepTimes]:
    """By worker, of those that have computed steps. Raises StartError if the scrape is of no gateway of ours."""
    costs: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == _METRIC:
                costs.setdefault(sample.labels["worker"], {})[_FIELDS[sample.labels["per"]]] = sample.value
    if not costs:
        raise StartError(f"the scrape has no {_METRIC}: take it from /metrics of a Relevo gateway with workers")
    return {worker: _times(StepCosts(**found)) for worker, found in costs.items() if any(found.values())}


def read_engine_report(parsed: Mapping[str, Any]) -> FittedStepTimes:
    """Fitted as a live worker fits its own steps. Raises StartError if the file is another report."""
    if "prefill" not in parsed or "decode" not in parsed:
        raise StartError("not a report of `relevo bench engine --json`: it has no prefill and decode rows")
    measured = StepCostModel()
    for row in parsed["prefill"]:
        num_prompt, num_steps = row["prompt_len"], row["num_steps"]
        prompt_s = num_prompt / row["tokens_per_s"]["median"]
        mean_context = num_prompt * (num_steps + 1) / (2 * num_steps)  # at the ends of equal chunks
        measured.observe(round(num_prompt / num_steps), round(mean_context), prompt_s / num_steps)
    for row in parsed["decode"]:
        measured.observe(row["batch_size"], row["batch_size"] * row["context"], row["step_s"]["median"])
    return _times(measured.costs)


def _times(costs: StepCosts) -> FittedStepTimes:
    """Raises StartError for costs with which virtual time would stand still, or run back."""
    seconds = (costs.base_s, costs.per_token_s, costs.per_kv_token_s)
    if not all(0.0 <= each <= _LONGEST_S for each in seconds) or not any(seconds):
        raise StartError(
            f"a step costs {costs.base_s:g} s, a token {costs.per_token_s:g} s and a KV token"
            f" {costs.per_kv_token_s:g} s; expected 0 to {_LONGEST_S:g}, and not all of them 0"
        )
    return FittedStepTimes(costs)
