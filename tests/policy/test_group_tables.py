"""KV groups that do not keep every token: what a step reads is held, what has slid out is given back.

Red when a block is let go while a step can still read it, is kept for ever, is counted wrongly before a sequence
starts, or when a fork shares what it writes.
"""

from __future__ import annotations

from random import Random

import pytest
from grouped_model import SIZE, Worker
from hypothesis import given
from hypothesis import strategies as st
from scheduler_model import reference

from relevo.core.errors import UnsupportedModel
from relevo.core.ids import RequestId
from relevo.core.kv import KVGroup, KVLayout
from relevo.core.request import EngineRequest, SamplingParams
from relevo.policy.worker.block_pool import BlockPool
from relevo.policy.worker.group_tables import GroupTables
from relevo.policy.worker.intake import Rejected
from relevo.policy.worker.table_rules import NO_BLOCK, TableRule, table_rules

FULL = KVGroup.full([0], 1, 8)


def rules_for(*groups: KVGroup) -> tuple[TableRule, ...]:
    return table_rules(KVLayout("m", "float32", SIZE, (FULL, *groups)))


KINDS = {
    "window": rules_for(KVGroup.window([1], 1, 8, 6)),
    "narrow window": rules_for(KVGroup.window([1], 1, 8, 1)),
    "chunk": rules_for(KVGroup.chunk([1], 1, 8, 8)),
    "odd chunk": rules_for(KVGroup.chunk([1], 1, 8, 5)),
    "state": rules_for(KVGroup.state([1, 2, 3], 200)),  # a layer per block of 256 bytes
    "full": rules_for(KVGroup.full([1], 1, 8)),
    "all": rules_for(
        KVGroup.window([1], 1, 8, 6), KVGroup.chunk([2], 1, 8, 8), KVGroup.state([3], 100), KVGroup.latent([4], 16)
    ),
}


@given(data=st.data(), kind=st.sampled_from(("window", "chunk")), span=st.integers(1, 30), size=st.integers(1, 7))
def test_a_step_finds_what_it_reads(data: st.DataObject, kind: str, span: int, size: int) -> None:
    """Chunks of any size up to the largest step; then one token at a time."""
    rule = TableRule(getattr(KVGroup, kind)([0], 1, 8, span), size)
    max_step, num_prompt = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 80))
    pool = BlockPool(0, 200)
    groups = GroupTables(pool, (rule,), max_step)
    opened = pool.allocate(groups.most(num_prompt))
    assert opened is not None
    tables, _ = groups.open(opened, num_prompt)
    (table,) = tables
    num_computed = 0
    while num_computed < num_prompt + 40:
        num_known = max(num_prompt, num_computed + 1)
        groups.slide(tables, num_computed, num_known)
        if num_computed < num_prompt:  # what was opened suffices
            num_tokens = data.draw(st.integers(1, min(max_step, num_prompt - num_computed)))
        else:
            new, num_tokens = pool.allocate(groups.num_missing(tables, num_known)), 1
            assert new is not None
            groups.extend(tables, new, num_known)
        needed = table.block_ids[rule.first(num_computed) : rule.end(num_computed + num_tokens)]
        assert len(needed) == rule.end(num_computed + num_tokens) - rule.first(num_computed)
        assert NO_BLOCK not in needed and len(set(table.held)) == len(table.held)
        assert len(table.held) == pool.num_held <= groups.most(num_known)
        num_computed += num_tokens
    groups.release(tables)
    assert pool.num_free == 200


def test_a_window_holds_as_much_for_a_million_tokens_as_for_a_thousand() -> None:
    (window,), (state,) = KINDS["window"], KINDS["state"]
    assert window.most(1_000_000, 512) == window.most(1_000, 512) == -(-(5 + 512) // SIZE) + 1
    assert state.most(1_000_000, 512) == 3


def request(number: int, rng: Random) -> EngineRequest:
    return EngineRequest(
        request_id=RequestId(f"r{number}"),
        prompt_token_ids=(
            *range(rng.choice((0, 8, 23, 30))),
            *(rng.randrange(50) for _ in range(rng.randrange(1, 25))),
        ),
        sampling=SamplingParams(
            max_tokens=rng.randrange(1, 40), n=rng.choice((1, 1, 2, 3)), seed=number, ignore_eos=rng.random() < 0.7
        ),
        eos_token_ids=(0,),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_a_scheduler_with_several_groups_brings_what_each_request_brings_alone(kind: str, seed: int) -> None:
    """Chunks, batches, hits, forks, preemptions and aborts in a pool too small for all; each cell is checked."""
    rng, worker = Random(seed), Worker(KINDS[kind])
    asked: dict[RequestId, EngineRequest] = {}
    aborted = set()
    for number in range(14):
        one = request(number, rng)
        if worker.scheduler.submit(one, (), 0) is None:
            asked[one.request_id] = one
        for _ in range(rng.randrange(6)):
            leaves = rng.choice(list(asked)) if asked and rng.random() < 0.1 else None
            aborted |= {leaves}
            worker.step(leaves)
    while worker.step():
        pass
    assert worker.num_held == 0 and not worker.scheduler.has_work()
    longest = worker.scheduler.config.num_pool_tokens + 1
    for one in asked.values():
        for index in range(one.sampling.n):
            if one.request_id not in aborted:
                assert worker.tokens[one.request_id, index] == reference(one, index, longest)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_such_schedules_preempt_and_slide(kind: str) -> None:
    """Red when the requests above no longer reach what they are for."""
    worker = Worker(KINDS[kind])
    for number in range(14):
        worker.scheduler.submit(request(number, Random(number)), (), 0)
    while worker.step():
        pass
    assert worker.scheduler.num_preemptions > 0
    assert (worker.model.num_freed_entries > 0) == (kind not in ("state", "full"))
    assert worker.scheduler.num_prefix_hits > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_request_that_is_accepted_runs_alone(kind: str) -> None:
    """Red when fewer blocks are counted than a sequence takes (it would wait for ever), or more than there are."""
    worker = Worker(KINDS[kind], num_blocks=30)
    most = worker.scheduler.config.num_pool_tokens
    assert worker.scheduler.config.num_blocks_for(most) <= 30 < worker.scheduler.config.num_blocks_for(most + 1)

    def of(num_prompt: int) -> EngineRequest:
        sampling = SamplingParams(max_tokens=9, seed=1, ignore_eos=True)
        return EngineRequest(request_id=RequestId("r"), prompt_token_ids=(1,) * num_prompt, sampling=sampling)

    assert isinstance(worker.scheduler.submit(of(most), (), 0), Rejected)
    assert worker.scheduler.submit(of(most - 5), (), 0) is None
    while worker.step():
        pass
    assert len(worker.tokens[RequestId("r"), 0]) == 6  # the last one is drawn and never stored
    assert worker.num_held == 0


def test_layouts_that_blocks_cannot_hold_are_refused_in_one_sentence() -> None:
    with pytest.raises(
        UnsupportedModel, match="the first KV group must keep every token, and it is window of 6 tokens"
    ):
        table_rules(KVLayout("m", "float32", SIZE, (KVGroup.window([0], 1, 8, 6), FULL)))
    with pytest.raises(UnsupportedModel, match=r"has 256 bytes and the state of a layer 1000; .* at least 16"):
        rules_for(KVGroup.state([1], 1000))
