"""Into which pieces a step is cut, so that several stages compute at once: stage 1 a piece, stage 0 the next one.

Pure. A piece needs of the ones before it only their KV, which every stage has written by then: it computes pieces in
order. So a step with pieces in the pipe is for everyone outside the ranks one step: it is planned, it ends and it
fails as a whole. With N stages and n even pieces the pipe is filled for n of n + N - 1 turns.
"""

from __future__ import annotations

PIECE_TOKENS = 64  # measured: with fewer, reading the weights again for each piece costs more than a fuller pipe brings
_ROUND_TO = 16  # arbitrary: kernels compute tokens some at a time


def piece_ends(num_tokens: int, num_stages: int, piece_tokens: int = PIECE_TOKENS) -> tuple[int, ...]:
    """The token behind the last one of each piece. Steps of less than two pieces are not cut: those that decode read
    weights more than they compute."""
    count = num_tokens // piece_tokens
    if num_stages == 1 or count < 2:
        return (num_tokens,)
    size = -(-num_tokens // count)
    size += -size % min(_ROUND_TO, piece_tokens)
    return (*range(size, num_tokens, size), num_tokens)
