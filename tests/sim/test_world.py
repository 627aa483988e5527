"""A simulated world serves requests as a live one does, and leaves nothing behind."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from worlds import LAYOUT, assert_nothing_is_left, chat, config, split, worker

from relevo.sim.clients import Habits
from relevo.sim.config import Fault, FaultKind, NetworkSpec, RegionSpec, ServingSpec, WorldConfig
from relevo.sim.results import RequestOutcome, WorldResult
from relevo.sim.world import World
from relevo.workload.requests import Workload, WorkloadRequest

FINISHED = RequestOutcome.FINISHED


def assert_whole(result: WorldResult, workload: Workload) -> None:
    """Every request has all its tokens, in time order, after its arrival."""
    rows = {row.row: row for row in workload.requests}
    assert sorted(each.row for each in result.requests) == sorted(rows)
    for each in result.requests:
        times = [at_ns for run in each.token_at_ns for at_ns in run]
        assert each.outcome is FINISHED, each
        assert len(times) == rows[each.row].num_output_tokens
        assert times == sorted(times) and times[0] > each.arrived_at_ns


@pytest.mark.parametrize("num_gateways", [1, 2])
@pytest.mark.parametrize("shares_memory", [False, True])
def test_split_and_shared_worlds_answer_every_request(num_gateways: int, shares_memory: bool) -> None:
    workload = chat(150, 25.0)
    network = NetworkSpec(shares_memory=shares_memory)
    box = {"box": "one"} if shares_memory else {}
    world = World(config(split(2, 2, **box), num_gateways, network=network), workload)
    result = world.run()
    assert_whole(result, workload)
    assert_nothing_is_left(world)
    assert sum(each.num_cached_tokens for each in result.requests) > 0
    assert bool(result.links) != shares_memory, "blocks went over a network in a box, or did not between boxes"


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    """Red when an order depends on hashes or addresses, or a clock or random number comes from outside. The second run
    is another process, whose hashes of strings are others."""
    outputs = []
    for hash_seed, seed in (("1", 1), ("2", 1), ("2", 2)):
        command = [sys.executable, str(Path(__file__).with_name("print_a_world.py")), str(seed)]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        outputs.append(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert outputs[0] == outputs[1] != outputs[2]
    decided = Counter(json.loads(line)["decision"] for line in outputs[0].splitlines() if line.startswith(b"{"))
    assert {"arrive", "send", "route", "prefill", "grant", "chunk", "hand_over", "preempt", "evict", "end"} <= set(
        decided
    )


def test_a_lost_worker_costs_no_request_a_token(caplog: pytest.LogCaptureFixture) -> None:
    """Red when a request that was decoding is not continued elsewhere, its tokens come twice, or the death stands in
    the log as one of a worker of this machine."""
    workload = chat(120, 30.0)
    faults = (
        Fault(at_s=1.0, kind=FaultKind.KILL, target="decode-0"),
        Fault(at_s=2.0, kind=FaultKind.KILL, target="prefill-1"),
        Fault(at_s=3.0, kind=FaultKind.DRAIN, target="decode-1"),
    )
    world = World(config(split(2, 2), 2, faults=faults), workload)
    caplog.set_level(logging.INFO, "relevo")
    assert_whole(world.run(), workload)
    assert caplog.records == [] and logging.getLogger("relevo").level == logging.INFO
    assert_nothing_is_left(world)
    assert {worker_id: each.config.epoch for worker_id, each in world.workers.items()} == {
        "prefill-0": 1,
        "prefill-1": 2,
        "decode-0": 2,
        "decode-1": 2,
    }


def test_a_gateway_that_dies_takes_its_requests_with_it_and_nothing_stays_behind() -> None:
    workload = chat(120, 30.0)
    world = World(
        config(split(2, 2), 2, faults=(Fault(at_s=2.0, kind=FaultKind.KILL_GATEWAY, target="gateway-0"),)), workload
    )
    result = world.run()
    outcomes = Counter(each.outcome for each in result.requests)
    assert set(outcomes) == {FINISHED, RequestOutcome.FAILED} and outcomes[FINISHED] > outcomes[RequestOutcome.FAILED]
    assert_nothing_is_left(world)


def test_clients_that_leave_are_forgotten_and_slow_readers_hold_up_no_other() -> None:
    workload = chat(120, 30.0)

    def habits(row: WorkloadRequest) -> Habits:
        if row.row % 3 == 0:
            return Habits(leaves_after_s=0.02 * (row.row % 20))
        if row.row % 3 == 1:
            return Habits(leaves_after_tokens=5)
        return Habits(reads_every_s=0.5)

    world = World(config(split(1, 2)), workload, habits=habits)
    result = world.run()
    assert_nothing_is_left(world)
    for each in result.requests:
        num_wanted = workload.requests[each.row].num_output_tokens
        if each.row % 3 == 1 and num_wanted > 12:
            assert each.outcome is RequestOutcome.ABORTED and 5 <= each.num_output_tokens < 12
        if each.row % 3 == 2:
            times = list(each.token_at_ns[0])
            assert each.outcome is FINISHED and len(times) == num_wanted
            assert all(later - earlier >= 500_000_000 for earlier, later in pairwise(times))


def test_the_next_turn_of_a_session_finds_what_the_last_answer_left_behind() -> None:
    """Red when an answer's blocks are not found by the turn that goes on from it."""
    first = WorkloadRequest(
        row=0, num_prompt_tokens=160, num_output_tokens=64, arrived_at_s=0.0, hash_ids=range(10), hash_block_size=16
    )
    second = WorkloadRequest(
        row=1, num_prompt_tokens=320, num_output_tokens=8, gap_s=2.0, parent=0, hash_ids=range(20), hash_block_size=16
    )
    result = World(config((worker("all", "unified"),)), Workload(requests=[first, second])).run()
    turn, following = result.requests
    assert following.arrived_at_ns == turn.ended_at_ns + 2_000_000_000
    assert following.num_cached_tokens == (160 + 63) // 16 * 16


def test_an_edge_passes_over_a_region_that_is_full_and_brings_a_session_back() -> None:
    regions = tuple(
        RegionSpec(name=name, workers=(worker(f"{name}-0", "unified", max_running=2, num_blocks=80),))
        for name in ("east", "west")
    )
    serving = ServingSpec(layout=LAYOUT, max_model_len=4096)
    workload = chat(60, 12.0)
    world = World(
        WorldConfig(regions=regions, serving=serving),
        workload,
        habits=lambda row: Habits(session=bytes([row.row % 6 + 1])),
    )
    result = world.run()
    assert_whole(result, workload)
    assert_nothing_is_left(world)
    homes: dict[int, Counter[str | None]] = {}
    for each in result.requests:
        homes.setdefault(each.row % 6, Counter())[each.prefill_worker] += 1
    assert {next(iter(seen.most_common(1)))[0] for seen in homes.values()} == {"east-0", "west-0"}


def test_a_cut_link_and_a_slow_worker_delay_what_is_under_way_and_lose_nothing() -> None:
    workload = chat(60, 30.0)
    faults = (
        Fault(at_s=0.5, kind=FaultKind.CUT, target="kv>decode-0", for_s=1.0),
        Fault(at_s=1.0, kind=FaultKind.SLOW, target="decode-0", for_s=1.0, times=5.0),
    )
    calm, cut = (World(config(split(1, 1), faults=each), workload).run() for each in ((), faults))
    assert_whole(cut, workload)
    assert cut.ended_at_ns > calm.ended_at_ns + 500_000_000


def test_a_worker_that_stands_still_is_found_and_replaced() -> None:
    """Red when its requests wait for it for ever, or move on while it might still write."""
    workload = chat(80, 30.0)
    faults = (
        Fault(at_s=1.0, kind=FaultKind.STOP, target="decode-0"),
        Fault(at_s=1.2, kind=FaultKind.STOP, target="prefill-0"),
    )
    serving = ServingSpec(layout=LAYOUT, max_model_len=4096, heartbeat_timeout_s=3.0)
    world = World(config(split(2, 2), 2, serving=serving, faults=faults), workload)
    result = world.run()
    assert_whole(result, workload)
    assert_nothing_is_left(world)
    epochs = {worker_id: each.config.epoch for worker_id, each in world.workers.items()}
    assert epochs == {"prefill-0": 2, "prefill-1": 1, "decode-0": 2, "decode-1": 1}
    assert result.ended_at_ns < 60_000_000_000


def test_what_befell_requests_that_have_not_ended_is_counted() -> None:
    """Red when a world that is stopped forgets which of its requests were preempted: their workers still tell."""
    rows = [
        WorkloadRequest(row=row, num_prompt_tokens=200, num_output_tokens=300, arrived_at_s=row * 0.01)
        for row in range(12)
    ]
    workers = (worker("unified", "unified", num_blocks=120),)
    result = World(config(workers, until_s=3.0), Workload(requests=rows)).run()
    assert {request.outcome for request in result.requests} == {RequestOutcome.UNFINISHED}
    assert sum(request.num_preemptions for request in result.requests) == result.workers[0].num_preemptions == 4
