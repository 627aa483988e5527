"""A plan that was encoded and sent makes another runner compute what the first one computes.

Red when a plan leaves something to an object that only one process has (the place of an output in its grammar, too),
when a difference is forgotten (a block, a token, an end), or when a plan grows with the length of its sequences.
"""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from held_outputs import AMOUNT, DOOMED, EOS, WORDS, fake_grammars
from relevo.core.errors import StepFailed
from relevo.core.ids import RequestId
from relevo.core.plan import ScheduledRow, StepPlan, StepResult
from relevo.core.replica import Replica
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.fake_runner import FAKE_MODEL, FakeRunner, fake_layout
from relevo.engine.grammar_masks import GrammarMasks
from relevo.engine.step_recovery import execute_apart
from relevo.kv.arena import Arena
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig

BLOCK_SIZE = 4
NUM_BLOCKS = 14


def send(plan: StepPlan) -> StepPlan:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan)


class Ranks:
    """One scheduler, the runner beside it, and a rank that hears of it in bytes only."""

    def __init__(self, num_blocks: int = NUM_BLOCKS, max_batched_tokens: int = 12) -> None:
        self.scheduler = Scheduler(
            SchedulerConfig(
                worker_id="w",
                epoch=1,
                first_block_id=0,
                num_blocks=num_blocks,
                block_size=BLOCK_SIZE,
                max_batched_tokens=max_batched_tokens,
                max_prefill_tokens=max_batched_tokens,
                max_running=6,
                max_model_len=1000,
            )
        )
        layout = fake_layout(BLOCK_SIZE)
        self.arenas = [Arena.create(layout, num_blocks, shared=False) for _ in range(2)]
        self.here, self.there = (
            FakeRunner(arena, grammar_masks=GrammarMasks(fake_grammars(), FAKE_MODEL.vocab_size))
            for arena in self.arenas
        )
        self.num_steps = 0

    def step(self, failing: RequestId | None = None, aborted: RequestId | None = None) -> bool:
        """`failing`: its rows raise. `aborted`: its client goes while the step is computed."""
        plan = self.scheduler.plan(self.num_steps)
        if plan is None:
            return False
        self.num_steps += 1
        sent = send(plan)
        row_requests = self.scheduler.planned_requests
        results = [self._execute(runner, each, row_requests, failing) for runner, each in self._pairs(plan, sent)]
        assert (results[0].sampled, results[0].failures) == (results[1].sampled, results[1].failures)
        assert self.arenas[0].buffer == self.arenas[1].buffer
        for request_id in results[0].failures:
            self.scheduler.abort(request_id, writer_active=False)
        if aborted is not None:
            self.scheduler.abort(aborted, writer_active=False)
        self.scheduler.commit(plan, results[0], self.num_steps)
        return True

    def _pairs(self, plan: StepPlan, sent: StepPlan) -> list[tuple[FakeRunner, StepPlan]]:
        return [(self.here, plan), (self.there, sent)]

    def _execute(
        self, runner: FakeRunner, plan: StepPlan, row_requests: list[RequestId], failing: RequestId | None
    ) -> StepResult:
        def fault(rows: list[ScheduledRow]) -> None:
            if any(row.request_id == failing for row in rows):
                raise StepFailed("no numbers")

        runner.fault = fault if failing is not None else None
        try:
            return runner.execute(plan)
        except StepFailed as error:
            return execute_apart(runner, plan, row_requests, error)


def request(number: int, rng: Random) -> EngineRequest:
    """Prompts share beginnings, so that there are hits, and continuations, so that there are forks."""
    prompt = [*range(rng.choice((0, 3, 4, 8))), *(rng.randrange(100) for _ in range(rng.randrange(1, 9)))]
    return EngineRequest(
        request_id=RequestId(f"r{number}"),
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(
            max_tokens=rng.randrange(1, 16),
            n=rng.choice((1, 1, 2, 3)),
            seed=number,
            temperature=rng.choice((0.0, 1.0)),
            grammar=rng.choice((None, WORDS, AMOUNT, DOOMED)),
        ),
        eos_token_ids=(EOS,),
    )


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_a_rank_that_hears_of_plans_computes_the_same(seed: int) -> None:
    """Submissions, aborts in and between steps, steps that fail for one request, preemptions, hits and forks."""
    rng, ranks, live = Random(seed), Ranks(), []
    for number in range(12):
        asked = request(number, rng)
        if ranks.scheduler.submit(asked, (), ranks.num_steps) is None:
            live.append(asked.request_id)
        for _ in range(rng.randrange(4)):
            chosen = rng.choice(live) if live else None
            kind = rng.random()
            ranks.step(failing=chosen if kind < 0.1 else None, aborted=chosen if 0.1 <= kind < 0.2 else None)
            if 0.2 <= kind < 0.3 and chosen is not None:
                ranks.scheduler.abort(chosen, writer_active=False)
    while ranks.step():
        pass
    assert not ranks.scheduler.has_work()


def test_such_schedules_hold_what_they_are_meant_to() -> None:
    """Red when the requests above no longer preempt, hit, fork or fail: then the test above shows little."""
    num_preemptions = num_hits = num_copies = num_failures = 0
    for seed in (2, 4):
        rng, ranks = Random(seed), Ranks()
        for number in range(12):
            ranks.scheduler.submit(request(number, rng), (), 0)
        while (plan := ranks.scheduler.plan(0)) is not None:
            num_copies += len(plan.block_copies)
            result = ranks.here.execute(plan)
            for request_id in result.failures:
                num_failures += 1
                ranks.scheduler.abort(request_id, writer_active=False)
            ranks.scheduler.commit(plan, result, 0)
        num_preemptions += ranks.scheduler.num_preemptions
        num_hits += ranks.scheduler.num_prefix_hits
    assert num_preemptions and num_hits and num_copies and num_failures


def test_a_plan_does_not_grow_with_its_sequences() -> None:
    """Decoding costs a few bytes per sequence, however long each is; what is over is forgotten."""
    ranks, replica = Ranks(num_blocks=1000, max_batched_tokens=2000), Replica()
    for number in range(4):
        prompt = tuple(range(number, number + 400))
        sampling = SamplingParams(max_tokens=9, seed=1, ignore_eos=True)
        asked = EngineRequest(request_id=RequestId(f"r{number}"), prompt_token_ids=prompt, sampling=sampling)
        ranks.scheduler.submit(asked, (), 0)
    sizes = []
    for _ in range(9):
        plan = ranks.scheduler.plan(0)
        assert plan is not None
        sizes.append(len(msgspec.msgpack.encode(plan)))
        replica.apply(send(plan))
        ranks.scheduler.commit(plan, ranks.here.execute(plan), 0)
    names = len(msgspec.msgpack.encode(StepPlan(step_id=1)))
    assert sizes[0] > 4 * 400  # the prompts, once
    assert max(sizes[1:]) < names + 4 * 40
    assert ranks.scheduler.plan(0) is None
    asked = EngineRequest(
        request_id=RequestId("last"), prompt_token_ids=(1,), sampling=SamplingParams(max_tokens=1, seed=1)
    )
    ranks.scheduler.submit(asked, (), 0)
    plan = ranks.scheduler.plan(0)
    assert plan is not None and len(plan.removed) == 4
    replica.apply(send(plan))
    assert replica.num_sequences == 1
