"""What the steps of a worker spent their time on, in a stretch of a request's life: its own rows, others, or neither.

From the counters at both ends and the worker's own measured costs of a step. Where the costs are not known, what other
gaps of the request took stands in for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.events import UNKNOWN_COSTS, StepCosts, StepCounters, WorkerLoad

_NEIGHBOUR_FRACTION = 0.2  # of what is not its own: then attention over their context, which no cost counts, is too
_MANY_PROMPT_TOKENS, _MANY_ROWS = 64, 8  # what makes a step long where nothing is known of costs; arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    num_steps: int
    num_rows: int  # decode rows of all steps, its own too
    num_prompt_tokens: int  # of others
    num_kv_tokens: int = 0  # context of all decodes in a step

    @property
    def rows_per_step(self) -> float:
        return self.num_rows / max(self.num_steps, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    own_s: float
    crowd_s: float  # rows of others
    neighbour_s: float  # prompts of others
    unexplained_s: float  # no row accounts for it


def work_between(
    before: StepCounters | None, after: StepCounters | None, load: WorkerLoad | None, num_own_prompt_tokens: int = 0
) -> StepWork | None:
    """`num_own_prompt_tokens`: of the prompt tokens, those of the request itself. None: not known."""
    if before is None or after is None or after.num_steps < before.num_steps:
        return None
    prompt_tokens = after.num_prefill_tokens - before.num_prefill_tokens - num_own_prompt_tokens
    return StepWork(
        num_steps=after.num_steps - before.num_steps,
        num_rows=after.num_generation_tokens - before.num_generation_tokens,
        num_prompt_tokens=max(prompt_tokens, 0),
        num_kv_tokens=load.num_decode_kv_tokens if load is not None else 0,
    )


def shares_of(
    took_s: float,
    work: StepWork,
    costs: StepCosts,
    *,
    num_own_kv_tokens: int,
    num_samples: int = 1,
    typical_step_s: float = 0.0,
) -> StepShares:
    """`typical_step_s`: of other steps of the request, for where costs are not known."""
    if costs == UNKNOWN_COSTS:
        return _without_costs(took_s, work, typical_step_s)
    num_own_rows = min(num_samples * work.num_steps, work.num_rows)
    num_other_kv_tokens = max(work.num_kv_tokens - num_own_kv_tokens, 0)
    own_s = work.num_steps * costs.step_s(0, num_own_kv_tokens) + costs.per_token_s * num_own_rows
    crowd_s = costs.per_token_s * (work.num_rows - num_own_rows)
    crowd_s += work.num_steps * costs.per_kv_token_s * num_other_kv_tokens
    neighbour_s = costs.per_token_s * work.num_prompt_tokens
    told_s = own_s + crowd_s + neighbour_s
    if told_s > took_s:
        scale = took_s / told_s
        return StepShares(
            own_s=own_s * scale, crowd_s=crowd_s * scale, neighbour_s=neighbour_s * scale, unexplained_s=0.0
        )
    unexplained_s = took_s - told_s
    if neighbour_s >= _NEIGHBOUR_FRACTION * (took_s - own_s):
        neighbour_s, unexplained_s = neighbour_s + unexplained_s, 0.0
    return StepShares(own_s=own_s, crowd_s=crowd_s, neighbour_s=neighbour_s, unexplained_s=unexplained_s)


def _without_costs(took_s: float, work: StepWork, typical_step_s: float) -> StepShares:
    own_s = min(typical_step_s * max(work.num_steps, 1), took_s)
    rest_s = took_s - own_s
    is_neighbour = work.num_prompt_tokens >= _MANY_PROMPT_TOKENS
    is_crowd = not is_neighbour and work.rows_per_step >= _MANY_ROWS
    return StepShares(
        own_s=own_s,
        crowd_s=rest_s if is_crowd else 0.0,
        neighbour_s=rest_s if is_neighbour else 0.0,
        unexplained_s=0.0 if is_neighbour or is_crowd else rest_s,
    )
