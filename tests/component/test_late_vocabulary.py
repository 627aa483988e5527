"""The vocabulary of grammars is made once: by a process that rests, or by the first grammar that comes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest
from in_process_stack import in_process_stack, request_for, until

from held_outputs import fake_vocabulary
from relevo.build.late_vocabularies import LateVocabularies
from relevo.core.errors import ModelFileError
from relevo.core.ids import PeerId
from relevo.engine.grammars import Grammars
from relevo.orchestrator.connections import Connections
from relevo.vocabulary.grammars import GrammarVocabulary
from relevo.vocabulary.late_vocabulary import REST_S, LateVocabulary, Rest
from relevo.wire.gateway_links import GatewayLinks


class Made:
    def __init__(self) -> None:
        self.threads: list[int] = []

    def __call__(self) -> GrammarVocabulary:
        self.threads.append(threading.get_native_id())
        return fake_vocabulary()


def test_it_is_made_once_however_many_ask_at_the_same_time() -> None:
    made = Made()
    late = LateVocabulary(made)
    assert not late.is_made and not made.threads
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: id(late.get()), range(32)))
    assert len(found) == len(made.threads) == 1 and late.is_made


def test_what_cannot_be_made_is_told_to_each_who_needs_it_and_not_tried_again() -> None:
    num_tries = 0

    def make() -> GrammarVocabulary:
        nonlocal num_tries
        num_tries += 1
        raise ModelFileError("there is no tokenizer")

    late = LateVocabulary(make)
    late.make()
    for _ in range(2):
        with pytest.raises(ModelFileError, match="there is no tokenizer"):
            late.get()
    assert num_tries == 1


def test_a_grammar_that_comes_first_makes_it_where_it_is_asked_for() -> None:
    """Red when a thread that gives way makes it: it would hold the interpreter lock while others have the core."""
    made = Made()
    grammars = Grammars(made)
    grammars.prepare('start: "a"', lambda: None)
    grammars.close()
    assert made.threads == [threading.get_native_id()]


def test_a_rest_begins_with_the_last_work_and_ends_with_the_next() -> None:
    rest, second = Rest(), 1_000_000_000
    assert rest.left_s(0, is_busy=True) == rest.left_s(9 * second, is_busy=False) == REST_S
    assert rest.left_s(10 * second, is_busy=False) == REST_S - 1.0
    assert rest.left_s(11 * second, is_busy=True) == rest.left_s(99 * second, is_busy=False) == REST_S


class IdleLinks:
    """No message ever comes. Time passes while one is waited for."""

    def __init__(self, gateway_comes_at_s: float, ends_at_s: float) -> None:
        self.now_s, self._comes_at_s, self._ends_at_s = 0.0, gateway_comes_at_s, ends_at_s

    def now_ns(self) -> int:
        return int(self.now_s * 1e9)

    @property
    def peer_ids(self) -> tuple[PeerId, ...]:
        return (PeerId(0),) if self.now_s >= self._comes_at_s else ()

    def poll(self, timeout_s: float | None) -> list[object]:
        self.now_s += 0.5 if timeout_s is None else min(timeout_s, 0.5)  # a ping comes, or the time is over
        if self.now_s >= self._ends_at_s:
            raise TimeoutError
        return []


@pytest.mark.parametrize(("gateway_comes_at_s", "is_made"), [(1.0, True), (8.0, False)])
def test_a_worker_makes_it_when_it_rests_and_not_before(gateway_comes_at_s: float, is_made: bool) -> None:
    """Red when a start or a step waits for it, when a worker makes it while others of its server need its core to
    start, or when one without held outputs never has it."""
    made = Made()
    grammars = Grammars(made)

    async def run() -> None:
        async with in_process_stack({"w": "unified"}, num_gateways=1, grammars=grammars) as stack:
            loop = stack.workers["w"].loop
            await stack.gateways[0].tokens(request_for(1, [1, 2, 3]))
            assert not made.threads
            idle = IdleLinks(gateway_comes_at_s, ends_at_s=8.0)
            links, clock = loop.links, loop.clock
            loop.links, loop.clock = cast("GatewayLinks", idle), idle
            with pytest.raises(TimeoutError):
                loop.run()
            loop.links, loop.clock = links, clock
            assert len(made.threads) == is_made

    asyncio.run(run())


async def test_a_gateway_makes_it_when_nothing_is_in_flight() -> None:
    in_flight, made, started = 1, Made(), asyncio.Event()
    late = LateVocabularies(lambda: in_flight, rest_s=0.01)
    late._all.append(LateVocabulary(made))
    resting = asyncio.create_task(late.run([cast("Connections", SimpleNamespace(ready=started))]))
    started.set()
    await asyncio.sleep(0.1)
    assert not made.threads
    in_flight = 0
    await until(resting.done)
    assert len(made.threads) == 1


async def test_a_gateway_that_starts_makes_none() -> None:
    """Red when a gateway that is ready first takes a core from the workers that start."""
    made, started = Made(), asyncio.Event()
    late = LateVocabularies(lambda: 0, rest_s=0.01)
    late._all.append(LateVocabulary(made))
    resting = asyncio.create_task(late.run([cast("Connections", SimpleNamespace(ready=started))]))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not made.threads
    started.set()
    await until(resting.done)
    assert len(made.threads) == 1
