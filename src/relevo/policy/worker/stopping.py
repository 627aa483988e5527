"""When a continuation ends. Knows tokens only; stop strings are the gateway's."""

from __future__ import annotations

from collections.abc import Sequence

from relevo.core.ids import TokenId
from relevo.core.request import EngineRequest, FinishReason


def finish_reason(request: EngineRequest, output_token_ids: Sequence[TokenId], max_outputs: int) -> FinishReason | None:
    """Why the continuation ends with its last output token; None if it goes on.

    End-of-sequence and stop tokens count once `min_tokens` are out. `max_outputs` is the effective limit in tokens.
    After end-of-sequence nothing can be of a grammar: with one it always ends the output.
    """
    sampling = request.sampling
    if sampling.grammar is not None and output_token_ids[-1] in request.eos_token_ids:
        return FinishReason.STOP
    if len(output_token_ids) >= sampling.min_tokens:
        last = output_token_ids[-1]
        if last in sampling.stop_token_ids or (last in request.eos_token_ids and not sampling.ignore_eos):
            return FinishReason.STOP
    return FinishReason.LENGTH if len(output_token_ids) >= max_outputs else None


def num_least_output_tokens(request: EngineRequest) -> int:
    """Of each output, if its client stays and no stop string, which a worker does not know, ends it earlier. Batch
    requests: 0, they give their room back at any time; nor is it known how soon a grammar ends."""
    sampling = request.sampling
    if request.terms.is_batch or sampling.grammar is not None:
        return 0
    is_endless = sampling.ignore_eos and not sampling.stop_token_ids
    return sampling.max_tokens if is_endless else min(sampling.min_tokens, sampling.max_tokens)
