"""The vocabulary of grammars is made once: by a process that rests, or by the first grammar that comes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from in_process_stack import in_process_stack, request_for, until

from held_outputs import fake_vocabulary
from relevo.build.late_vocabularies import LateVocabularies
from relevo.core.errors import ModelFileError
from relevo.engine.grammars import Grammars
from relevo.vocabulary.grammars import GrammarVocabulary
from relevo.vocabulary.late_vocabulary import LateVocabulary


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


def test_a_worker_makes_it_when_it_rests_and_not_before() -> None:
    """Red when a start or a step waits for it, or a worker without held outputs never has it."""
    made = Made()
    grammars = Grammars(made)

    async def run() -> None:
        async with in_process_stack({"w": "unified"}, num_gateways=1, grammars=grammars) as stack:
            loop = stack.workers["w"].loop
            seconds = 1_000_000_000
            assert loop._rest(0, None) == 0.5 and loop._rest(seconds // 4, 0.1) == 0.1
            await stack.gateways[0].tokens(request_for(1, [1, 2, 3]))
            assert not made.threads
            assert loop._rest(seconds, None) is None
            assert len(made.threads) == 1

    asyncio.run(run())


async def test_a_gateway_makes_it_when_nothing_is_in_flight() -> None:
    in_flight, made = 1, Made()
    late = LateVocabularies(lambda: in_flight, rest_s=0.01)
    late._all.append(LateVocabulary(made))
    resting = asyncio.create_task(late.run())
    await asyncio.sleep(0.1)
    assert not made.threads
    in_flight = 0
    await until(resting.done)
    assert len(made.threads) == 1
