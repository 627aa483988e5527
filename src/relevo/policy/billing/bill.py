"""Which of the tokens of a request are billed, by what ended it.

finished   the prompt, and every output token that `usage` tells
aborted    (its client, its own limits or its key ended it) the prompt if it was computed, and every output token that
           was computed for it, delivered or not
failed     (we ended it) the output tokens that were delivered, and the prompts of those; nothing if nothing was

So what was delivered is billed, whatever ended it. What was computed and is not billed is counted too, so that bill and
work can be compared. The rule for people is in docs/guides/metering.md. Does not know prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relevo.core.outcome import Outcome
from relevo.policy.billing.pricing import BilledTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What was done for one prompt of a request, until it ended."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int  # counted as in `usage`
    num_delivered_tokens: int  # of these, written to the client's stream
    is_prompt_computed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    billed: BilledTokens
    num_unbilled_prompt_tokens: int
    num_unbilled_output_tokens: int


def bill_for(outcome: Outcome, works: Sequence[Work]) -> Bill:
    """`works`: one per prompt of the request."""
    computed = [work for work in works if work.is_prompt_computed or outcome is Outcome.FINISHED]
    paid = [work for work in computed if _num_delivered(work)] if outcome is Outcome.FAILED else computed
    num_output = sum(work.num_output_tokens for work in works)
    num_billed_output = sum(map(_num_delivered, works)) if outcome is Outcome.FAILED else num_output
    num_prompt = sum(work.num_prompt_tokens for work in paid)
    return Bill(
        billed=BilledTokens(
            num_prompt=num_prompt,
            num_cached=sum(min(work.num_cached_tokens, work.num_prompt_tokens) for work in paid),
            num_output=num_billed_output,
        ),
        num_unbilled_prompt_tokens=sum(work.num_prompt_tokens for work in computed) - num_prompt,
        num_unbilled_output_tokens=num_output - num_billed_output,
    )


def so_far(works: Sequence[Work]) -> BilledTokens:
    """What a running request has used of its key's limits: prompts that are not computed yet are reserved whole."""
    return BilledTokens(
        num_prompt=sum(work.num_prompt_tokens for work in works),
        num_cached=sum(
            min(work.num_cached_tokens, work.num_prompt_tokens) for work in works if work.is_prompt_computed
        ),
        num_output=sum(work.num_output_tokens for work in works),
    )


def num_rate_tokens(outcome: Outcome, bill: Bill, num_charged: int) -> int:
    """What an ended request has taken of its key's tokens per minute, of which cached ones are no part.

    A client that ends its request before the prompt is known to be computed gets nothing back: else it could have
    prompts computed without limit by leaving in time.
    """
    billed = bill.billed
    used = billed.num_prompt - billed.num_cached + billed.num_output
    return max(used, num_charged) if outcome is Outcome.ABORTED and not billed.num_prompt else used


def _num_delivered(work: Work) -> int:
    return min(work.num_delivered_tokens, work.num_output_tokens)
