"""The gateway's placement in bursts and under heavy-tailed load, with real schedulers on virtual time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from prefill_fleet import BLOCK_SIZE, Arrival, PrefillFleet, rows_of
from real_traces import trace

from relevo.core.role import PREFILL
from relevo.policy.routing.router import RoutingPolicy
from relevo.telemetry.latency import percentile
from relevo.workload.timing import spread_ticks
from relevo.workload.traces.files import read_trace_file

POLICIES = (RoutingPolicy.TTFT, RoutingPolicy.ROUND_ROBIN, RoutingPolicy.LEAST_REQUESTS)


@pytest.mark.parametrize("num_workers", [2, 4])
@pytest.mark.parametrize("num_hot_tokens", [256, 1024])
def test_a_burst_with_a_hot_prefix_is_spread_evenly_and_the_prefix_copied(
    num_workers: int, num_hot_tokens: int
) -> None:
    """512 first requests at once, half of them one hot prefix. Red when choices are not charged at once (herding), or
    when the holder of a prefix gets all of its requests."""
    rng = Random(1)
    hot = [rng.getrandbits(32) for _ in range(num_hot_tokens)]
    arrivals: list[Arrival] = []
    for number in range(512):
        head = hot if number % 2 else [rng.getrandbits(32) for _ in range(num_hot_tokens)]
        prompt = [*head, *(rng.getrandbits(32) for _ in range(32))]
        arrivals.append((0.0, prompt, number.to_bytes(2, "little")))
    fleet = PrefillFleet(num_workers=num_workers, num_blocks=8000)
    fleet.start(rows_of(arrivals), [session for _, _, session in arrivals])
    placement = fleet.world.gateways["gateway-0"].placement
    charged = {view.ref: view.in_flight_prefill_tokens for view in placement._views() if view.role == PREFILL}
    assert sum(view.num_in_flight_prefills for view in placement._views() if view.role == PREFILL) == 512
    assert max(charged.values()) / (sum(charged.values()) / num_workers) <= 1.3, charged
    matches = placement._index.matches(fleet.prefix_hashes(1, num_hot_tokens))
    assert sum(matches.get(ref, 0) == num_hot_tokens // BLOCK_SIZE for ref in charged) > 1
    fleet.finish()


def heavy_tailed(num_requests: int, rate_per_s: float, rng: Random) -> list[Arrival]:
    """Sessions of growing prompts with Pareto lengths, Poisson arrivals."""
    arrivals: list[Arrival] = []
    now_s = 0.0
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
    """One client in ten leaves; the draws of which do, and when, are not those of the table in docs/lab-log.md."""
    arrivals = heavy_tailed(400, 1.2, Random(5))
    p99: dict[RoutingPolicy, float] = {}
    for policy in POLICIES:
        fleet = PrefillFleet(policy, abort_fraction=0.1)
        fleet.run(arrivals)
        p99[policy] = percentile(fleet.ttft_s, 0.99)
    assert p99[RoutingPolicy.TTFT] < min(p99[RoutingPolicy.ROUND_ROBIN], p99[RoutingPolicy.LEAST_REQUESTS])


def test_what_the_placement_believes_of_a_worker_is_what_it_holds() -> None:
    """Red when an event is not sent, or an expectation outlives its request."""
    fleet = PrefillFleet(num_blocks=600, abort_fraction=0.2)
    fleet.run(heavy_tailed(360, 2.0, Random(6)))
    index = fleet.world.gateways["gateway-0"].placement._index
    held = {worker.ref: set(worker.scheduler.pool.cached_hashes) for worker in fleet.world.workers.values()}
    assert {ref: index.told_by(ref) for ref in held} == held
    assert all(held.values())
    assert sum(worker.num_evicted_blocks for worker in fleet.prefill_results) > 0
    assert index.num_blocks == len(set().union(*held.values()))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("slower", [3.0, 4.0, 6.0])
def test_a_scaled_production_trace(slower: float) -> None:
    """2,000 requests of Mooncake's conversation trace, lengths / 16, arrivals spread inside their ticks and slowed."""
    recorded = read_trace_file(trace("mooncake_conversation_trace.jsonl"))
    rows = [
        replace(
            row,
            row=number,
            arrived_at_s=(row.arrived_at_s or 0.0) * slower,
            num_prompt_tokens=max(1, row.num_prompt_tokens // 16),
            num_output_tokens=1,
            hash_block_size=32,
        )
        for number, row in enumerate(spread_ticks(recorded.requests, Random(0))[:2000])
    ]
    sessions = [(row.hash_ids[1] if len(row.hash_ids) > 1 else 0).to_bytes(4, "little") for row in rows]
    p99: dict[RoutingPolicy, float] = {}
    for policy in POLICIES:
        fleet = PrefillFleet(policy, num_blocks=6000, abort_fraction=0.1)
        fleet.start(rows, sessions)
        fleet.finish()
        ttft_s, results = fleet.ttft_s, fleet.world.result.requests
        work = [each.num_prefill_tokens for each in fleet.prefill_results]
        hits = sum(each.num_cached_tokens for each in results) / sum(each.num_prompt_tokens for each in results)
        p99[policy] = percentile(ttft_s, 0.99)
        print(  # noqa: T201
            f"x{slower} {policy:15} hits {hits:.3f} "
            f"TTFT p50 {percentile(ttft_s, 0.5):.2f} p90 {percentile(ttft_s, 0.9):.2f} p99 {p99[policy]:.2f} s "
            f"max/mean {max(work) * len(work) / sum(work):.3f} {dict(fleet.waiting.reasons.most_common(3))}"
        )
    assert p99[RoutingPolicy.TTFT] < min(p99[RoutingPolicy.ROUND_ROBIN], p99[RoutingPolicy.LEAST_REQUESTS])
