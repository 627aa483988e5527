"""Into which pieces a step is cut, so that several stages compute at once: stage 1 a piece, stage 0 the next one.

Pure. A piece needs of the ones before it only their KV, which every stage has written by then: it computes pieces in
order. So a step with pieces in the pipe is for everyone outside the ranks one step: it is planned, it ends and it
fails as a whole. With N stages and n even pieces the pipe is full for n of n + N - 1 turns.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PieceRule:
    tokens: int = 32  # of a piece at least; measured on avx512: a fiftieth slower than 512, 16 a twentieth
    # For each stage behind the first. With fewer pieces the pipe is empty for more than a ninth of the time, and stages
    # that take turns on all cores are faster; more read the weights more often and fill it hardly any better.
    least: int = 8
    most: int = 16

    def ends(self, num_tokens: int, num_stages: int) -> tuple[int, ...]:
        """The token behind the last one of each piece of a step; one piece: it is not cut."""
        count = min(num_tokens // self.tokens, self.most * (num_stages - 1))
        if count < max(2, self.least * (num_stages - 1)):
            return (num_tokens,)
        return tuple(num_tokens * (place + 1) // count for place in range(count))


DEFAULT_RULE = PieceRule()
