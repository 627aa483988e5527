"""Are two answers to the same question the same? Exactly, or but for a near tie where log probabilities tell of one.

Servers compute sums in an order that depends on what runs beside a request. Where two tokens are as good as equally
likely, the choice between them may follow that rounding; everything after it is another text. Such a pair is equal for
our purposes, and it is noted. Without log probabilities only equal texts are equal.
"""

from __future__ import annotations

from relevo.check.exchange import Answer, TokenLogprob, shortened
from relevo.check.words import Mismatch

NEAR_TIE_NATS = 0.05  # arbitrary: well above float32 and bf16 rounding of logits, well below a meaningful preference


def difference(first: Answer, second: Answer, index: int = 0, second_index: int | None = None) -> str | None:
    """None if the texts of choice `index` are equal, else what differs.

    A character that max_tokens cut in half at the very end may be shown as U+FFFD or left out.
    """
    a = first.text(index).rstrip("\ufffd")
    b = second.text(index if second_index is None else second_index).rstrip("\ufffd")
    if a == b:
        return None
    at = next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start = max(0, at - 20)
    return f"texts part at character {at}: {shortened(a[start : at + 60])!r} and {shortened(b[start : at + 60])!r}"


def is_near_tie(first: Answer, second: Answer, index: int = 0, second_index: int | None = None) -> bool:
    """Whether the first different token was a choice between two that were nearly equally likely."""
    try:
        a, b = first.logprobs(index), second.logprobs(index if second_index is None else second_index)
    except Mismatch:
        return False
    for one, other in zip(a, b, strict=False):
        if one.token != other.token:
            return _gap(one, other.token) < NEAR_TIE_NATS and _gap(other, one.token) < NEAR_TIE_NATS
    return False


def _gap(chosen: TokenLogprob, alternative: str) -> float:
    told = dict(chosen.top)
    return abs(chosen.logprob - told[alternative]) if alternative in told else float("inf")
