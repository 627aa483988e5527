"""The gateway's placement in bursts and under heavy-tailed load, with real schedulers on virtual time."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from routing_world import (
    BLOCK_SIZE,
    DECODE,
    ONE_CORE,
    RoutingWorld,
    hot_hashes,
    in_flight_of,
    member,
    placement_of,
    request_of,
)

from relevo.core.events import WorkerLoad
from relevo.core.ids import WorkerId, WorkerRef
from relevo.policy.routing.router import RoutingPolicy
from relevo.telemetry.latency import percentile
from relevo.workload.timing import spread_ticks
from relevo.workload.traces.files import read_trace_file

TRACES = os.environ.get("RELEVO_TRACES", "")


@pytest.mark.parametrize("num_workers", [2, 4])
@pytest.mark.parametrize("num_hot_tokens", [256, 1024])
def test_a_burst_with_a_hot_prefix_is_spread_evenly_and_the_prefix_copied(
    num_workers: int, num_hot_tokens: int
) -> None:
    """512 first requests at once, half of them one hot prefix. Red when choices are not charged at once (herding), or
    when the holder of a prefix gets all of its requests."""
    load, rng = WorkerLoad(costs=ONE_CORE), Random(1)
    workers = [member(f"prefill-{i}", "prefill", load) for i in range(num_workers)]
    busy = member("decode-0", "decode", WorkerLoad(num_running=10**6, costs=ONE_CORE))
    placement = placement_of([*workers, busy])
    hot = [rng.getrandbits(32) for _ in range(num_hot_tokens)]
    for number in range(512):
        head = hot if number % 2 else [rng.getrandbits(32) for _ in range(num_hot_tokens)]
        request = request_of(number, [*head, *(rng.getrandbits(32) for _ in range(32))], number.to_bytes(2, "little"))
        in_flight = in_flight_of(request)
        choice = placement.choose_decode(in_flight, ())
        assert choice is not None
        assert choice.worker == DECODE
        placement.choose_prefill(in_flight, choice.worker, len(request.prompt_token_ids), ())
    charged = [view.in_flight_prefill_tokens for view in placement._views() if view.role == "prefill"]
    assert max(charged) / (sum(charged) / num_workers) <= 1.3, charged
    holders = {
        worker.worker_id
        for worker, count in placement._index.matches(hot_hashes(hot)).items()
        if count == num_hot_tokens // BLOCK_SIZE and worker != DECODE
    }
    assert len(holders) > 1
    for number in range(512):
        placement.end(request_of(number, [1]).request_id)
    assert placement.is_idle


def heavy_tailed(num_requests: int, rate_per_s: float, rng: Random) -> list[tuple[float, list[int], bytes]]:
    """Sessions of growing prompts with Pareto lengths, Poisson arrivals."""
    arrivals, now_s = [], 0.0
    history: dict[int, list[int]] = {}
    for _ in range(num_requests):
        now_s += rng.expovariate(rate_per_s)
        session = rng.randrange(60)
        past = history.setdefault(session, [])
        past += [rng.getrandbits(32) for _ in range(min(3000, int(60 * rng.paretovariate(1.2))))]
        if len(past) > 8000:
            past[:] = past[-500:]
        arrivals.append((now_s, list(past), session.to_bytes(2, "little")))
    return arrivals


def test_under_a_heavy_tail_the_default_beats_both_baselines_and_every_charge_comes_back() -> None:
    arrivals = heavy_tailed(400, 1.2, Random(5))
    p99: dict[RoutingPolicy, float] = {}
    for policy in (RoutingPolicy.TTFT, RoutingPolicy.ROUND_ROBIN, RoutingPolicy.LEAST_REQUESTS):
        world = RoutingWorld(policy, abort_fraction=0.1)
        world.run(arrivals)
        assert world.placement.is_idle
        p99[policy] = percentile(sorted(world.ttft_s), 0.99)
    assert p99[RoutingPolicy.TTFT] < min(p99[RoutingPolicy.ROUND_ROBIN], p99[RoutingPolicy.LEAST_REQUESTS])


def test_what_the_placement_believes_of_a_worker_is_what_it_holds() -> None:
    """Red when an event is not sent, or an expectation outlives its request."""
    world = RoutingWorld(RoutingPolicy.TTFT, num_blocks=600, abort_fraction=0.2)
    world.run(heavy_tailed(120, 2.0, Random(6)))
    for index, worker in enumerate(world.workers):
        told = world.placement._index.told_by(WorkerRef(WorkerId(f"prefill-{index}"), 1))
        assert told == set(worker.scheduler.pool.cached_hashes)
    assert world.placement._index.num_blocks == len(
        set().union(*(w.scheduler.pool.cached_hashes for w in world.workers))
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not TRACES, reason="RELEVO_TRACES names no folder with mooncake_conversation_trace.jsonl")
@pytest.mark.parametrize("slower", [3.0, 4.0, 6.0])
def test_a_scaled_production_trace(slower: float) -> None:
    """2,000 requests of Mooncake's conversation trace, lengths / 16, arrivals spread inside their ticks and slowed."""
    workload = read_trace_file(Path(TRACES) / "mooncake_conversation_trace.jsonl")
    trace = spread_ticks(workload.requests, Random(0))[:2000]
    arrivals = []
    for traced in trace:
        num_tokens = max(1, traced.num_prompt_tokens // 16)
        prompt = [hash_id * 32 + i for hash_id in traced.hash_ids for i in range(32)][:num_tokens]
        session = (traced.hash_ids[1] if len(traced.hash_ids) > 1 else 0).to_bytes(4, "little")
        arrivals.append(((traced.arrived_at_s or 0.0) * slower, prompt, session))
    found = {}
    for policy in (RoutingPolicy.TTFT, RoutingPolicy.ROUND_ROBIN, RoutingPolicy.LEAST_REQUESTS):
        world = RoutingWorld(policy, num_blocks=6000, abort_fraction=0.1)
        world.run(arrivals)
        assert world.placement.is_idle
        ttft_s = sorted(world.ttft_s)
        work = [worker.num_computed_tokens for worker in world.workers]
        found[policy] = percentile(ttft_s, 0.99)
        print(  # noqa: T201
            f"x{slower} {policy:15} hits {world.num_cached_tokens / world.num_input_tokens:.3f} "
            f"TTFT p50 {percentile(ttft_s, 0.5):.2f} p90 {percentile(ttft_s, 0.9):.2f} p99 {found[policy]:.2f} s "
            f"max/mean {max(work) * len(work) / sum(work):.3f} {dict(world.reasons.most_common(3))}"
        )
    assert found[RoutingPolicy.TTFT] < min(found[RoutingPolicy.ROUND_ROBIN], found[RoutingPolicy.LEAST_REQUESTS])
