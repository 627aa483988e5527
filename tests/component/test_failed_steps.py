"""What a step that fails means for the requests in it."""

from __future__ import annotations

import asyncio

import pytest
from in_process_stack import Worker, in_process_stack, request_for, until

from relevo.core.errors import StepFailed
from relevo.core.ids import RequestId
from relevo.core.plan import StepPlan, StepResult

PROMPT = list(range(20))


def poison(worker: Worker, request_id: str, companion: str) -> list[set[RequestId]]:
    """Every step that draws for the request fails once it is beside its companion. The requests of those steps."""
    failed: list[set[RequestId]] = []
    execute = worker.loop.runner.execute

    def fail(plan: StepPlan) -> StepResult:
        drawing = {row.request_id for row in plan.rows if row.samples}
        if request_id in drawing and (failed or companion in drawing):
            failed.append(drawing)
            raise StepFailed("no numbers", request_ids=[request_id])
        return execute(plan)

    worker.loop.runner.execute = fail  # type: ignore[method-assign]
    return failed


async def test_the_others_of_a_failed_step_go_on_as_if_nothing_had_been() -> None:
    """The sampler names whose numbers were none. Red when everybody who shared its step fails with it."""
    async with in_process_stack({"unified-0": "unified"}, num_gateways=1) as stack:
        worker, gateway = stack.workers["unified-0"], stack.gateways[0]
        wanted, _ = await gateway.tokens(request_for(0, PROMPT))
        failed = poison(worker, "r1", "r2")
        worker.hold()
        poisoned = asyncio.create_task(gateway.tokens(request_for(1, [7, 7, 7])))
        innocent = asyncio.create_task(gateway.tokens(request_for(2, PROMPT)))
        await until(lambda: len(worker.loop._owners) == 2)
        worker.go_on()
        with pytest.raises(StepFailed, match="no numbers"):
            await poisoned
        assert (await innocent)[0] == wanted
        assert failed == [{"r1", "r2"}]
        await until(lambda: worker.is_clean)
