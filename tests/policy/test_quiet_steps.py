"""Many decode steps at once leave a worker exactly as single steps do."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_model import make_request

from relevo.core.baton import Baton, SampledToken, SampleState
from relevo.core.events import TokenOutput
from relevo.core.plan import StepPlan, StepResult
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig, StepOutcome

TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=12)
ACTIONS = st.one_of(
    st.tuples(st.just("submit"), TOKENS, st.integers(1, 30), st.integers(1, 3), st.sampled_from(["", "b"])),
    st.tuples(st.just("handoff"), TOKENS, st.integers(2, 30), st.integers(1, 2), st.sampled_from(["", "b"])),
    st.tuples(st.just("abort"), st.integers(0, 9)),
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.just("jump"), st.integers(1, 40)),
)


# What a runner was told of: after a jump the next plan tells what is new since the last one.
OF_THE_RUNNER = {"_writer", "_closed", "sequence_id", "num_told_blocks", "has_new_blocks"}


def whole(one: Any, seen: dict[int, tuple[int, Any]] | None = None) -> Any:
    """Everything that the object holds, in order, and which objects in it are the same. What is made on the way
    is kept alive, or the next object could have its id."""
    seen = {} if seen is None else seen
    if isinstance(one, int | str | bytes | float | frozenset) or one is None:
        return one
    if id(one) in seen:
        return f"see {seen[id(one)][0]}"
    seen[id(one)] = (len(seen), one)
    if isinstance(one, Mapping):
        return [(whole(key, seen), whole(value, seen)) for key, value in one.items()]
    if isinstance(one, set):
        return sorted(map(repr, one))
    if isinstance(one, list | tuple | deque) or type(one).__name__ == "array":
        return [whole(each, seen) for each in one]
    names = list(getattr(one, "__dict__", ()))
    for cls in type(one).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return type(one).__name__, [
        (name, whole(getattr(one, name), seen)) for name in names if hasattr(one, name) and name not in OF_THE_RUNNER
    ]


def draws(plan: StepPlan, number: int) -> StepResult:
    """Every sequence draws the same token in one step, another one in the next."""
    token = SampledToken(1 + number % 3)
    return StepResult(plan.step_id, tuple((token,) * num_draws for num_draws in plan.num_draws), 0.0)


class Worker:
    def __init__(self, block_size: int, num_blocks: int, is_caching: bool, max_running: int) -> None:
        config = SchedulerConfig(
            worker_id="w",
            epoch=1,
            first_block_id=0,
            num_blocks=num_blocks,
            block_size=block_size,
            max_batched_tokens=12,
            max_prefill_tokens=6,
            max_running=max_running,
            max_model_len=64,
            enable_prefix_caching=is_caching,
        )
        self.scheduler = Scheduler(config)
        self.num_steps = 0
        self.num_requests = 0
        self.num_jumped = 0

    def submit(self, prompt: list[int], max_tokens: int, n: int, tenant: str) -> None:
        request = make_request(self._next(), prompt, max_tokens=max_tokens, n=n, tenant=tenant, ignore_eos=True)
        self.scheduler.submit(request, (), 0)

    def handoff(self, prompt: list[int], max_tokens: int, n: int, tenant: str) -> None:
        """Of a prompt that another worker computed."""
        request = make_request(self._next(), prompt, max_tokens=max_tokens, n=n, tenant=tenant, ignore_eos=True)
        if self.scheduler.reserve(request, 0) is None:
            self.scheduler.take_grants(0)
            samples = tuple(SampleState(index, [1 + index]) for index in range(n))
            self.scheduler.start_decode(
                Baton(request_id=request.request_id, samples=samples, num_sealed_tokens=len(prompt)), 0
            )

    def abort(self, place: int) -> None:
        if self.scheduler.requests:
            names = list(self.scheduler.requests)
            self.scheduler.abort(names[place % len(names)], writer_active=False)

    def step(self, num_steps: int) -> list[StepOutcome]:
        outcomes = []
        for _ in range(num_steps):
            self.scheduler.take_grants(0)
            plan = self.scheduler.plan(0)
            if plan is not None:
                outcomes.append(self.scheduler.commit(plan, draws(plan, self.num_steps), 0))
                self.num_steps += 1
        return outcomes

    def jump(self, at_most: int) -> None:
        num_steps = self.scheduler.num_quiet_steps(at_most)
        if not num_steps:
            return
        other = copy.deepcopy(self)
        outcomes = other.step(num_steps)
        tokens = tuple(SampledToken(1 + (self.num_steps + index) % 3) for index in range(num_steps))
        outcome = self.scheduler.take_quiet_steps(tokens)
        self.num_steps += num_steps
        self.num_jumped += num_steps
        assert joined([outcome]) == joined(outcomes)
        assert whole(self.scheduler) == whole(other.scheduler)

    def _next(self) -> str:
        self.num_requests += 1
        return f"r{self.num_requests}"


def joined(outcomes: list[StepOutcome]) -> tuple[dict[tuple[str, int], list[SampledToken]], dict[str, str]]:
    tokens: dict[tuple[str, int], list[SampledToken]] = {}
    ends: dict[str, str] = {}
    for outcome in outcomes:
        assert not outcome.prefixes
        for output in outcome.all_outputs:
            assert isinstance(output, TokenOutput) and output.facts is None
            tokens.setdefault((output.request_id, output.sample_index), []).extend(output.tokens)
            if output.finish_reason is not None:
                ends[f"{output.request_id} {output.sample_index}"] = output.finish_reason.value
    return tokens, ends


@settings(max_examples=300)
@given(
    block_size=st.integers(1, 4),
    num_blocks=st.integers(6, 40),
    is_caching=st.booleans(),
    max_running=st.integers(1, 6),
    actions=st.lists(ACTIONS, min_size=3, max_size=25),
)
def test_a_jump_and_single_steps_leave_the_same_worker(
    block_size: int, num_blocks: int, is_caching: bool, max_running: int, actions: list[tuple[Any, ...]]
) -> None:
    """Every block, hash, count and order. Red when a step does something that a jump forgets."""
    worker = Worker(block_size, num_blocks, is_caching, max_running)
    for name, *arguments in actions:
        getattr(worker, name)(*arguments)


@pytest.mark.parametrize("is_caching", [True, False])
def test_a_stretch_lasts_until_something_is_to_be_decided(is_caching: bool) -> None:
    worker = Worker(block_size=4, num_blocks=9, is_caching=is_caching, max_running=4)
    assert worker.scheduler.num_quiet_steps(100) == 0  # nothing runs
    worker.submit([1, 2, 3], 10, 1, "")
    assert worker.scheduler.num_quiet_steps(100) == 0  # a prompt is to be computed
    worker.step(1)
    assert worker.scheduler.num_quiet_steps(100) == 9  # so many tokens are left, the last of them ends it
    assert worker.scheduler.num_quiet_steps(5) == 5
    worker.submit([2], 40, 1, "")
    assert worker.scheduler.num_quiet_steps(100) == 0  # a request waits
    worker.step(1)
    assert worker.scheduler.num_quiet_steps(100) == 8
    worker.jump(8)
    assert len(worker.scheduler.requests) == 1
    for _ in range(2):
        worker.jump(5)
    assert worker.num_jumped == 18


def test_a_stretch_ends_before_a_block_is_lacking() -> None:
    """Red when a jump goes on where single steps would preempt."""
    worker = Worker(block_size=2, num_blocks=8, is_caching=False, max_running=4)
    worker.submit([1, 2], 12, 1, "")
    worker.submit([1, 2], 12, 1, "")
    worker.step(1)
    assert worker.scheduler.num_quiet_steps(100) == 6
    worker.jump(6)
    assert worker.scheduler.pool.num_available == 0 and worker.scheduler.num_quiet_steps(100) == 0
    worker.step(1)
    assert worker.scheduler.num_preemptions == 1
