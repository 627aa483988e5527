"""The rules of the router on candidates one can add up by hand, and bursts through it with the ledger and the index."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.policy.routing.router import Candidate, Router, RouterLimits, RoutingPolicy

N = 1000  # prompt tokens


def candidate(name: str, cost_s: float = 1.0, *, hits: int = 0, load: int = 0, requests: int = 0) -> Candidate[str]:
    return Candidate(
        key=name, name=name, cost_s=cost_s, num_hit_tokens=hits, num_load_tokens=load, num_requests=requests
    )


def picked(candidates: list[Candidate[str]], session: bytes = b"", **limits: float) -> tuple[str, str]:
    pick = Router[str](limits=RouterLimits(**limits)).pick(candidates, N, session, Random(0))
    return pick.candidate.key, pick.reason.split(":")[0]


def test_the_fastest_is_chosen_without_a_preference() -> None:
    assert picked([candidate("a", 2.0), candidate("b", 1.0)]) == ("b", "fastest")
    assert picked([candidate("a", 9.0)])[0] == "a"


def test_a_warm_candidate_may_cost_the_penalty_and_no_more() -> None:
    """Red when affinity pins, or when it is given up for less than it may cost."""
    warm, other = candidate("warm", 1.4, hits=900), candidate("other", 1.0)
    assert picked([warm, other]) == ("warm", "warm")
    assert picked([warm, other], max_affinity_penalty_s=0.3) == ("other", "fastest")


def test_a_loaded_warm_candidate_is_passed_over_unless_it_is_the_fastest() -> None:
    loaded = candidate("warm", 1.4, hits=900, load=5000)
    assert picked([loaded, candidate("other", 1.0, load=1000)])[0] == "other"
    assert picked([loaded, candidate("other", 1.45, load=1000)])[0] == "warm"


def test_a_prefix_that_most_prompts_share_makes_nobody_warm() -> None:
    """A system prompt cached on one worker must not draw every session there."""
    assert picked([candidate("a", 1.2, hits=499), candidate("b", 1.0)]) == ("b", "fastest")
    assert picked([candidate("a", 1.2, hits=500), candidate("b", 1.0)]) == ("a", "warm")


def test_a_new_session_has_a_home_that_does_not_depend_on_order_or_state() -> None:
    three = [candidate(name) for name in "abc"]
    homes = Counter(picked(three, bytes([i, j]))[0] for i in range(16) for j in range(16))
    assert len(homes) == 3
    assert min(homes.values()) > 256 / 3 * 0.6
    for i in range(32):
        assert picked(three, bytes([i, 1]))[0] == picked(three[::-1], bytes([i, 1]))[0]


def test_only_the_sessions_of_a_lost_candidate_move() -> None:
    three = [candidate(name) for name in "abc"]
    for i in range(64):
        before = picked(three, bytes([i, 7]))[0]
        after = picked([c for c in three if c.name != "c"], bytes([i, 7]))[0]
        assert after == before or before == "c"


def test_an_overloaded_home_is_passed_over_for_the_next_of_the_session() -> None:
    three = [candidate(name) for name in "abc"]
    session = next(bytes([i, 1]) for i in range(64) if picked(three, bytes([i, 1]))[0] == "a")
    full = [candidate("a", load=9000), candidate("b", load=100), candidate("c", load=100)]
    assert picked(full, session)[1] == "home"
    assert picked(full, session)[0] != "a"
    slow = [candidate("a", 2.0), candidate("b"), candidate("c")]
    assert picked(slow, session)[0] != "a"


def test_one_of_two_near_ties_is_the_less_busy() -> None:
    """Red when gateways that see the same reports all choose the same candidate."""
    router, rng = Router[str](), Random(1)
    equal = [candidate(f"w{i}", 1.0 + i * 0.001, load=i) for i in range(4)]
    chosen = Counter(router.pick(equal, N, b"", rng).candidate.key for _ in range(400))
    assert set(chosen) == {"w0", "w1", "w2"}


def test_baselines_do_what_they_are_called() -> None:
    three = [candidate("a", 9.0, hits=10, load=9, requests=1), candidate("b", requests=2), candidate("c", requests=2)]

    def run(policy: RoutingPolicy) -> list[str]:
        router = Router[str](policy)
        return [router.pick(three, N, b"s", Random(0)).candidate.key for _ in range(6)]

    assert sorted(run(RoutingPolicy.ROUND_ROBIN)) == ["a", "a", "b", "b", "c", "c"]
    assert run(RoutingPolicy.LEAST_REQUESTS) == ["a"] * 6
    assert run(RoutingPolicy.PREFIX_ONLY) == ["a"] * 6


def test_a_prefix_that_many_share_is_copied_but_not_at_any_price() -> None:
    """Red when one holder keeps a hot prefix for ever, or when every turn of a session is copied around."""

    def picks(cost_s: float, prefixes: list[bytes]) -> list[str]:
        router, rng = Router[str](), Random(0)
        chosen = []
        for prefix in prefixes:
            holder = Candidate(key="a", name="a", cost_s=1.0, num_hit_tokens=900, prefix=prefix)
            chosen.append(router.pick([holder, candidate("b", cost_s)], N, b"", rng).candidate.key)
        return chosen

    assert "b" in picks(1.7, [b"hot"] * 20)
    assert "b" not in picks(1.8, [b"hot"] * 20)
    assert "b" not in picks(1.7, [bytes([i]) for i in range(20)])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, N), st.integers(0, 5000)), min_size=1, max_size=6),
    st.binary(max_size=4),
    st.floats(0.0, 1.0),
)
def test_affinity_never_costs_more_than_it_may(
    rows: list[tuple[float, int, int]], session: bytes, penalty_s: float
) -> None:
    candidates = [candidate(f"w{i}", c, hits=h, load=n) for i, (c, h, n) in enumerate(rows)]
    router = Router[str](limits=RouterLimits(max_affinity_penalty_s=penalty_s))
    pick = router.pick(candidates, N, session, Random(0))
    least_s = min(c.cost_s for c in candidates)
    allowed_s = max(penalty_s, least_s * 0.0501, 0.000501)
    assert pick.candidate.cost_s <= least_s + allowed_s
    assert pick.reason


@pytest.mark.parametrize("num_workers", [2, 4])
def test_sessions_of_unequal_size_are_spread_evenly_over_time(num_workers: int) -> None:
    """One request at a time, so nothing is ever queued: only the memory of past work can balance. Red without it."""
    rng, router, work = Random(2), Router[str](), Counter[str]()
    for number in range(300):
        num_tokens = int(rng.paretovariate(1.5) * 500)
        candidates = [candidate(f"w{i}", num_tokens * 1e-3) for i in range(num_workers)]
        pick = router.pick(candidates, num_tokens, number.to_bytes(2, "little"), rng)
        work[pick.candidate.key] += num_tokens
    assert max(work.values()) / (sum(work.values()) / num_workers) < 1.25


def test_two_gateways_send_a_session_to_the_same_home() -> None:
    """A thousand sessions, two routers that never heard of each other, workers listed in another order. Red when a home
    depends on anything but names and key."""
    names = [f"prefill-{i}" for i in range(7)]
    here, there = [candidate(name) for name in names], [candidate(name) for name in reversed(names)]
    homes = []
    for number in range(1000):
        session = number.to_bytes(4, "little")
        first = Router[str]().pick(here, N, session, Random(number))
        second = Router[str]().pick(there, N, session, Random(number + 1))
        assert first.candidate.key == second.candidate.key
        assert first.reason.startswith("home")
        homes.append(first.candidate.key)
    assert max(Counter(homes).values()) < 1.5 * 1000 / len(names)
