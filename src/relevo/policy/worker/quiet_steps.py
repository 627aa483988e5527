"""Many decode steps at once, while nothing is to be decided: what each of them does is known before the first.

A step is quiet if every sequence that runs decodes, none waits, and every block that it needs can be taken; those that
have all their tokens end with the last one of several. For drivers whose tokens are known beforehand, such as the
simulator. What is here leaves a worker as that many single steps would: blocks are taken, evicted and become findable
in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relevo.core.ids import TokenId
from relevo.core.request import EngineRequest, FinishReason
from relevo.policy.worker import worker_requests
from relevo.policy.worker.block_tables import BlockTables
from relevo.policy.worker.intake import num_blocks_for

_TAKE, _REGISTER, _END = 0, 1, 2  # what a step does, in this order, the last two for one sequence after the other


def num_quiet_steps(
    running: Sequence[worker_requests.Sequence], num_available: int, block_size: int, at_most: int
) -> int:
    """Of the steps to come; 0: the next one is none. `num_available`: blocks that can be taken. With the last of them
    sequences may end."""
    num_steps = at_most
    for sequence in running:
        if not sequence.is_decoding or sequence.copies or sequence.more:
            return 0
        num_steps = min(num_steps, sequence.parent.max_outputs - len(sequence.samples[0].output_token_ids))
    if not running or num_steps <= 0:
        return 0
    if num_taken(running, num_steps, block_size) <= num_available:
        return num_steps
    enough, too_many = 0, num_steps
    while too_many - enough > 1:
        middle = (enough + too_many) // 2
        if num_taken(running, middle, block_size) <= num_available:
            enough = middle
        else:
            too_many = middle
    return enough


def num_taken(running: Sequence[worker_requests.Sequence], num_steps: int, block_size: int) -> int:
    """Blocks that so many steps need beside those in the tables."""
    return sum(
        max(0, num_blocks_for(len(each.token_ids) + num_steps - 1, block_size) - len(each.block_ids))
        for each in running
    )


def take_quiet_steps(
    running: Sequence[worker_requests.Sequence],
    tables: BlockTables,
    block_size: int,
    token_ids: list[TokenId],
    finish: Callable[[worker_requests.Sequence], None],
) -> None:
    """A step for each of `token_ids`, which is what every sequence draws in it. `finish` is told of those that end."""
    num_steps = len(token_ids)
    events: list[tuple[int, bool, int, int]] = []  # (step, whether it is over, place in the running order, what)
    for place, sequence in enumerate(running):
        num_computed, sample = sequence.num_computed, sequence.samples[0]
        first = len(sequence.block_ids) * block_size - num_computed + 1  # computes the first token beyond the table
        events += [(step, False, place, _TAKE) for step in range(first, num_steps + 1, block_size)]
        first = block_size - num_computed % block_size  # fills a block
        events += [(step, True, place, _REGISTER) for step in range(first, num_steps + 1, block_size)]
        sample.output_token_ids.extend(token_ids)
        if len(sample.output_token_ids) < sequence.parent.max_outputs:
            sequence.token_ids.extend(token_ids)
        else:
            sequence.token_ids.extend(token_ids[:-1])
            sample.finish_reason = FinishReason.LENGTH
            events.append((num_steps, True, place, _END))
    events.sort()
    for step, _, place, what in events:
        sequence = running[place]
        if what == _TAKE:
            has_room = tables.cover(sequence, sequence.num_computed + step)
            assert has_room, "more steps than are quiet"
        elif what == _REGISTER:
            tables.register(sequence, sequence.num_computed + step)
        else:
            finish(sequence)
    for sequence in running:
        if sequence.samples[0].finish_reason is None:
            sequence.num_computed += num_steps


def may_end(request: EngineRequest, token_ids: frozenset[TokenId]) -> bool:
    """One of the tokens is one that ends a continuation."""
    sampling = request.sampling
    ends = sampling.stop_token_ids if sampling.ignore_eos else sampling.stop_token_ids + request.eos_token_ids
    return not token_ids.isdisjoint(ends)
