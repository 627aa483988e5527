"""What one output token costs a step, by how it is drawn, in tokens that are drawn plainly.

Edited logits and log probabilities take time of their own in every step, and all others in the step wait for them.
"""

from __future__ import annotations

from relevo.core.request import SamplingParams

EDITED = 0.5  # measured: about half of a plain row's share of a step of 64 rows, SmolLM2 135M on two cores
LOGPROBS = 0.5  # measured, likewise


def output_token_price(sampling: SamplingParams) -> float:
    is_edited = (
        bool(sampling.logit_bias)
        or sampling.min_tokens > 0
        or sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty != 0.0
        or sampling.presence_penalty != 0.0
    )
    return 1.0 + EDITED * is_edited + LOGPROBS * (sampling.num_logprobs is not None)
