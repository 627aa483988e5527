"""Which of the tokens of a request are billed, by how it ended.

finished   the prompt, and every output token that `usage` tells
aborted    the prompt if it was computed, and the output tokens that were written to the client
failed     nothing: the failure was ours

What was computed and is not billed is counted too, so that bill and work can be compared. The rule for people is in
docs/guides/metering.md. Does not know prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from relevo.policy.pricing import BilledTokens


class Outcome(StrEnum):
    """How a request ended. Every admitted request has exactly one."""

    FINISHED = "finished"
    ABORTED = "aborted"  # the client left
    FAILED = "failed"


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
    num_prompt = sum(work.num_prompt_tokens for work in computed)
    num_cached = sum(min(work.num_cached_tokens, work.num_prompt_tokens) for work in computed)
    num_output = sum(work.num_output_tokens for work in works)
    if outcome is Outcome.FAILED:
        return Bill(billed=BilledTokens(), num_unbilled_prompt_tokens=num_prompt, num_unbilled_output_tokens=num_output)
    num_billed_output = num_output
    if outcome is Outcome.ABORTED:
        num_billed_output = sum(min(work.num_delivered_tokens, work.num_output_tokens) for work in works)
    return Bill(
        billed=BilledTokens(num_prompt=num_prompt, num_cached=num_cached, num_output=num_billed_output),
        num_unbilled_prompt_tokens=0,
        num_unbilled_output_tokens=num_output - num_billed_output,
    )
