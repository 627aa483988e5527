"""Where a model's layers are cut into pipeline stages: by bytes, not by count. Pure.

A stage is a run of layers. The first one also holds what stands before them (the embedding), the last one what stands
behind (the output layer). Every stage has a layer at least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

_SEARCH_STEPS = 60  # halvings of a bound on bytes or tokens: exact to one
_Filled = Callable[[float, float], list[range] | None]  # tokens and bytes per stage; None: it cannot be


def even_stages(sizes: Sequence[float], ends: tuple[float, float], num_stages: int) -> list[range]:
    """The layers of each stage, so that the fullest is smallest. `sizes`: bytes of each layer; `ends`: what the first
    stage and the last hold besides. At most as many stages as layers."""
    if num_stages == 1:
        return [range(len(sizes))]
    return _even(_filling(sizes, ends, [0.0] * len(sizes), num_stages), sum(sizes) + sum(ends))


def roomiest_stages(
    fixed: Sequence[float], ends: tuple[float, float], token_bytes: Sequence[float], num_stages: int, room: float
) -> list[range]:
    """The layers of each stage, so that the fullest has room for most tokens. `fixed`: bytes of each layer that do not
    depend on how many; `room`: bytes of a stage. As even as may be where not even these fit."""
    if num_stages == 1:
        return [range(len(fixed))]
    filled = _filling(fixed, ends, token_bytes, num_stages)
    low, high = 0.0, room / max(min(token_bytes, default=1.0), 1.0)
    best = filled(0.0, room)
    if best is None:
        return _even(filled, sum(fixed) + sum(ends))
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        cut = filled(middle, room)
        low, high, best = (middle, high, cut) if cut is not None else (low, middle, best)
    return best


def _filling(
    fixed: Sequence[float], ends: tuple[float, float], token_bytes: Sequence[float], num_stages: int
) -> _Filled:
    assert 1 <= num_stages <= len(fixed), f"{len(fixed)} layers cannot be {num_stages} stages"
    sizes = [0.0, *accumulate(fixed)]
    tokens = [0.0, *accumulate(token_bytes)]

    def filled(num_tokens: float, budget: float) -> list[range] | None:
        """Each stage as full as it may be; None: the layers do not all find a place."""
        cut, first = [], 0
        for stage in range(num_stages):
            spare = budget - (ends[0] if stage == 0 else 0.0) - (ends[1] if stage == num_stages - 1 else 0.0)
            last, most = first, len(fixed) - (num_stages - 1 - stage)  # every later stage has a layer at least
            while last < most:
                taken = sizes[last + 1] - sizes[first] + num_tokens * (tokens[last + 1] - tokens[first])
                if taken > spare and last > first:
                    break
                if taken > spare:
                    return None
                last += 1
            cut.append(range(first, last))
            first = last
        return cut if first == len(fixed) else None

    return filled


def _even(filled: _Filled, total: float) -> list[range]:
    low, high = 0.0, total * (1 + 1e-9)  # sums of floats, added in two orders
    best = filled(0.0, high)
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        cut = filled(0.0, middle)
        low, high, best = (low, middle, cut) if cut is not None else (middle, high, best)
    assert best is not None, "all layers fit into one stage of that size"
    return best
