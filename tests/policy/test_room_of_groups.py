"""Models with windows and chunks at the gateway's door: as many requests enter as the worker has blocks for, counted by
KV group.

Red when the door counts the blocks of one group, so that requests wait in a worker out of turn, or counts windows by
the whole context, so that a worker is never full.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_outlook import unified, view

from relevo.core.ids import RequestId, WorkerId
from relevo.core.kv import KVGroup, KVLayout, Reservation
from relevo.core.request import EngineRequest, SamplingParams
from relevo.policy.admission.room import RoomLimits, outlook, way_out
from relevo.policy.routing.worker_choice import Ask, WorkerView
from relevo.policy.worker.intake import num_blocks_for
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig
from relevo.policy.worker.table_rules import table_rules

STEP, SIZE = 512, 16


def layout(first: int, *others: KVGroup) -> KVLayout:
    return KVLayout("m", "bfloat16", SIZE, (KVGroup.full(range(first), 8, 64), *others))


def groups(kind: str, span: int, num_groups: int, each: int) -> list[KVGroup]:
    of_kind = getattr(KVGroup, kind)
    return [of_kind(range(each * place, each * (place + 1)), 8, 64, span) for place in range(1, num_groups + 1)]


MODELS = {
    "gpt-oss-20b": layout(12, *groups("window", 128, 1, 12)),
    "gemma-3-27b": layout(10, *groups("window", 1024, 6, 9)),
    "llama-4-scout": layout(12, *groups("chunk", 8192, 3, 12)),
    "llama": layout(32),
}


def limits(model: str) -> RoomLimits:
    rules = table_rules(MODELS[model])
    return RoomLimits(
        max_running=64,
        max_ahead_tokens=10**6,
        max_ahead_s=1e6,
        block_size=SIZE,
        more_groups=rules,
        max_step_tokens=STEP,
    )


def scheduler(model: str, num_blocks: int, block_size: int = SIZE) -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            worker_id=WorkerId("w"),
            epoch=1,
            first_block_id=0,
            num_blocks=num_blocks,
            block_size=block_size,
            max_batched_tokens=STEP,
            max_prefill_tokens=STEP,
            max_running=64,
            max_model_len=100_000,
            more_groups=table_rules(replace(MODELS[model], block_size=block_size)),
        )
    )


def request(number: int, num_tokens: int) -> EngineRequest:
    prompt = tuple((number + place) % 97 for place in range(num_tokens))
    return EngineRequest(
        request_id=RequestId(f"r{number}"), prompt_token_ids=prompt, sampling=SamplingParams(max_tokens=1, seed=number)
    )


def num_entered(free: WorkerView, ask: Ask, model: str) -> int:
    """So many blocks are enough for one that enters."""
    wanted = next(
        count
        for count in range(10**5)
        if way_out([replace(free, load=replace(free.load, num_free_blocks=count))], ask, limits(model)) is not None
    )
    seen = outlook([replace(free, load=replace(free.load, num_free_blocks=3 * wanted))], ask, 0.0, limits(model))
    assert seen.num_free_slots == 3
    return wanted


@pytest.mark.parametrize("num_tokens", [5, 130, 1000, 9000, 30_000])
@pytest.mark.parametrize("model", MODELS)
def test_the_door_counts_what_a_worker_takes(model: str, num_tokens: int) -> None:
    """Where it computes the prompt itself, and where another one does."""
    counts_as_taken(model, num_tokens, SIZE)


@pytest.mark.parametrize("model", ["gpt-oss-20b", "llama"])
def test_the_door_counts_in_the_blocks_of_each_worker(model: str) -> None:
    """Which may be other than those that the gateway was started with."""
    for num_tokens in (5, 130, 1000):
        counts_as_taken(model, num_tokens, 2 * SIZE)


def counts_as_taken(model: str, num_tokens: int, block_size: int) -> None:
    busy = {"num_in_flight_decodes": 1, "num_reusable_blocks": 0, "num_total_blocks": 10**5}
    ask, alone = Ask(num_tokens=num_tokens), scheduler(model, 10_000, block_size)
    keeps, decodes = (replace(each, block_size=block_size) for each in (unified(**busy), view("d", "decode", **busy)))
    assert num_entered(keeps, ask, model) == alone.config.num_blocks_for(num_tokens)
    assert alone.reserve(request(1, num_tokens), 0) is None
    (reservation,) = alone.take_grants(0)
    assert isinstance(reservation, Reservation)
    assert num_entered(decodes, ask, model) == len(reservation.block_ids)


def test_what_is_on_its_way_is_counted_by_group() -> None:
    free = {"num_total_blocks": 1000, "num_reusable_blocks": 0, "num_in_flight_decodes": 3}
    asked = {"num_in_flight_asked": 2, "in_flight_asked_tokens": 2000}
    first = num_blocks_for(2000, SIZE) + num_blocks_for(1000, SIZE)
    for role, window in (("decode", 9), ("unified", 41)):
        for num_free, has in ((first + 3 * window, True), (first + 3 * window - 1, False)):
            there = view("w", role, **free, **asked, num_free_blocks=num_free)
            assert (way_out([there], Ask(num_tokens=1000), limits("gpt-oss-20b")) is not None) is has


def test_what_is_cached_of_a_prompt_is_not_taken_again() -> None:
    """A window then takes what is found of it, and the rest of the prompt."""
    worker = unified(num_total_blocks=1000, num_reusable_blocks=0, num_in_flight_decodes=1, num_free_blocks=10**4)
    ask = Ask(num_tokens=1000, hit_tokens={worker.ref: 992})
    assert num_entered(worker, ask, "gpt-oss-20b") == 1 + 8 + 1
