"""Log probabilities of prompt tokens, from the logits after the tokens before them.

Owns which rows of a step's logits are computed where prompts are scored, and the arithmetic of a score. How many rows
that are at most is the planner's bound; what becomes of scores is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from relevo.core.errors import StepFailed
from relevo.core.ids import RequestId, TokenId
from relevo.core.plan import StepPlan
from relevo.core.prompt_scores import PromptScores
from relevo.core.replica import ReplicaSequence
from relevo.engine.sampling_math import Logits, best_logprobs, log_normaliser


@dataclass(slots=True)
class LogitRows:
    """Which tokens of a step have logits, in their order, and what each row of them is for."""

    tokens: list[int] = field(default_factory=list)  # places in the step, ascending
    of_draws: list[int] = field(default_factory=list)  # for each row of the plan that draws
    of_scores: dict[int, range] = field(default_factory=dict)  # by place in the plan


def logit_rows(plan: StepPlan, row_ends: Sequence[int], sequences: Sequence[ReplicaSequence]) -> LogitRows:
    """`row_ends`: for each row of the plan, the place in the step after its last token."""
    rows = LogitRows()
    scored = frozenset(plan.scored)
    for place, (end, length, num_draws) in enumerate(zip(row_ends, plan.lengths, plan.num_draws, strict=True)):
        if place in scored:
            num_scored = num_scores(plan.starts[place], length, sequences[place].num_prompt_tokens)
            rows.of_scores[place] = range(len(rows.tokens), len(rows.tokens) + num_scored)
            rows.tokens.extend(range(end - length, end - length + num_scored))
        if num_draws:
            rows.of_draws.append(len(rows.tokens))
            rows.tokens.append(end - 1)
    return rows


def num_scores(start: int, length: int, num_prompt_tokens: int) -> int:
    """Of a row: the token after each of its own, as far as the prompt goes."""
    return max(0, min(start + length, num_prompt_tokens - 1) - start)


def scores_of(
    plan: StepPlan, rows: LogitRows, sequences: Sequence[ReplicaSequence], logits: Logits, vocab_size: int
) -> dict[int, PromptScores]:
    """By place in the plan. Raises StepFailed for a request whose logits hold NaN or infinity."""
    scores = {}
    for place, places in rows.of_scores.items():
        request, first = sequences[place].request, plan.starts[place] + 1
        token_ids = request.prompt_token_ids[first : first + len(places)]
        num_best = request.sampling.num_prompt_logprobs or 0
        own = logits[places.start : places.stop, :vocab_size]
        scores[place] = score(own, token_ids, first, num_best, request.request_id)
    return scores


def score(
    logits: Logits, token_ids: Sequence[TokenId], first: int, num_best: int, request_id: RequestId
) -> PromptScores:
    """logits: [n, V], of the distribution that each of the n tokens is one of; `first`: position of the first one."""
    num_tokens, num_best = len(token_ids), min(num_best, logits.shape[1])
    logprobs = np.empty(num_tokens, dtype="<f8")
    ranks = np.empty(num_tokens, dtype="<i4")
    best_ids = np.empty((num_tokens, num_best), dtype="<i4")
    best = np.empty((num_tokens, num_best), dtype="<f8")
    for index, token_id in enumerate(token_ids):
        row = logits[index]
        normaliser = log_normaliser(row)
        if not math.isfinite(normaliser):
            raise StepFailed(
                f"the model computed NaN or infinity in the prompt of request {request_id}; check the dtype of the "
                "weights and whether the file is damaged",
                request_ids=[request_id],
            )
        logprobs[index] = float(row[token_id]) - normaliser
        ranks[index] = 1 + np.count_nonzero(row > row[token_id])
        for rank, (best_id, logprob) in enumerate(best_logprobs(row, normaliser, num_best)):
            best_ids[index, rank], best[index, rank] = best_id, logprob
    return PromptScores(first, num_best, logprobs.tobytes(), ranks.tobytes(), best_ids.tobytes(), best.tobytes())
