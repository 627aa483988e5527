"""What gossip between gateways is worth: bursts over several of them on virtual time (docs/adr/0007)."""

from __future__ import annotations

from random import Random

import pytest
from prefill_fleet import Arrival, PrefillFleet

from relevo.telemetry.latency import percentile


def hot_burst(num_requests: int, gap_s: float, rng: Random) -> list[Arrival]:
    """Half of the first requests share one prefix of 256 tokens."""
    hot = [rng.getrandbits(32) for _ in range(256)]
    heads = [hot if number % 2 else [rng.getrandbits(32) for _ in range(256)] for number in range(num_requests)]
    return [
        (number * gap_s, [*head, *(rng.getrandbits(32) for _ in range(32))], number.to_bytes(2, "little"))
        for number, head in enumerate(heads)
    ]


def twins(num_prefixes: int, gap_s: float, rng: Random) -> list[Arrival]:
    """Every prefix of 512 tokens comes twice, `gap_s` apart: two agents that begin with one document."""
    arrivals: list[Arrival] = []
    for number in range(num_prefixes):
        head = [rng.getrandbits(32) for _ in range(512)]
        for twin in range(2):
            tail = [rng.getrandbits(32) for _ in range(32)]
            session = (2 * number + twin).to_bytes(2, "little")
            arrivals.append((number * 1.0 + twin * gap_s, head + tail, session))
    return arrivals


def run(arrivals: list[Arrival], num_gateways: int, gossip_delay_s: float | None, seed: int = 0) -> PrefillFleet:
    fleet = PrefillFleet(num_blocks=8000, num_gateways=num_gateways, gossip_delay_s=gossip_delay_s, seed=seed)
    fleet.run(arrivals)
    return fleet


def test_a_burst_over_gateways_that_gossip_is_balanced_as_over_one() -> None:
    """Red when a charge is not told, or told so late that the next choice does not see it.

    The burst lasts for three steps: silent gateways begin to herd with the first report that tells of waiting prompts.
    """
    arrivals = hot_burst(256, 0.03, Random(0))
    one, silent, told = run(arrivals, 1, None), run(arrivals, 4, None), run(arrivals, 4, 0.001)
    assert told.waiting.peak_skew <= one.waiting.peak_skew * 1.05
    assert silent.waiting.peak_skew > told.waiting.peak_skew
    one_s, silent_s, told_s = (percentile(fleet.ttft_s, 0.99) for fleet in (one, silent, told))
    assert told_s <= 1.05 * one_s < silent_s


def test_two_first_requests_of_one_prefix_are_computed_once_through_two_gateways() -> None:
    """Red when what is expected to be cached is not told: then each gateway has the prefix computed."""
    arrivals = twins(12, 0.01, Random(1))
    one, silent, told = run(arrivals, 1, None), run(arrivals, 4, None), run(arrivals, 4, 0.001)
    assert told.num_computed_tokens <= 1.05 * one.num_computed_tokens
    assert silent.num_computed_tokens > 1.1 * told.num_computed_tokens


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("gap_s", [0.0002, 0.002, 0.02])
def test_the_table_of_the_lab_log(gap_s: float) -> None:
    """Prints it; means of three seeds."""
    for num_gateways, delay_s in ((1, None), (2, None), (2, 0.001), (4, None), (4, 0.001)):
        skews, hot_p99_s, twin_tokens = [], [], []
        for seed in range(3):
            burst = run(hot_burst(256, gap_s, Random(seed)), num_gateways, delay_s, seed)
            pairs = run(twins(64, gap_s, Random(seed)), num_gateways, delay_s, seed)
            skews.append(burst.waiting.peak_skew)
            hot_p99_s.append(percentile(burst.ttft_s, 0.99))
            twin_tokens.append(pairs.num_computed_tokens / (64 * (512 + 2 * 32)))
        how = "alone" if num_gateways == 1 else "silent" if delay_s is None else f"gossip {delay_s * 1e3:.0f} ms"
        print(  # noqa: T201
            f"gap {gap_s * 1e3:4.1f} ms, {num_gateways} gateways, {how:12}: max/mean {sum(skews) / 3:.2f}, "
            f"TTFT p99 {sum(hot_p99_s) / 3:5.1f} s, twins computed {sum(twin_tokens) / 3:.2f}"
        )
