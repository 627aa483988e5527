"""After which tokens the state of a sequence is kept, so that another one can begin with it.

A state is written over by every token, so a prefix is a hit only where it was kept; and it takes many blocks, so it is
not kept after each. Kept are, at most, of one sequence:

- the end of what its prompt has in common with another one, as far as that is known: the next may part there, too;
- the last whole block before its last token: the prompt again, or what goes on from it, begins there;
- the last whole block of its answer, each in place of the one before: the next turn begins there.

Pure functions. The first is the speculative insertion of Marconi (Pan et al., MLSys 2025).
"""

from __future__ import annotations

from collections.abc import Sequence


def kept_borders(num_tokens: int, block_size: int, num_hit_blocks: int, num_known_blocks: int) -> tuple[int, ...]:
    """Numbers of tokens, ascending, at which steps of a sequence that starts with so many tokens stop.
    `num_known_blocks`: that layers which keep every token have of it, `num_hit_blocks` of them with a state."""
    last = (num_tokens - 1) // block_size
    chosen = {min(num_known_blocks, last), last}
    return tuple(block * block_size for block in sorted(chosen) if block > num_hit_blocks)


def tokens_to_border(borders: Sequence[int], start: int, num_tokens: int) -> int:
    """Of a step of `num_tokens` from `start` on, those up to the first border in it."""
    return min((border - start for border in borders if start < border < start + num_tokens), default=num_tokens)
