"""One decode worker, a prefill worker that shares its memory and one in another box: each hands over in its own way."""

from __future__ import annotations

import asyncio

import pytest
from in_process_stack import InProcessStack, Worker, in_process_stack, request_for

from relevo.core.handoff import KVPath, Link
from relevo.core.ids import WorkerId
from relevo.core.kv import Reservation
from relevo.policy.routing.worker_choice import WorkerView
from relevo.wire import messages as wire

ROLES = {"d": "decode", "near": "prefill", "distant": "prefill"}
PROMPTS = [[(7 * i + j) % 251 for j in range(21 + i)] for i in range(12)]


@pytest.fixture(autouse=True)
def every_prompt_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before costs are measured no prompt is computed on its decode worker, however slow this machine is."""
    monkeypatch.setattr(WorkerView, "has_measured_costs", property(lambda view: False))


async def answers(stack: InProcessStack) -> list[list[int]]:
    asked = [stack.gateways[0].tokens(request_for(index, prompt)) for index, prompt in enumerate(PROMPTS)]
    return [tokens for tokens, _ in await asyncio.gather(*asked)]


def handed_bytes(worker: Worker) -> int:
    return worker.loop.reports.counters().transferred_bytes


async def test_each_pair_hands_over_by_the_nearest_transport_that_both_have() -> None:
    """The fake engine's tokens are a function of the KV that it reads. Red when a worker computes into memory that the
    decode worker does not see, when a room is open over one transport only, or when the far worker is never used."""
    async with in_process_stack({"u": "unified"}, num_gateways=1) as alone:
        expected = await answers(alone)
    async with in_process_stack(ROLES, num_gateways=1, far=["distant"]) as stack:
        assert await answers(stack) == expected
        near, distant = stack.workers["near"], stack.workers["distant"]
        assert handed_bytes(near) > 0 and handed_bytes(distant) > 0
        pool = {name: worker.scheduler.load() for name, worker in stack.workers.items()}
        assert pool["near"].num_reusable_blocks == 0  # its prompts lay in the decode worker's blocks
        assert pool["distant"].num_reusable_blocks > 0  # its own blocks, which later prompts may hit
        assert stack.gateways[0].placement.is_idle
        assert all(worker.is_clean for worker in stack.workers.values())


async def test_a_path_over_a_transport_that_a_worker_lacks_is_refused() -> None:
    """Red when a gateway's mistake ends the step loop instead of the request."""
    async with in_process_stack({"p": "prefill"}, num_gateways=1) as stack:
        worker, told = stack.workers["p"], asyncio.Queue[wire.ToGateway]()
        peer = worker.links.connect(told.put_nowait)
        request = request_for(0, [1, 2])
        room = Reservation(
            request_id=request.request_id,
            worker_id=WorkerId("d"),
            epoch=1,
            block_size=4,
            block_ids=(0,),
            generations=(0,),
            num_hit_tokens=0,
        )
        worker.links.deliver(peer, wire.Prefill(request, room, KVPath("carrier pigeon", "", Link.NETWORK)))
        while not isinstance(message := await told.get(), wire.Refused):
            pass
        assert message.code == "handoff_failed" and "carrier pigeon" in message.reason
        assert request.request_id not in worker.scheduler.requests
        tokens, _ = await stack.gateways[0].tokens(request_for(1, [1, 2]))
        assert len(tokens) == 8
