"""Many decode steps at once, while nothing is to be decided: what each of them does is known before the first.

A step is quiet if every sequence that runs decodes, none of them ends, none waits, and every block that it needs can
be taken. For drivers whose tokens are known beforehand, such as the simulator. What is here leaves a worker as that
many single steps would: blocks are taken, evicted and become findable in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

from relevo.core.ids import TokenId
from relevo.core.request import EngineRequest
from relevo.policy.worker import worker_requests
from relevo.policy.worker.block_tables import BlockTables
from relevo.policy.worker.intake import num_blocks_for

_TAKE, _REGISTER = 0, 1  # in a step blocks are taken before any becomes findable


def num_quiet_steps(
    running: Sequence[worker_requests.Sequence], num_available: int, block_size: int, at_most: int
) -> int:
    """Of the steps to come; 0: the next one is none. `num_available`: blocks that can be taken."""
    num_steps = at_most
    for sequence in running:
        if not sequence.is_decoding or sequence.copies or sequence.more:
            return 0
        num_steps = min(num_steps, sequence.parent.max_outputs - len(sequence.samples[0].output_token_ids) - 1)
    if not running or num_steps <= 0:
        return 0
    if _num_taken(running, num_steps, block_size) <= num_available:
        return num_steps
    enough, too_many = 0, num_steps
    while too_many - enough > 1:
        middle = (enough + too_many) // 2
        if _num_taken(running, middle, block_size) <= num_available:
            enough = middle
        else:
            too_many = middle
    return enough


def _num_taken(running: Sequence[worker_requests.Sequence], num_steps: int, block_size: int) -> int:
    """Blocks that so many steps need beside those in the tables."""
    return sum(
        max(0, num_blocks_for(len(each.token_ids) + num_steps - 1, block_size) - len(each.block_ids))
        for each in running
    )


def take_quiet_steps(
    running: Sequence[worker_requests.Sequence], tables: BlockTables, block_size: int, token_ids: list[TokenId]
) -> None:
    """A step for each of `token_ids`, which is what every sequence draws in it."""
    num_steps = len(token_ids)
    events: list[tuple[int, int, int]] = []  # (step, what, place in the running order)
    for place, sequence in enumerate(running):
        num_computed = sequence.num_computed
        first = len(sequence.block_ids) * block_size - num_computed + 1  # computes the first token beyond the table
        events += [(step, _TAKE, place) for step in range(first, num_steps + 1, block_size)]
        first = block_size - num_computed % block_size  # fills a block
        events += [(step, _REGISTER, place) for step in range(first, num_steps + 1, block_size)]
        sequence.token_ids.extend(token_ids)
        sequence.samples[0].output_token_ids.extend(token_ids)
    events.sort()
    for step, what, place in events:
        sequence = running[place]
        if what == _TAKE:
            has_room = tables.cover(sequence, sequence.num_computed + step)
            assert has_room, "more steps than are quiet"
        else:
            tables.register(sequence, sequence.num_computed + step)
    for sequence in running:
        sequence.num_computed += num_steps


def may_end(request: EngineRequest, token_ids: frozenset[TokenId]) -> bool:
    """One of the tokens is one that ends a continuation."""
    sampling = request.sampling
    ends = sampling.stop_token_ids if sampling.ignore_eos else sampling.stop_token_ids + request.eos_token_ids
    return not token_ids.isdisjoint(ends)
