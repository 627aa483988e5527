"""Drives a runner as a worker's loop does, with a real scheduler and without messages, and stamps every part of a step.

A prompt is submitted and computed. A batch of decodes is placed as a handoff places it: room is reserved, the KV is
declared complete, a baton starts the decode; so a long context costs no prefill. Its content does not matter to time.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from relevo.bench.engine.held import first_token
from relevo.bench.engine.words import EngineUnderTest
from relevo.core.baton import Baton, SampleState
from relevo.core.errors import StartError
from relevo.core.ids import RequestId
from relevo.core.plan import StepClocks
from relevo.core.request import EngineRequest, SamplingParams
from relevo.policy.worker.scheduler import Scheduler

WARM_UP_STEPS = 2  # of a batch of decodes, unmeasured; arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    num_tokens: int
    num_kv_tokens: int
    schedule_s: float  # plan and commit
    execute_s: float
    clocks: StepClocks | None

    @property
    def total_s(self) -> float:
        return self.schedule_s + self.execute_s

    @property
    def rest_s(self) -> float:
        """What no clock of the runner covers: the interpreter between the parts."""
        if self.clocks is None:
            return 0.0
        return self.execute_s - self.clocks.inputs_s - self.clocks.kernels_s - self.clocks.sampling_s


def time_prefill(engine: EngineUnderTest, prompt_len: int, rng: random.Random) -> list[TimedStep]:
    """The steps of one prompt, in the chunks a worker would use."""
    scheduler = engine.new_scheduler()
    rejected = scheduler.submit(_request(engine, "prompt", prompt_len, 1, rng), (), _now())
    if rejected is not None:
        raise StartError(f"a prompt of {prompt_len} tokens cannot run: {rejected.reason}")
    return _steps(engine, scheduler)


def time_decode(
    engine: EngineUnderTest,
    batch_size: int,
    context: int,
    num_steps: int,
    rng: random.Random,
    grammar: str | None = None,
) -> list[TimedStep]:
    """`num_steps` steps of a batch whose rows start at `context` tokens each. `grammar`: of every row."""
    scheduler = engine.new_scheduler()
    num_outputs = 1 + WARM_UP_STEPS + num_steps
    requests = [_request(engine, f"decode-{row}", context, num_outputs, rng, grammar) for row in range(batch_size)]
    for request in requests:
        rejected = scheduler.reserve(request, _now())
        if rejected is not None:
            raise StartError(f"{batch_size} contexts of {context} tokens cannot run: {rejected.reason}")
    if len(scheduler.take_grants(_now())) < batch_size:
        raise StartError(f"{batch_size} contexts of {context} tokens do not fit into the KV cache")
    for request in requests:
        scheduler.seal(request.request_id, context)
        first = _token(engine, rng) if grammar is None else first_token(engine, grammar)
        samples = (SampleState(0, [first]),)
        baton = Baton(request_id=request.request_id, samples=samples, num_sealed_tokens=context)
        rejected = scheduler.start_decode(baton, _now())
        if rejected is not None:
            raise StartError(f"a decode at {context} tokens cannot start: {rejected.reason}")
    return _steps(engine, scheduler)[WARM_UP_STEPS:]


def _steps(engine: EngineUnderTest, scheduler: Scheduler) -> list[TimedStep]:
    """Until nothing is left to compute."""
    steps: list[TimedStep] = []
    while True:
        started = time.perf_counter()
        plan = scheduler.plan(_now())
        if plan is None:
            return steps
        planned = time.perf_counter()
        result = engine.runner.execute(plan)
        executed = time.perf_counter()
        scheduler.commit(plan, result, _now())
        committed = time.perf_counter()
        steps.append(
            TimedStep(
                num_tokens=plan.num_tokens,
                num_kv_tokens=plan.num_kv_tokens,
                schedule_s=planned - started + committed - executed,
                execute_s=executed - planned,
                clocks=result.clocks,
            )
        )


def _request(
    engine: EngineUnderTest,
    name: str,
    prompt_len: int,
    max_tokens: int,
    rng: random.Random,
    grammar: str | None = None,
) -> EngineRequest:
    return EngineRequest(
        request_id=RequestId(name),
        prompt_token_ids=tuple(_token(engine, rng) for _ in range(prompt_len)),
        sampling=SamplingParams(
            max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=grammar is None, grammar=grammar
        ),
    )


def _token(engine: EngineUnderTest, rng: random.Random) -> int:
    return rng.randrange(engine.runner.vocab_size)


def _now() -> int:
    return time.monotonic_ns()
