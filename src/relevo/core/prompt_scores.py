"""How probable a model finds the tokens of a prompt: one piece for each run of positions that a step computed.

Packed, little-endian: a long prompt has as many numbers as it has tokens, times the alternatives that are told.
"""

from __future__ import annotations

from typing import NamedTuple


class PromptScores(NamedTuple):
    """Of n consecutive tokens, k alternatives each; natural logarithms of the distribution as the model computed it."""

    first: int  # position in the prompt; at least 1: nothing comes before the first token, so it has no probability
    num_best: int  # k
    logprobs: bytes  # [n] float64, of the prompt's own tokens
    ranks: bytes  # [n] int32: 1 where no token is more probable
    best_ids: bytes  # [n, k] int32, best first
    best_logprobs: bytes  # [n, k] float64

    @property
    def num_tokens(self) -> int:
        return len(self.ranks) // 4
