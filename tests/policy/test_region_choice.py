"""Which region a session goes to, when it moves and when it does not."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from relevo.core.ids import RequestId
from relevo.policy.routing.region_choice import RegionAttempts, RegionChoice

BOTH = ("east", "west")


class Driver:
    def __init__(self) -> None:
        self.choice = RegionChoice()
        self.rng = Random(1)
        self.num_requests = 0

    def turn(self, session: bytes, num_tokens: int, able: tuple[str, ...] = BOTH, ttft_s: float = 0.1) -> str:
        """A request that is answered and ends."""
        self.num_requests += 1
        request_id = RequestId(str(self.num_requests))
        region = self.choice.choose(request_id, session, num_tokens, able, self.rng).candidate.key
        self.choice.answered(request_id, session, num_tokens, region, ttft_s)
        self.choice.end(request_id)
        return region


def session(index: int) -> bytes:
    return index.to_bytes(16, "big")


def test_sessions_stay_and_spread_over_both_regions() -> None:
    driver = Driver()
    homes = {i: driver.turn(session(i), 500) for i in range(60)}
    assert 15 <= sum(home == "east" for home in homes.values()) <= 45
    for length in (900, 1500, 4000):  # growing, also to more than twice of what is there
        assert {i: driver.turn(session(i), length) for i in homes} == homes


def test_a_lost_region_keeps_nothing_and_gets_new_sessions_only_when_it_is_back() -> None:
    driver = Driver()
    homes = {i: driver.turn(session(i), 500) for i in range(40)}
    driver.choice.lost("east")
    assert {driver.turn(session(i), 600, ("west",)) for i in homes} == {"west"}
    assert {driver.turn(session(i), 700) for i in homes} == {"west"}
    assert "east" in {driver.turn(session(i), 500) for i in range(100, 130)}


def test_a_slow_region_is_left_even_by_its_sessions() -> None:
    """A preference costs a bounded time: 400,000 uncached tokens in front of the session are more."""
    driver = Driver()
    home = driver.turn(session(1), 500)
    other = next(region for region in BOTH if region != home)
    for i in range(20):
        driver.choice.choose(RequestId(f"open-{i}"), b"", 20_000, (home,), driver.rng)
    assert driver.turn(session(1), 600) == other


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["choose", "answer", "end", "lost"])), max_size=60))
def test_every_charge_returns(steps: list[tuple[int, str]]) -> None:
    choice, rng, regions = RegionChoice(), Random(0), {}
    for index, what in steps:
        request_id = RequestId(str(index))
        if what == "choose":
            regions[index] = choice.choose(request_id, session(index), 100, BOTH, rng).candidate.key
        elif what == "answer" and index in regions:
            choice.answered(request_id, session(index), 100, regions[index], 0.1)
        elif what == "lost":
            choice.lost("east")
        else:
            choice.end(request_id)
    for index in range(6):
        choice.end(RequestId(str(index)))
    assert choice.is_idle


def test_the_memory_of_sessions_is_bounded() -> None:
    driver = Driver()
    driver.choice.max_sessions = 10
    for i in range(30):
        driver.turn(session(i), 100)
    assert [bool(driver.choice.place_of(session(i))) for i in range(30)] == [False] * 20 + [True] * 10


def tour(choice: RegionChoice, session_key: bytes = b"s") -> RegionAttempts:
    return RegionAttempts(choice, RequestId("t"), session_key, 100)


def test_each_region_is_asked_once_until_one_takes_the_request() -> None:
    """Red when a busy region is asked again, or an answer that is an error of the client goes on to the next region."""
    choice, rng = RegionChoice(), Random(0)
    for refusal in (429, 503, 529):
        going = tour(choice)
        asked = []
        while (pick := going.next_region(BOTH, rng)) is not None:
            asked.append(pick.candidate.key)
            assert not going.accepts(refusal, 0.1)
        assert sorted(asked) == sorted(BOTH)
    for status in (200, 400, 404, 500):
        going = tour(choice)
        assert going.next_region(BOTH, rng) is not None
        assert going.accepts(status, 0.1)
    choice.end(RequestId("t"))
    assert choice.is_idle


def test_only_a_good_answer_says_where_the_session_is() -> None:
    choice, rng = RegionChoice(), Random(0)
    for status, is_remembered in ((503, False), (400, False), (200, True)):
        going = tour(choice)
        pick = going.next_region(("west",), rng)
        assert pick is not None
        going.accepts(status, 0.1)
        assert (choice.place_of(b"s") == "west") == is_remembered


def test_a_region_that_comes_up_meanwhile_may_be_asked_and_one_that_goes_down_is_not() -> None:
    choice, rng = RegionChoice(), Random(0)
    going = tour(choice)
    first = going.next_region(("east",), rng)
    assert first is not None and first.candidate.key == "east"
    second = going.next_region(("west",), rng)
    assert second is not None and second.candidate.key == "west"
    assert going.next_region((), rng) is None
    assert going.next_region(BOTH, rng) is None
