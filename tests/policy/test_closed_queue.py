"""What prompts wait for each other in a closed loop, and what cutting KV between unlike workers costs."""

from __future__ import annotations

import random
from dataclasses import replace
from heapq import heappop, heappush

import pytest
from planned_machines import demand, question, screen, small_shape

from relevo.core.kv import KVKind
from relevo.policy.perf.closed_queue import PromptQueue
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.reshard import reshard_s
from relevo.policy.scaling.candidates import Assumptions
from relevo.policy.scaling.search import Found, search

ONE, FOUR = Parallelism(), Parallelism(tensor=4)


def loop(concurrency: float, elsewhere_s: float = 9.0, num_servers: int = 1) -> PromptQueue:
    return PromptQueue(
        concurrency=concurrency, service_s=1.0, busy_s=1.0, num_servers=num_servers, elsewhere_s=elsewhere_s
    )


def simulated_response_s(queue: PromptQueue, num_requests: int = 4000) -> float:
    """The same closed loop, event by event; time elsewhere varies by a fifth."""
    rng = random.Random(1)
    free = [0.0] * queue.num_servers
    arrivals = [(rng.random() * queue.elsewhere_s, client) for client in range(int(queue.concurrency))]
    arrivals.sort()
    total = 0.0
    for _ in range(num_requests):
        at_s, client = heappop(arrivals)
        begins_s = max(at_s, heappop(free))
        heappush(free, begins_s + queue.busy_s)
        done_s = begins_s + queue.service_s
        total += done_s - at_s
        heappush(arrivals, (done_s + queue.elsewhere_s * rng.uniform(0.8, 1.2), client))
    return total / num_requests


@pytest.mark.parametrize(("concurrency", "num_servers"), [(1, 1), (3, 1), (8, 1), (12, 1), (30, 1), (16, 4), (80, 4)])
def test_a_prompt_waits_as_long_as_event_by_event(concurrency: int, num_servers: int) -> None:
    """Red when waiting has no end in a closed loop, or several servers count as one."""
    queue = loop(concurrency, num_servers=num_servers)
    assert queue.response_s == pytest.approx(simulated_response_s(queue), rel=0.35)


def test_beyond_saturation_the_servers_are_always_busy() -> None:
    queue = loop(100.0)
    assert queue.load == pytest.approx(10.0)
    assert 100.0 / (queue.elsewhere_s + queue.response_s) == pytest.approx(1.0, rel=0.02)


def test_only_heads_that_are_cut_otherwise_cost_writes() -> None:
    """Red when equal workers, or latents, pay for a cut that is not made."""
    shape = small_shape()
    assert reshard_s(shape, FOUR, FOUR, 4000, 1) == 0.0
    assert reshard_s(shape, ONE, FOUR, 4000, 1) == pytest.approx(16 * reshard_s(shape, ONE, FOUR, 4000, 16))
    latents = replace(
        shape, attention=tuple(replace(a, cache=replace(a.cache, kind=KVKind.LATENT)) for a in shape.attention)
    )
    assert reshard_s(latents, ONE, FOUR, 4000, 1) == 0.0


def test_a_split_that_cuts_tokens_into_pieces_is_not_chosen() -> None:
    """Red when a badly matched pair of workers comes out well: with pages of one token none is left at this load."""
    for page_tokens, expected in ((16, True), (1, False)):
        asked = question(demand(rate=60.0), "64xH100@3/h", assumed=Assumptions(page_tokens=page_tokens))
        answer = search(asked, screen(asked))
        assert isinstance(answer, Found)
        pairs = [[stage.kind.parallelism.tensor for stage in c.stages] for c in answer.candidates if c.is_split]
        assert any(first != second for first, second in pairs) is expected
