"""Outputs that are held to a grammar: the same tokens however the work is split, and no harm to others.

The engine is the fake one, whose next token is the next one allowed after a hash of what its KV blocks hold. What must
come out is computed by matchers that are made anew for every token.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest
from awaited_outputs import generate
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process_stack import BLOCK_SIZE, Gateway, Worker, in_process_stack, make_worker, request_for, until
from llguidance import LLMatcher

from held_outputs import (
    AMOUNT,
    BOMB,
    BROKEN,
    EOS,
    WORDS,
    expected,
    fake_grammars,
    fake_vocabulary,
    held_request,
    is_amount,
    text_of,
)
from relevo.core.baton import SampleState
from relevo.core.errors import GrammarFailed, InvalidGrammar
from relevo.core.events import TokenOutput
from relevo.core.ids import TokenId
from relevo.core.request import EngineRequest, FinishReason
from relevo.engine.fake_runner import fake_layout
from relevo.engine.grammars import NUM_KEPT, Grammars
from relevo.kv.arena import Arena
from relevo.vocabulary.grammars import GrammarVocabulary
from relevo.wire import messages as wire

PROMPT = list(range(20))
UNIFIED, SPLIT = {"u": "unified"}, {"d": "decode", "p": "prefill"}


async def answers(gateway: Gateway, request: EngineRequest) -> list[list[TokenId]]:
    """The tokens of each continuation. All must have ended by their own."""
    tokens: list[list[TokenId]] = [[] for _ in range(request.sampling.n)]
    reasons: list[FinishReason | None] = [None] * request.sampling.n
    async for output in generate(gateway.dispatcher, request):
        tokens[output.sample_index] += [token.token_id for token in output.tokens]
        reasons[output.sample_index] = output.finish_reason
    for told, reason in zip(tokens, reasons, strict=True):
        assert reason == (FinishReason.STOP if told[-1] == EOS else FinishReason.LENGTH)
    return tokens


def expected_answers(request: EngineRequest) -> list[list[TokenId]]:
    return [expected(request, index) for index in range(request.sampling.n)]


# ---- however the work is split ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("roles", [UNIFIED, SPLIT], ids=["unified", "split"])
async def test_an_output_is_of_its_grammar_wherever_it_is_computed(roles: dict[str, str]) -> None:
    """Greedy, seeded, several continuations, free outputs beside them. Red when a worker that takes over a request
    begins its grammar anew, or continuations share a place in it."""
    async with in_process_stack(roles, num_gateways=1, num_blocks=256, grammars=fake_grammars()) as stack:
        asked = [
            held_request(number, [number, *PROMPT], (AMOUNT, WORDS, None)[number % 3], **fields)
            for number, fields in enumerate(
                [{}, {"n": 3}, {"temperature": 0.0}, {"n": 2, "ignore_eos": True}, {"min_tokens": 12}, {}] * 2
            )
        ]
        told = await asyncio.gather(*(answers(stack.gateways[0], request) for request in asked))
        assert told == [expected_answers(request) for request in asked]
        whole = [answer for request, each in zip(asked, told, strict=True) for answer in each if _is_json(request)]
        assert len(whole) >= 6 and all(map(is_amount, whole))
        await until(lambda: all(worker.is_clean for worker in stack.workers.values()))


def _is_json(request: EngineRequest) -> bool:
    return request.sampling.grammar == AMOUNT


class Alone:
    """One worker, driven by hand."""

    def __init__(self, num_blocks: int = 64, grammars: Grammars | None = None) -> None:
        arena = Arena.create(fake_layout(BLOCK_SIZE), num_blocks, shared=False)
        self.worker: Worker = make_worker("w", "unified", arena, 0, num_blocks, grammars=grammars or fake_grammars())
        self.told: list[wire.ToGateway] = []
        self.peer = self.worker.links.connect(self.told.append)

    def say(self, message: wire.ToWorker) -> None:
        self.worker.links.deliver(self.peer, message)
        self.worker.loop.turn(0.0)

    def turns(self) -> None:
        """Until nothing is left, also nothing that waits for a thread."""
        while self.worker.loop.turn(0.0) or self.worker.loop._gate.num_waiting:
            pass

    def outputs(self) -> list[TokenOutput]:
        steps = [message for message in self.told if isinstance(message, wire.StepOutputs)]
        return [output for step in steps for output in step.outputs]

    def tokens(self, request: EngineRequest, index: int = 0) -> list[TokenId]:
        mine = [each for each in self.outputs() if (each.request_id, each.sample_index) == (request.request_id, index)]
        return [token.token_id for output in mine for token in output.tokens]


@settings(max_examples=25, deadline=None)
@given(
    grammar=st.sampled_from([AMOUNT, WORDS]),
    seed=st.integers(0, 1000),
    cuts=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_a_request_resumed_after_any_token_goes_on_in_its_grammar(
    grammar: str, seed: int, cuts: Sequence[float], temperature: float
) -> None:
    """As after the death of a worker: prompt and emitted tokens are all that is left. Red when a place in a grammar is
    kept anywhere but in the tokens, or continuations that had other lengths get each other's."""
    request = held_request(seed, PROMPT, grammar, n=3, temperature=temperature)
    whole = expected_answers(request)
    emitted = [tokens[: int(cut * len(tokens))] for tokens, cut in zip(whole, cuts, strict=True)]
    samples = tuple(
        SampleState(index, list(tokens), FinishReason.STOP if tokens and tokens[-1] == EOS else None)
        for index, tokens in enumerate(emitted)
    )
    alone = Alone()
    alone.say(wire.Submit(request, samples))
    alone.turns()
    assert [[*tokens, *alone.tokens(request, index)] for index, tokens in enumerate(emitted)] == whole


def test_preempted_requests_go_on_in_their_grammars() -> None:
    """Red when what a preempted request comes back with is another output's place. The pool is small enough for it."""
    grammars = fake_grammars()
    known = [grammars.get(grammar) for grammar in (AMOUNT, WORDS)]  # so that all are there before one has ended
    alone = Alone(num_blocks=24, grammars=grammars)
    asked = [held_request(number, [number, *PROMPT[:9]], (AMOUNT, WORDS)[number % 2]) for number in range(6)]
    for request in asked:
        alone.say(wire.Submit(request))
    alone.turns()
    assert known and alone.worker.scheduler.num_preemptions > 0
    assert [alone.tokens(request) for request in asked] == [expected(request) for request in asked]


def test_a_grammar_with_nothing_left_ends_the_output_even_if_ends_are_ignored() -> None:
    """Red when ignore_eos or min_tokens make an output go on behind its end, or hang at it."""
    for fields in ({"ignore_eos": True}, {"min_tokens": 50}):
        alone, request = Alone(), held_request(1, PROMPT, **fields)
        alone.say(wire.Submit(request))
        alone.turns()
        assert is_amount(alone.tokens(request))
        assert alone.outputs()[-1].finish_reason is FinishReason.STOP


def test_ignored_ends_are_put_off_as_long_as_the_grammar_allows() -> None:
    """Red when an output of a grammar without a longest text ends early."""
    alone, request = Alone(), held_request(1, PROMPT, WORDS, ignore_eos=True, max_tokens=40)
    alone.say(wire.Submit(request))
    alone.turns()
    assert len(alone.tokens(request)) == 40 and EOS not in alone.tokens(request)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_output_that_can_never_be_whole_ends_at_its_limit(temperature: float) -> None:
    """Every object must hold another. Red when such a request hangs, fails, or ends in another way than by length."""
    endless = LLMatcher.grammar_from_json_schema(
        {
            "$ref": "#/$defs/o",
            "$defs": {
                "o": {
                    "type": "object",
                    "properties": {"o": {"$ref": "#/$defs/o"}},
                    "required": ["o"],
                    "additionalProperties": False,
                }
            },
        }
    )
    alone, request = Alone(), held_request(1, PROMPT, endless, max_tokens=50, temperature=temperature)
    alone.say(wire.Submit(request))
    alone.turns()
    assert alone.tokens(request) == expected(request) and len(alone.tokens(request)) == 50
    assert alone.outputs()[-1].finish_reason == FinishReason.LENGTH


# ---- compiled beside the step loop -----------------------------------------------------------------------------------


def fake_vocabulary_grammar(number: int) -> str:
    return WORDS.replace("{2}", f"{{{number + 2}}}")


class Held:
    """Grammars that are compiled when the test says so, after one that takes as long as that."""

    LONG = fake_vocabulary_grammar(99)

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.num_compiled = 0
        self.grammars = Grammars(lambda: cast(GrammarVocabulary, self))
        self.grammars.prepare(self.LONG, lambda: None)

    def compile(self, grammar: str) -> Any:
        if grammar == self.LONG:
            self.may_go_on.wait()
        else:
            self.num_compiled += 1
        return fake_vocabulary().compile(grammar)


@pytest.fixture
def held() -> Any:
    held = Held()
    yield held
    held.may_go_on.set()
    held.grammars.close()


def test_others_run_while_a_grammar_is_compiled(held: Held) -> None:
    """Red when the step loop waits for a compiler, or the request is lost for having waited."""
    alone = Alone(grammars=held.grammars)
    slow, quick = held_request(1, PROMPT), request_for(2, PROMPT)
    alone.say(wire.Submit(slow))
    alone.say(wire.Submit(quick))
    while alone.worker.loop.turn(0.0):
        pass
    assert (len(alone.tokens(quick)), alone.tokens(slow), held.num_compiled) == (8, [], 0)
    held.may_go_on.set()
    alone.turns()
    assert alone.tokens(slow) == expected(slow)


def test_an_abort_while_the_grammar_is_compiled_is_answered_at_once(held: Held) -> None:
    """Red when it waits for the compiler, or the request begins afterwards. What had not begun is not compiled."""
    alone = Alone(grammars=held.grammars)
    request = held_request(1, PROMPT)
    alone.say(wire.Submit(request))
    alone.say(wire.Abort(request.request_id))
    assert wire.Dropped(request.request_id) in alone.told
    held.may_go_on.set()
    alone.turns()
    held.grammars.prepare(WORDS, lambda: None).result()  # whatever was to be compiled before it, was
    alone.turns()
    assert (alone.outputs(), held.num_compiled, alone.worker.is_clean) == ([], 1, True)


def test_requests_of_a_gateway_that_is_gone_are_not_compiled(held: Held) -> None:
    """Red when a lost gateway's requests begin."""
    alone = Alone(grammars=held.grammars)
    alone.say(wire.Submit(held_request(1, PROMPT)))
    alone.worker.links.disconnect(alone.peer)
    alone.worker.loop.turn(0.0)
    held.may_go_on.set()
    held.grammars.prepare(WORDS, lambda: None).result()
    alone.turns()
    assert (held.num_compiled, alone.worker.is_clean) == (1, True)


def test_a_worker_that_drains_finishes_what_waits_for_its_grammar(held: Held) -> None:
    """Red when a request in the compiler does not count as one that is left."""
    alone = Alone(grammars=held.grammars)
    request = held_request(1, PROMPT)
    alone.say(wire.Submit(request))
    alone.say(wire.Drain())
    loop = alone.worker.loop
    assert not loop.may_leave(loop.clock.now_ns())
    held.may_go_on.set()
    alone.turns()
    assert alone.tokens(request) == expected(request) and loop.may_leave(loop.clock.now_ns())


async def test_a_split_request_waits_on_both_workers(held: Held) -> None:
    """Its messages wait in order. Red when one of them overtakes the one that its room comes from."""
    async with in_process_stack(SPLIT, num_gateways=1, num_blocks=128, grammars=held.grammars) as stack:
        asked = [held_request(number, [number, *PROMPT]) for number in range(4)]
        tasks = [asyncio.create_task(answers(stack.gateways[0], request)) for request in asked]
        free, _ = await stack.gateways[0].tokens(request_for(9, PROMPT))
        assert len(free) == 8
        held.may_go_on.set()
        assert [await task for task in tasks] == [expected_answers(request) for request in asked]
        assert held.num_compiled == 1  # by the two workers of this process together


def test_a_grammar_is_compiled_once_and_the_least_recent_is_forgotten() -> None:
    """Red when requests with one schema compile it again, or every schema that was ever seen is kept. What somebody
    still has is known whatever came after it."""
    held = Held()
    held.may_go_on.set()
    first = held.grammars.get(AMOUNT)
    for _ in range(3):
        assert held.grammars.get(AMOUNT) is first
    many = [fake_vocabulary_grammar(number) for number in range(NUM_KEPT)]
    for grammar in many:
        held.grammars.get(grammar)
    assert held.num_compiled == 1 + NUM_KEPT
    assert held.grammars.known(AMOUNT) is first
    held.grammars.get(many[-1])
    assert held.num_compiled == 1 + NUM_KEPT
    held.grammars.get(many[0])  # which `known` above pushed out
    assert held.num_compiled == 2 + NUM_KEPT


# ---- what cannot be held ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("roles", [UNIFIED, SPLIT], ids=["unified", "split"])
async def test_a_grammar_that_cannot_be_compiled_ends_its_request_only(roles: dict[str, str]) -> None:
    """A gateway refuses it before; a worker may be asked by another. Red when it is tried elsewhere, kills a worker or
    says something else than what is wrong."""
    async with in_process_stack(roles, num_gateways=1, grammars=fake_grammars()) as stack:
        with pytest.raises(InvalidGrammar, match="unclosed group"):
            await answers(stack.gateways[0], held_request(1, PROMPT, BROKEN))
        good = held_request(2, PROMPT)
        assert await answers(stack.gateways[0], good) == expected_answers(good)
        await until(lambda: all(worker.is_clean for worker in stack.workers.values()))


@pytest.mark.parametrize("roles", [UNIFIED, SPLIT], ids=["unified", "split"])
@pytest.mark.parametrize("n", [1, 2])
async def test_a_grammar_that_fails_in_mid_output_ends_its_request_only(roles: dict[str, str], n: int) -> None:
    """Red when such a request hangs, goes on without its grammar, is tried on every worker in turn, or takes those
    along that shared its step."""
    async with in_process_stack(roles, num_gateways=1, num_blocks=128, grammars=fake_grammars()) as stack:
        neighbours = [held_request(2, PROMPT, WORDS, ignore_eos=True), request_for(3, PROMPT, max_tokens=50)]
        doomed = held_request(1, PROMPT, BOMB, n=n, ignore_eos=True)
        told: list[TokenId] = []

        async def fails() -> None:
            async for output in generate(stack.gateways[0].dispatcher, doomed):
                told.extend(token.token_id for token in output.tokens)

        task = asyncio.create_task(fails())
        others = await asyncio.gather(*(stack.gateways[0].tokens(each) for each in neighbours))
        with pytest.raises(GrammarFailed, match=r"too many expressions.*simpler"):
            await task
        assert len(told) > 10 and set(text_of(told)) == {"a"}
        assert [tokens for tokens, _ in others] == [expected(each) for each in neighbours]
        await until(lambda: all(worker.is_clean for worker in stack.workers.values()))
