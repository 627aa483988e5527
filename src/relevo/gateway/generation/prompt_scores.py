"""What was told of one prompt's probabilities: unpacked as it comes, each token once, in order.

Workers tell some of it twice (after a preemption, or when another one takes over); what is known already is left out.
Does not know how an API shows it: that is a `ScoreWriter`'s.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from relevo.core.errors import WorkerError
from relevo.core.ids import TokenId
from relevo.core.prompt_scores import PromptScores


class ScoredToken(NamedTuple):
    token_id: TokenId
    logprob: float
    rank: int  # 1: no token is more probable
    best: tuple[tuple[TokenId, float], ...]  # best first


class ScoreWriter(Protocol):
    def add(self, tokens: Sequence[ScoredToken]) -> int:
        """What follows what came before; the first is the prompt's second token. Returns about how many bytes it
        takes."""
        ...


class PromptScoring:
    def __init__(self, token_ids: Sequence[TokenId], writer: ScoreWriter) -> None:
        """`token_ids`: of the whole prompt."""
        self._token_ids = token_ids
        self._writer = writer
        self._num_known = 1  # nothing comes before the first token, so there is nothing to know of it

    def check_complete(self) -> None:
        """Raises WorkerError."""
        if self._num_known < len(self._token_ids):
            raise WorkerError(
                f"The worker told the log probabilities of {self._num_known} of {len(self._token_ids)} prompt tokens "
                "and then went on; it cannot compute them, or its version is another than the gateway's."
            )

    def take(self, scores: PromptScores) -> int:
        """Returns about how many bytes more are kept. Raises WorkerError where tokens in between are missing."""
        first, end = scores.first, scores.first + scores.num_tokens
        if end <= self._num_known:
            return 0
        if first > self._num_known or end > len(self._token_ids):
            raise WorkerError(
                f"A worker told the scores of tokens {first} to {end - 1} after {self._num_known} tokens."
            )
        fresh = _unpacked(scores, self._token_ids[first:end])[self._num_known - first :]
        self._num_known = end
        return self._writer.add(fresh)


def _unpacked(scores: PromptScores, token_ids: Sequence[TokenId]) -> list[ScoredToken]:
    logprobs, ranks = _numbers("d", scores.logprobs), _numbers("i", scores.ranks)
    best_ids, best = _numbers("i", scores.best_ids), _numbers("d", scores.best_logprobs)
    tokens, k = [], scores.num_best
    for place, token_id in enumerate(token_ids):
        at = slice(place * k, (place + 1) * k)
        pairs = tuple(zip(map(int, best_ids[at]), best[at], strict=True))
        tokens.append(ScoredToken(token_id, logprobs[place], int(ranks[place]), pairs))
    return tokens


def _numbers(kind: str, packed: bytes) -> array[float]:
    numbers: array[float] = array(kind, packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
