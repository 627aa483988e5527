"""Clients that leave at random moments of every phase, over slow, reordering, duplicating, lossy and haunted networks.

Red when an abort, a death, a pause or a late write in any order leaves a block, a reservation, a charge or a flight
behind, gives a block to its next owner before its writer has let go, or shows a request anything of another one's.

`RELEVO_STORM_ABORTS=1000000 pytest -m slow tests/component/test_abort_storm.py -s` is the long run.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest
from storm_worker import Canaries, Foreign
from storm_world import CALM, SLOW, WILD, Storm, StormWorld, Tally

from relevo.policy.worker.reservations import Reservations

WEATHER = (CALM, SLOW, WILD, WILD)
STORMS = {
    "fake 1p1d": Storm(faults=WEATHER),
    "fake 2p2d": Storm(faults=WEATHER, num_prefill=2, num_decode=2, num_clients=20),
    "shm 1p1d": Storm(transport="shm"),
    "shm 2p2d": Storm(transport="shm", num_prefill=2, num_decode=2, num_blocks=48, num_clients=14),
}
NUM_ABORTS = int(os.environ.get("RELEVO_STORM_ABORTS", "20000"))
NUM_PROCESSES = 2
ABORTS_PER_WORLD = 5000  # then a new world with another seed


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Deaths and failing steps are the point, not news."""
    logger = logging.getLogger("relevo")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@pytest.mark.parametrize("name", STORMS)
def test_nothing_is_left_and_nobody_reads_foreign_kv(name: str) -> None:
    tally = StormWorld(replace(STORMS[name], faults=(WILD,)), seed=11).run(100)
    assert tally.num_calms >= 1 and tally.num_cells_read > 1000 and tally.num_tokens_told > 100
    assert (tally.network["haunted"] > 0) == name.startswith("fake"), tally
    assert tally.aborted_in["prefilling"] + tally.aborted_in["transferring"] > 0, tally


def test_a_seed_tells_the_same_story_twice() -> None:
    """A failure can be run again only while nothing in here depends on the machine's clock or on hash seeds."""
    stories = [StormWorld(STORMS["fake 1p1d"], seed=3).run(30) for _ in range(2)]
    assert stories[0] == stories[1]


def test_the_storm_finds_blocks_that_are_given_away_under_their_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The instrument itself: without quarantine somebody soon reads what a late writer wrote."""
    drop = Reservations.drop
    monkeypatch.setattr(
        Reservations, "drop", lambda self, request_id, writer_active, keeper: drop(self, request_id, False)
    )
    with pytest.raises((Foreign, BaseExceptionGroup)) as caught:
        StormWorld(STORMS["shm 2p2d"], seed=1).run(1000)
    assert "foreign KV" in _words(caught.value)


def test_the_storm_finds_blocks_that_are_never_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reservations, "release", lambda self, request_id: None)
    with pytest.raises(AssertionError, match="quarantined"):
        StormWorld(STORMS["shm 2p2d"], seed=4).run(300)


def _words(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return " ".join(_words(one) for one in error.exceptions)
    return str(error)


def _world(name: str, seed: int, num_aborts: int) -> tuple[str, Tally]:
    logging.getLogger("relevo").setLevel(logging.CRITICAL + 1)
    try:
        return name, StormWorld(STORMS[name], seed).run(num_aborts)
    except BaseException as error:
        raise AssertionError(f"{name}, seed {seed}: {_words(error)}") from error


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_many_aborts(capsys: pytest.CaptureFixture[str]) -> None:
    """NUM_ABORTS over all storms, in worlds of ABORTS_PER_WORLD."""
    num_worlds = max(len(STORMS), -(-NUM_ABORTS // ABORTS_PER_WORLD))
    names = [list(STORMS)[index % len(STORMS)] for index in range(num_worlds)]
    sizes = [min(ABORTS_PER_WORLD, -(-NUM_ABORTS // num_worlds))] * num_worlds
    tallies = {name: Tally() for name in STORMS}
    started_s = time.monotonic()
    with ProcessPoolExecutor(NUM_PROCESSES, mp_context=get_context("spawn")) as pool:
        for name, tally in pool.map(_world, names, range(num_worlds), sizes):
            tallies[name].add(tally)
            with capsys.disabled():  # a long run that is ended early has still shown this much
                num_aborts = sum(tally.num_aborts for tally in tallies.values())
                print(f"\n{num_aborts} aborts after {time.monotonic() - started_s:.0f} s", end="")  # noqa: T201
    with capsys.disabled():
        for name, tally in tallies.items():
            print(f"\n{name}: {tally}")  # noqa: T201
        total = sum(tally.num_aborts for tally in tallies.values())
        print(f"{total} aborts in {time.monotonic() - started_s:.0f} s, {NUM_PROCESSES} processes")  # noqa: T201
    assert total >= NUM_ABORTS
    rare = ("recalling", "replacing") if total >= 100_000 else ()
    for phase in ("queued", "prefilling", "transferring", "submitted", "decoding", *rare):
        assert sum(tally.aborted_in[phase] for tally in tallies.values()) > 0, phase


def test_a_wrong_cell_is_found() -> None:
    """The check that everything else here rests on."""
    canaries = Canaries(shared_memory=False)
    canaries.add("a", (1, 2, 3))
    canaries.drawn("a", 0, 0, 5)
    canaries.check_told("a", 0, 0, 5)
    with pytest.raises(Foreign):
        canaries.check_told("a", 0, 0, 6)
    with pytest.raises(Foreign):
        canaries.drawn("a", 0, 0, 6)


def test_what_is_drawn_from_given_away_blocks_after_the_end_is_told_to_nobody() -> None:
    """Red when the storm takes it for foreign, as it was read with leave; or lets it be told."""
    canaries = Canaries(shared_memory=True)
    canaries.add("a", (1, 2, 3))
    canaries.drawn("a", 0, 0, 5)
    canaries.ended.add("a")
    canaries.drawn("a", 0, 0, 6)
    with pytest.raises(Foreign):
        canaries.check_told("a", 0, 0, 6)
