"""Caches of several KV groups change workers: the receiver gets what it can still see, in blocks that nobody else has.

Red if a block of a window stays behind, lands in another's place or in a block that others read, if a hit is longer
than what all groups have, or if anything is still held in the end.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from grouped_model import SIZE, Worker
from hypothesis import given
from hypothesis import strategies as st
from scheduler_model import reference
from test_group_tables import KINDS, request

from relevo.core.baton import Baton, SampleState
from relevo.core.errors import ContextLengthExceeded
from relevo.core.handoff import KVPath, Link
from relevo.core.ids import BlockHash, RequestId
from relevo.core.kv import KVGroup, KVLayout, Reservation
from relevo.core.request import EngineRequest
from relevo.policy.worker.block_pool import BlockPool
from relevo.policy.worker.group_tables import GroupTables
from relevo.policy.worker.intake import Rejected
from relevo.policy.worker.remote_prefill import ComputedPrefix
from relevo.policy.worker.stopping import finish_reason
from relevo.policy.worker.table_rules import num_tail_blocks, table_rules

PATH = KVPath("tcp", "there", Link.NETWORK)
CUT = [kind for kind, rules in KINDS.items() if not any(rule.num_state_blocks for rule in rules)]


class Pair:
    """A sender and a receiver; what the sender computes lands on the receiver at once."""

    def __init__(self, kind: str, num_blocks: int, sizes: tuple[int, int] = (SIZE, SIZE)) -> None:
        """`sizes`: of blocks, of the sender and of the receiver."""
        self.sender = Worker(KINDS[kind], num_blocks, block_size=sizes[0])
        self.receiver = Worker(KINDS[kind], num_blocks, first_block_id=1000, block_size=sizes[1])
        self.size = sizes[1]
        self.rules = tuple(rule.of_size(self.size) for rule in KINDS[kind])
        self.moved: dict[RequestId, int] = {}  # blocks
        self.asked: dict[RequestId, EngineRequest] = {}
        self.num_moved_blocks = self.num_found_blocks = 0

    def ask(self, one: EngineRequest) -> None:
        if self.receiver.scheduler.reserve(one, 0) is None:
            self.asked[one.request_id] = one

    def run(self, rng: Random) -> bool:
        """A step on each side, as far as there is one."""
        granted = self.receiver.scheduler.take_grants(0)
        for reservation in granted:
            self.granted(reservation, rng)
        did = [self.sender.step(), self.receiver.step()]
        taken, self.sender.prefixes = self.sender.prefixes, []
        for prefix in taken:
            self.move(prefix)
        return any(did) or bool(taken or granted)

    def granted(self, reservation: Reservation, rng: Random) -> None:
        one = self.asked[reservation.request_id]
        num_prompt = len(one.prompt_token_ids)
        num_tail = num_tail_blocks(self.rules, num_prompt, reservation.num_found_tokens)
        assert reservation.block_size == self.size
        assert len(reservation.block_ids) == -(-num_prompt // self.size) + num_tail
        assert reservation.num_found_tokens <= reservation.num_hit_tokens
        self.num_found_blocks += num_tail_blocks(self.rules, num_prompt) - num_tail
        assert len(set(reservation.block_ids)) == len(reservation.block_ids)
        chance = rng.random()
        if chance < 0.15:  # nobody computes it: the receiver does
            rejected = self.receiver.scheduler.submit_reserved(one.request_id, (), 0)
        elif chance < 0.25:
            self.receiver.scheduler.abort(one.request_id, writer_active=False)
            del self.asked[one.request_id]
            return
        else:
            self.moved[one.request_id] = 0
            rejected = self.sender.scheduler.prefill_into(one, reservation, 0, path=PATH)
            if rejected is not None and self.size > self.sender.scheduler.config.block_size:  # its pool is smaller
                assert rejected.code == ContextLengthExceeded.code
                rejected = self.receiver.scheduler.submit_reserved(one.request_id, (), 0)
        assert rejected is None

    def move(self, prefix: ComputedPrefix) -> None:
        reservation, one = prefix.reservation, self.asked[prefix.request_id]
        assert prefix.first_index >= reservation.num_hit_blocks
        targets = reservation.block_ids[prefix.first_index :]
        assert len(prefix.blocks) <= len(targets) and (not prefix.is_last or len(prefix.blocks) == len(targets))
        for source, target in zip(prefix.blocks, targets, strict=False):
            assert self.receiver.scheduler.pool.num_refs(target) == 1, "others read what is written"
            self.receiver.model.copy_from(self.sender.model, source, target)
            self.num_moved_blocks += 1
        self.moved[prefix.request_id] += len(prefix.blocks)
        self.check(one, prefix)
        self.receiver.scheduler.seal(prefix.request_id, prefix.num_tokens)
        if not prefix.is_last:
            return
        assert self.moved[prefix.request_id] == len(reservation.block_ids) - reservation.num_hit_blocks
        self.sender.scheduler.finish_transfer(prefix.request_id)
        samples = []
        for index in range(one.sampling.n):
            drawn = self.sender.tokens[prefix.request_id, index]
            self.receiver.tokens[prefix.request_id, index] = list(drawn)
            most = min(one.sampling.max_tokens, 1000 - len(one.prompt_token_ids))
            samples.append(SampleState(index, list(drawn), finish_reason(one, drawn, most)))
        baton = Baton(request_id=prefix.request_id, samples=tuple(samples), num_sealed_tokens=prefix.num_tokens)
        if all(sample.finish_reason for sample in samples):
            self.receiver.scheduler.abort(prefix.request_id, writer_active=False)
        else:
            assert self.receiver.scheduler.start_decode(baton, 0) is None

    def check(self, one: EngineRequest, prefix: ComputedPrefix) -> None:
        """What has moved is whole: every token of each block, not only those that are read next."""
        reservation, prompt = prefix.reservation, tuple(one.prompt_token_ids)
        places = [(index, prefix.num_tokens) for index in range(-(-len(prompt) // self.size))]
        for rule in self.rules:
            num_tokens = 0 if rule.num_state_blocks else len(prompt)  # a state's blocks are looked at when it is read
            places += [(index, num_tokens) for index in rule.tail(len(prompt), reservation.num_found_tokens)]
        moved = slice(prefix.first_index, prefix.first_index + len(prefix.blocks))
        for block, (index, num_tokens) in zip(reservation.block_ids[moved], places[moved], strict=True):
            for position in range(index * self.size, min((index + 1) * self.size, num_tokens)):
                assert self.receiver.model.cell(block, position % self.size) == prompt[: position + 1]


@pytest.mark.parametrize("num_blocks", [36, 200])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_split_answers_are_those_of_each_request_alone(kind: str, seed: int, num_blocks: int) -> None:
    """Every cell that the receiver reads is checked, with hits on both sides, forks, preemptions and rooms given up."""
    split_as_alone(Pair(kind, num_blocks), seed, must_find=kind == "window" and num_blocks == 200)


@pytest.mark.parametrize("num_blocks", [36, 200])
@pytest.mark.parametrize("kind", CUT)
@pytest.mark.parametrize("sizes", [(4, 8), (8, 4), (4, 16), (16, 4), (6, 4), (4, 6)])
def test_split_answers_do_not_hang_on_block_sizes(kind: str, sizes: tuple[int, int], num_blocks: int) -> None:
    """Red when a block is cut at the wrong token, when it goes out before all of it is computed, or when the sender has
    let go of what the receiver's first block of a window needs: that block is found by others as a whole one."""
    for seed in range(2):
        split_as_alone(Pair(kind, num_blocks, sizes), seed, must_find=False)


def split_as_alone(pair: Pair, seed: int, *, must_find: bool) -> None:
    rng, prompts = Random(seed), list[tuple[int, ...]]()
    for number in range(14):
        one = request(number, rng)
        if number > 3 and rng.random() < 0.5:  # a prompt that was there before, and a little more
            prompt = (*rng.choice(prompts), *one.prompt_token_ids[: rng.randrange(6)])
            one = replace(one, prompt_token_ids=prompt)
        prompts.append(one.prompt_token_ids)
        pair.ask(one)
        for _ in range(rng.randrange(5)):
            pair.run(rng)
    while pair.run(rng):
        pass
    assert pair.sender.num_held == pair.receiver.num_held == 0
    assert pair.num_moved_blocks > 0 and not pair.receiver.scheduler.has_work()
    assert pair.num_found_blocks > 0 or not must_find
    longest = pair.receiver.scheduler.config.num_pool_tokens + 1
    for one in pair.asked.values():
        for index in range(one.sampling.n):
            assert pair.receiver.tokens[one.request_id, index] == reference(one, index, longest)[0]


def test_a_room_of_another_size_is_refused() -> None:
    """Of a worker whose layout keeps all."""
    pair, one = Pair("window", 40), request(3, Random(3))
    pair.ask(one)
    (reservation,) = pair.receiver.scheduler.take_grants(0)
    rejected = Worker(()).scheduler.prefill_into(one, reservation, 0, path=PATH)
    assert isinstance(rejected, Rejected) and "is not room" in rejected.reason


def test_what_moves_is_what_the_receiver_can_see() -> None:
    """gpt-oss: after 1,000 tokens the layers with a window of 128 move 127 of them."""
    full, window = KVGroup.full(range(0, 24, 2), 8, 64), KVGroup.window(range(1, 24, 2), 8, 64, 128)
    layout = KVLayout("gpt-oss", "bfloat16", 16, (full, window))
    each = 12 * 2 * 8 * 64 * 2
    assert layout.growing_bytes_per_token == each
    assert layout.tail_bytes(1000) == 127 * each
    assert layout.tail_bytes(60) == 60 * each
    assert layout.sequence_bytes(1000) == 1127 * each
    chunk = KVLayout("m", "bfloat16", 16, (full, KVGroup.chunk(range(1, 24, 2), 8, 64, 128)))
    assert [chunk.tail_bytes(count) // each for count in (127, 128, 129, 300)] == [127, 0, 1, 44]
    assert [layout.tail_bytes(1000, found) // each for found in (0, 864, 880, 992)] == [127, 127, 120, 8]


@pytest.mark.parametrize("kind", ["window", "chunk"])
def test_what_the_receiver_has_of_a_window_stays_where_it_is(kind: str) -> None:
    """A turn of a conversation, decoded there, comes again with a few tokens more. Red when a window is sent whole each
    time, or when what is found is given back while a stream reads it."""
    pair = Pair(kind, 200)
    first = replace_prompt(request(1, Random(1)), tuple(range(100, 150)))
    pair.ask(first)
    while pair.run(Always(0.5)):
        pass
    said = pair.receiver.tokens[first.request_id, 0]
    next_turn = replace_prompt(request(2, Random(1)), (*first.prompt_token_ids, *said, 7))
    num_hits = (len(first.prompt_token_ids) + len(said) - 1) // SIZE
    pair.ask(next_turn)
    pair.num_moved_blocks = 0
    while pair.run(Always(0.5)):
        pass
    num_prompt = len(next_turn.prompt_token_ids)
    assert pair.num_found_blocks > 0
    assert pair.num_moved_blocks == -(-num_prompt // SIZE) - num_hits + sum(
        len(set(rule.tail(num_prompt)) - set(range(num_hits))) for rule in pair.rules
    )
    assert pair.sender.num_held == pair.receiver.num_held == 0
    expected = reference(next_turn, 0, pair.receiver.scheduler.config.num_pool_tokens + 1)[0]
    assert pair.receiver.tokens[next_turn.request_id, 0] == expected


class Always(Random):
    """Every chance comes out alike."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self._chance = chance

    def random(self) -> float:
        return self._chance


def replace_prompt(one: EngineRequest, prompt: tuple[int, ...]) -> EngineRequest:
    sampling = replace(one.sampling, n=1, max_tokens=20, ignore_eos=True)
    return replace(one, prompt_token_ids=prompt, sampling=sampling)


@given(data=st.data(), kind=st.sampled_from(("window", "chunk")), span=st.integers(1, 20), size=st.integers(1, 5))
def test_a_hit_is_the_longest_that_every_group_has(data: st.DataObject, kind: str, span: int, size: int) -> None:
    """Against all prefixes, one by one; groups have lost blocks at random."""
    groups = [KVGroup.full([0], 1, 8)] + [getattr(KVGroup, kind)([layer], 1, 8, span) for layer in (1, 2)]
    rules = table_rules(KVLayout("m", "float32", size, tuple(groups)))
    hashes: list[BlockHash] = [bytes([index]) * 16 for index in range(data.draw(st.integers(0, 12)))]
    pool = BlockPool(0, 100)
    known = [{index for index in range(len(hashes)) if data.draw(st.booleans())} for _ in rules]
    for group, indices in enumerate(known, start=1):
        for index in indices:
            block = pool.allocate(1)
            assert block is not None
            pool.register(block[0], (group, hashes[index]))
    hits = GroupTables(pool, rules, 8).match(hashes)

    def has_all(num_blocks: int) -> bool:
        return all(
            set(range(rule.first(num_blocks * size), num_blocks)) <= has for rule, has in zip(rules, known, strict=True)
        )

    assert hits.num_blocks == max(count for count in range(len(hashes) + 1) if has_all(count))
    assert all(pool.num_refs(block_id) == 1 for block_id in hits.all)
    assert len(hits.all) == (num_tail_blocks(rules, hits.num_blocks * size) if hits.num_blocks else 0)
