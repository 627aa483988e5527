"""Snapshots of states: what begins with them has the tokens of what is computed whole, and they cost nobody his room.

Red if a hit is longer than what has a state, if a snapshot is written on, if more than the named ones are kept, or if a
running sequence gives way to one.
"""

from __future__ import annotations

from random import Random

import pytest
from grouped_model import SIZE, Worker
from hypothesis import given
from hypothesis import strategies as st
from scheduler_model import reference
from test_group_tables import KINDS

from relevo.core.ids import BlockHash, RequestId
from relevo.core.kv import KVGroup, KVLayout
from relevo.core.request import EngineRequest, SamplingParams
from relevo.policy.worker.block_pool import BlockPool
from relevo.policy.worker.group_tables import GroupTables
from relevo.policy.worker.snapshots import kept_borders, tokens_to_border
from relevo.policy.worker.table_rules import table_rules

RULES = KINDS["state"]
NUM_STATE_BLOCKS = 3


def request(name: str, prompt: tuple[int, ...], max_tokens: int = 11, n: int = 1) -> EngineRequest:
    sampling = SamplingParams(max_tokens=max_tokens, seed=1, n=n, ignore_eos=True)
    return EngineRequest(request_id=RequestId(name), prompt_token_ids=prompt, sampling=sampling)


def served(worker: Worker, one: EngineRequest) -> tuple[list[int], int]:
    """Its tokens, and how many of its prompt were hits."""
    before = worker.scheduler.num_prefix_hits
    assert worker.scheduler.submit(one, (), 0) is None
    while worker.step():
        pass
    for index in range(one.sampling.n):
        assert worker.tokens[one.request_id, index] == reference(one, index, 1000)[0]
    assert worker.num_held == 0
    return worker.tokens[one.request_id, 0], worker.scheduler.num_prefix_hits - before


@pytest.mark.parametrize("length", [*range(1, 14), 30, 32, 33])
def test_a_prompt_that_comes_again_begins_at_its_last_whole_block(length: int) -> None:
    worker, prompt = Worker(RULES, 200), tuple(range(100, 100 + length))
    assert served(worker, request("first", prompt, max_tokens=1))[1] == 0
    for name in ("again", "once more"):
        assert served(worker, request(name, prompt, max_tokens=1))[1] == (length - 1) // SIZE * SIZE


def test_the_next_turn_begins_in_the_answer() -> None:
    worker, prompt = Worker(RULES, 200), tuple(range(100, 130))
    said, _ = served(worker, request("first", prompt))
    assert served(worker, request("next", (*prompt, *said, 7, 8)))[1] == 40  # of 30 + 10 that were computed


def test_prompts_that_part_show_where_the_next_one_may() -> None:
    """Of the second the layers that keep every token have 16, and no state is kept there until it has been by."""
    worker, shared = Worker(RULES, 200), tuple(range(100, 118))
    hits = [served(worker, request(str(turn), (*shared, *range(turn, turn + 20))))[1] for turn in (1, 2, 3, 4)]
    assert hits == [0, 0, 16, 16]


def test_one_sequence_keeps_its_prompt_and_the_end_of_its_answer() -> None:
    worker, prompt = Worker(RULES, 200), tuple(range(100, 130))
    served(worker, request("r", prompt, max_tokens=91))
    num_whole = (30 + 90) // SIZE
    assert worker.scheduler.pool.num_reusable == num_whole + 2 * NUM_STATE_BLOCKS


def test_forks_begin_with_the_state_of_the_prompt_and_go_on_apart() -> None:
    worker, prompt = Worker(RULES, 200), tuple(range(100, 132))  # it ends with a block: forks copy a snapshot
    served(worker, request("r", prompt, n=3))
    assert served(worker, request("again", prompt, n=3))[1] == 28


def test_a_room_has_hits_where_its_worker_could_begin() -> None:
    """The gateway asks whether it computes the rest there. Red when it hears of blocks without a state."""
    worker, prompt = Worker(RULES, 200), tuple(range(100, 130))
    served(worker, request("r", prompt))
    hits = []
    for name, asked in (("parts", (*prompt[:18], 7)), ("again", prompt)):
        assert worker.scheduler.reserve(request(name, asked), 0) is None
        (room,) = worker.scheduler.take_grants(0)
        hits.append((room.num_hit_tokens, room.num_found_tokens))
        assert len(room.block_ids) == -(-len(asked) // SIZE) + NUM_STATE_BLOCKS
        worker.scheduler.abort(RequestId(name), writer_active=False)
    assert hits == [(0, 0), (28, 0)]
    assert worker.num_held == 0


def test_a_snapshot_takes_no_room_from_what_runs() -> None:
    """The pool has just what the request takes: nothing is kept, nothing gives way, and nothing waits."""
    one = request("r", tuple(range(100, 130)), max_tokens=40)
    worker = Worker(RULES, -(-69 // SIZE) + NUM_STATE_BLOCKS)
    assert served(worker, one)[1] == 0
    assert worker.scheduler.num_preemptions == 0
    assert served(worker, request("again", one.prompt_token_ids, max_tokens=40))[1] == 0


@pytest.mark.parametrize("num_blocks", [22, 26, 34])
def test_small_pools_bring_the_same_tokens(num_blocks: int) -> None:
    """Several at once, in a pool where snapshots come and go: each state that is read is checked by the model."""
    rng, worker, asked = Random(num_blocks), Worker(RULES, num_blocks), list[EngineRequest]()
    for number in range(30):
        shared = tuple(range(100, 100 + rng.choice((0, 8, 17, 30))))
        asked.append(request(str(number), (*shared, *(rng.randrange(9) for _ in range(rng.randrange(1, 9)))), n=2))
        assert worker.scheduler.submit(asked[-1], (), 0) is None
        for _ in range(rng.randrange(12)):
            worker.step()
    while worker.step():
        pass
    assert worker.num_held == 0 and worker.scheduler.num_prefix_hits > 0
    for one in asked:
        for index in range(2):
            assert worker.tokens[one.request_id, index] == reference(one, index, 1000)[0]


@given(data=st.data(), size=st.integers(1, 5))
def test_a_hit_is_the_longest_that_every_group_has(data: st.DataObject, size: int) -> None:
    """Against all prefixes, one by one: a window, and two groups of states, of which blocks are lost at random."""
    groups = (KVGroup.full([0], 1, 8), KVGroup.window([1], 1, 8, 6), KVGroup.state([2], 8), KVGroup.state([3], 8))
    rules = table_rules(KVLayout("m", "float32", size, groups))
    hashes: list[BlockHash] = [bytes([index]) * 16 for index in range(data.draw(st.integers(0, 12)))]
    pool, known = BlockPool(0, 100), list[set[int]]()
    for group, rule in enumerate(rules, start=1):
        known.append({index for index in range(len(hashes)) if data.draw(st.booleans())})
        for index in known[-1]:
            block = pool.allocate(1)
            assert block is not None
            key = (group, hashes[index], 0) if rule.num_state_blocks else (group, hashes[index])
            pool.register(block[0], key)

    def has_all(count: int) -> bool:
        in_window = set(range(rules[0].first(count * size), count)) <= known[0]
        return count == 0 or (in_window and all(count - 1 in states for states in known[1:]))

    hits = GroupTables(pool, rules, 8).match(hashes)
    assert hits.num_blocks == max(count for count in range(len(hashes) + 1) if has_all(count))


@given(
    num_tokens=st.integers(1, 200), size=st.integers(1, 20), num_hits=st.integers(0, 10), num_more=st.integers(0, 10)
)
def test_borders_are_few_whole_and_still_to_come(num_tokens: int, size: int, num_hits: int, num_more: int) -> None:
    last = (num_tokens - 1) // size
    num_hits = min(num_hits, last)
    borders = kept_borders(num_tokens, size, num_hits, num_hits + num_more)
    assert len(borders) <= 2 and list(borders) == sorted(set(borders))
    assert all(border % size == 0 and num_hits * size < border < num_tokens for border in borders)
    assert (last * size in borders) == (last > num_hits)
    start, steps = num_hits * size, []
    while start < num_tokens:
        steps.append(tokens_to_border(borders, start, num_tokens - start))
        start += steps[-1]
    assert len(steps) == len(borders) + 1
