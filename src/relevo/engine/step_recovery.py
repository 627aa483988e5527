"""What becomes of a step that raised: the requests that are the reason are found, the step is computed for the others.

Owns which parts of a plan are executed apart. It does not know how a request ends. A step may be executed again as
often as it takes: the same tokens leave the same KV in the same slots, and a draw depends on nothing but its own row.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from relevo.core.baton import SampledToken
from relevo.core.errors import RequestError, StepFailed
from relevo.core.ids import RequestId
from relevo.core.plan import StepFailure, StepPlan, StepResult
from relevo.core.ports import ModelRunner
from relevo.core.prompt_scores import PromptScores
from relevo.policy.worker.suspects import Suspects

log = logging.getLogger("relevo.engine")


def execute_apart(
    runner: ModelRunner, plan: StepPlan, row_requests: Sequence[RequestId], error: Exception
) -> StepResult:
    """`plan` has raised `error`: execute it in parts until every request is computed or known to raise.

    `row_requests`: the request of each row. Those that raise are among the result's failures.
    """
    request_ids = list(dict.fromkeys(row_requests))
    suspects = Suspects(request_ids, _named(error))
    raised = dict.fromkeys(suspects.culprits, error)
    failures: dict[RequestId, StepFailure] = {}  # that the runner tells itself
    sampled: dict[int, tuple[SampledToken, ...]] = {}
    scores: dict[int, PromptScores] = {}
    num_parts = 0
    while group := suspects.next_group:
        num_parts += 1
        places = [place for place, request_id in enumerate(row_requests) if request_id in group]
        try:
            result = runner.execute(plan.part(places))
        except Exception as part_error:
            raised.update(dict.fromkeys(suspects.raised(_named(part_error)), part_error))
            continue
        suspects.passed()
        failures.update(result.failures)
        sampled.update(zip(places, result.sampled, strict=True))
        scores.update({places[index]: told for index, told in result.prompt_scores.items()})
    log.error(
        "step %d failed: %s; of its %d requests these end: %s (found with %d more steps)",
        plan.step_id,
        error,
        len(request_ids),
        ", ".join(raised) or "none, it was transient",
        num_parts,
        exc_info=error,
    )
    rows = tuple(sampled.get(index, ()) for index in range(plan.num_rows))
    failures |= {request_id: _failure(each) for request_id, each in raised.items()}
    return StepResult(plan.step_id, rows, 0.0, failures=failures, prompt_scores=scores)


def end_all(plan: StepPlan, row_requests: Sequence[RequestId], error: Exception) -> StepResult:
    """Of a model with states: they may hold the tokens of the step that raised, so none of it is computed again."""
    log.error(
        "step %d failed: %s; its %d requests end, since their states may have been changed",
        plan.step_id,
        error,
        len(set(row_requests)),
        exc_info=error,
    )
    failures = dict.fromkeys(row_requests, _failure(error))
    return StepResult(plan.step_id, ((),) * plan.num_rows, 0.0, failures=failures)


def _failure(raised: Exception) -> StepFailure:
    if isinstance(raised, RequestError):
        return StepFailure(raised.code, raised.message)
    code = raised.code if isinstance(raised, StepFailed) else StepFailed.code
    return StepFailure(code, f"the engine failed in a step: {raised}")


def _named(error: Exception) -> Collection[str]:
    return error.request_ids if isinstance(error, StepFailed) else ()
