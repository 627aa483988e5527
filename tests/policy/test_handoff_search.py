"""Every interleaving of small worlds, breadth first: safety in each of them, and GONE reachable from each of them."""

from __future__ import annotations

from collections import deque

import handoff_world
import pytest
from handoff_moves import check_gone, faults, progress
from handoff_world import Budget, Violation, World, first_world

CASES = {
    "calm": (3, Budget(unsplit=2, client=1), 2),
    "death": (3, Budget(deaths=1, unsplit=1), 2),
    "two deaths": (3, Budget(deaths=2), 2),
    "death and client": (2, Budget(deaths=1, client=1), 2),
    "failure": (3, Budget(failures=1, client=1, unsplit=1), 2),
    "two failures": (2, Budget(failures=2), 2),
    "hang": (2, Budget(hangs=1, client=1, unsplit=1), 2),
    "late": (2, Budget(ticks=2, client=1), 2),
    "late and death": (3, Budget(ticks=1, deaths=1), 2),
    "restart": (2, Budget(deaths=1, restarts=1), 2),
    "one token": (2, Budget(deaths=1, ticks=1, client=1), 1),
}

CUT_CASES = {  # of links to other boxes, over which blocks travel, or on which workers share memory
    "cut": (3, Budget(cuts=1, unsplit=1), 2),
    "cut and client": (2, Budget(cuts=1, client=1), 2),
    "cut and death": (2, Budget(cuts=1, deaths=1), 2),
    "late and cut": (2, Budget(cuts=1, ticks=1), 2),
    "cut and rejoin": (2, Budget(cuts=1, restarts=1), 2),
    "cut and rejoin beside a third": (3, Budget(cuts=1, restarts=1), 2),
}

WIDE_CUT_CASES = {  # of minutes
    "cut and rejoin, aborted": (2, Budget(cuts=1, restarts=1, client=1), 2),
    "cut and rejoin, late": (2, Budget(cuts=1, restarts=1, ticks=1), 2),
    "two cuts, one rejoins": (3, Budget(cuts=2, restarts=1), 2),
    "a cut, a death, one begins anew": (3, Budget(cuts=1, deaths=1, restarts=1), 2),
}

WIDE_CASES = {  # of minutes
    "restart, aborted": (2, Budget(deaths=1, restarts=1, client=1), 2),
    "restart, late": (2, Budget(deaths=1, restarts=1, ticks=1), 2),
    "restart beside a third": (3, Budget(deaths=1, restarts=1, client=1), 2),
    "two deaths, one restart": (2, Budget(deaths=2, restarts=1, client=1), 2),
    "restart, late, aborted": (2, Budget(deaths=1, restarts=1, ticks=1, client=1, unsplit=1), 2),
    "death, failure, late": (3, Budget(deaths=1, failures=1, ticks=1), 2),
    "hang, death, aborted": (3, Budget(hangs=1, deaths=1, client=1), 2),
}


def search(first: World, max_worlds: int) -> tuple[int, set[str]]:
    """Number of worlds reached and the outcomes seen. Raises Violation with the shortest way to it."""
    number = {first: 0}
    came_from: list[tuple[int, str]] = [(-1, "start")]
    leads_here: list[list[int]] = [[]]  # by progress alone
    goals: list[int] = []
    outcomes = set()
    queue = deque([first])
    while queue:
        world = queue.popleft()
        here = number[world]
        try:
            if world.state.is_gone:
                check_gone(world)
                goals.append(here)
                outcomes.add(world.ended)
            for is_progress, steps in ((True, progress(world)), (False, faults(world))):
                for label, after in steps:
                    there = number.setdefault(after, len(number))
                    if there == len(came_from):
                        came_from.append((here, label))
                        leads_here.append([])
                        queue.append(after)
                        assert len(number) <= max_worlds, "the model is larger than this test has time for"
                    if is_progress:
                        leads_here[there].append(here)
        except (Violation, AssertionError) as error:
            raise Violation(f"{error}\nafter {way(came_from, here)}\nin {world}") from error
    stuck = set(range(len(number))) - ancestors(goals, leads_here)
    if stuck:
        raise Violation(f"{len(stuck)} worlds never come to an end, the first after {way(came_from, min(stuck))}")
    return len(number), outcomes


def way(came_from: list[tuple[int, str]], world: int) -> list[str]:
    labels = []
    while world >= 0:
        world, label = came_from[world]
        labels.append(label)
    return labels[::-1]


def ancestors(goals: list[int], leads_here: list[list[int]]) -> set[int]:
    seen, todo = set(goals), list(goals)
    while todo:
        for before in leads_here[todo.pop()]:
            if before not in seen:
                seen.add(before)
                todo.append(before)
    return seen


@pytest.mark.parametrize("name", CASES)
def test_every_interleaving_of_a_small_world_is_safe_and_ends(name: str) -> None:
    """Red when a release overtakes a writer, an end is lost or doubled, or some order of events leaves a request."""
    num_workers, budget, max_tokens = CASES[name]
    num_worlds, outcomes = search(first_world(num_workers, budget, max_tokens=max_tokens), max_worlds=60_000)
    assert num_worlds > 500, "the faults of this case hardly happen"
    assert "finished" in outcomes
    assert ("aborted" in outcomes) == bool(budget.client)


@pytest.mark.parametrize("is_network", [True, False], ids=["network", "memory"])
@pytest.mark.parametrize("name", CUT_CASES)
def test_every_interleaving_around_a_cut_is_safe_and_ends(name: str, is_network: bool) -> None:
    """A worker that is cut off works on under its old epoch, writes late, fences itself at any later time, and may join
    again under a new one. Red when its room is given to another writer, or is freed while it may still write and cannot
    be refused; or when what it wrote, or what was written for it, lands under the new epoch."""
    num_workers, budget, max_tokens = CUT_CASES[name]
    first = first_world(num_workers, budget, max_tokens=max_tokens, is_network=is_network)
    num_worlds, outcomes = search(first, max_worlds=120_000)
    assert num_worlds > 500, "the faults of this case hardly happen"
    assert "finished" in outcomes


def test_the_search_finds_a_receiver_that_does_not_look_at_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when the worlds of a cut hold no late write that another incarnation could take for its own."""

    def takes(world: World, i: int, _epoch: int, room: int) -> bool:
        return world.workers[i].alive and world.workers[i].task == "granted" and world.workers[i].room == room

    monkeypatch.setattr(handoff_world, "takes", takes)
    num_workers, budget, max_tokens = CUT_CASES["cut and rejoin"]
    with pytest.raises(Violation, match="landed in a room of"):
        search(first_world(num_workers, budget, max_tokens=max_tokens, is_network=True), max_worlds=120_000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_wider_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    num_all = 0
    cases = [(name, case, False) for name, case in (CASES | WIDE_CASES).items()]
    cases += [(name, case, kind) for name, case in WIDE_CUT_CASES.items() for kind in (True, False)]
    for name, (num_workers, budget, max_tokens), is_network in cases:
        first = first_world(num_workers, budget, max_tokens=max_tokens, is_network=is_network)
        num_worlds, outcomes = search(first, max_worlds=5_000_000)
        num_all += num_worlds
        with capsys.disabled():
            print(f"\n{name}: {num_worlds:,} worlds, {', '.join(sorted(outcomes))}")  # noqa: T201
    with capsys.disabled():
        print(f"{num_all:,} worlds in all")  # noqa: T201
