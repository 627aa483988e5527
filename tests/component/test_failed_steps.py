"""What a step that fails means for the requests in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from in_process_stack import Worker, in_process_stack, request_for, until

from relevo.core.errors import InvalidRequest, StepFailed
from relevo.core.ids import RequestId
from relevo.core.plan import ScheduledRow
from relevo.engine.fake_runner import FakeRunner

PROMPT = list(range(20))


def set_fault(worker: Worker, fault: Callable[[Sequence[ScheduledRow]], None]) -> None:
    assert isinstance(worker.loop.runner, FakeRunner)
    worker.loop.runner.fault = fault


def poison(worker: Worker, request_id: str, companion: str) -> list[set[RequestId]]:
    """Every step that draws for the request fails once it is beside its companion. The requests of those steps."""
    failed: list[set[RequestId]] = []

    def fail(rows: Sequence[ScheduledRow]) -> None:
        drawing = {row.request_id for row in rows if row.samples}
        if request_id in drawing and (failed or companion in drawing):
            failed.append(drawing)
            raise StepFailed("no numbers", request_ids=[request_id])

    set_fault(worker, fail)
    return failed


async def test_the_others_of_a_failed_step_go_on_as_if_nothing_had_been() -> None:
    """The sampler names whose numbers were none. Red when all that shared its step fail with it."""
    async with in_process_stack({"unified-0": "unified"}, num_gateways=1) as stack:
        worker, gateway = stack.workers["unified-0"], stack.gateways[0]
        wanted, _ = await gateway.tokens(request_for(0, PROMPT))
        failed = poison(worker, "r1", "r2")
        worker.hold()
        poisoned = asyncio.create_task(gateway.tokens(request_for(1, [7, 7, 7])))
        innocent = asyncio.create_task(gateway.tokens(request_for(2, PROMPT)))
        await until(lambda: worker.loop.core.num_requests == 2)
        worker.go_on()
        with pytest.raises(StepFailed, match="no numbers"):
            await poisoned
        assert (await innocent)[0] == wanted
        assert failed == [{"r1", "r2"}]
        await until(lambda: worker.is_clean)


@pytest.mark.parametrize("roles", [{"a": "unified", "b": "unified"}, {"d": "decode", "p": "prefill"}])
async def test_what_an_engine_says_of_a_request_is_told_as_it_is_and_once(roles: dict[str, str]) -> None:
    """Red when another worker is asked for what the request is to blame for, or a worker is said to have failed."""
    async with in_process_stack(roles, num_gateways=1) as stack:
        asked: list[RequestId] = []

        def refuse(rows: Sequence[ScheduledRow]) -> None:
            drawing = [row.request_id for row in rows if row.samples]
            asked.extend(drawing)
            if drawing:
                raise InvalidRequest("leave it out")

        for worker in stack.workers.values():
            set_fault(worker, refuse)
        with pytest.raises(InvalidRequest, match=r"^leave it out$"):
            await stack.gateways[0].tokens(request_for(0, PROMPT))
        assert asked == ["r0"]
        await until(lambda: all(worker.is_clean for worker in stack.workers.values()))


@pytest.mark.parametrize("culprits", [{"r3"}, {"r0", "r7", "r15"}])
@pytest.mark.parametrize("roles", [{"a": "unified"}, {"d": "decode", "p": "prefill"}])
async def test_an_error_that_names_no_request_ends_the_one_that_causes_it_only(
    roles: dict[str, str], culprits: set[str]
) -> None:
    """Red when others of its step fail with it, are drawn anew with other tokens, or leave blocks behind."""
    async with in_process_stack(roles, num_gateways=1, num_blocks=128) as stack:
        gateway, workers = stack.gateways[0], stack.workers.values()
        prompts = [[index, *PROMPT] for index in range(16)]
        wanted = [(await gateway.tokens(request_for(100 + index, prompt)))[0] for index, prompt in enumerate(prompts)]

        def fail(rows: Sequence[ScheduledRow]) -> None:
            if culprits.intersection(row.request_id for row in rows):
                raise IndexError("somewhere in the middle")

        for worker in workers:
            set_fault(worker, fail)
        answers = await asyncio.gather(
            *(gateway.tokens(request_for(index, prompt)) for index, prompt in enumerate(prompts)),
            return_exceptions=True,
        )
        for index, answer in enumerate(answers):
            if f"r{index}" in culprits:
                assert isinstance(answer, StepFailed) and "somewhere in the middle" in str(answer)
            else:
                assert not isinstance(answer, BaseException) and answer[0] == wanted[index]
        await until(lambda: all(worker.is_clean for worker in workers))


async def test_a_step_that_raises_once_ends_no_request_of_several() -> None:
    """What does not come again is no request's fault."""
    async with in_process_stack({"a": "unified"}, num_gateways=1) as stack:
        worker, gateway = stack.workers["a"], stack.gateways[0]
        wanted, _ = await gateway.tokens(request_for(0, PROMPT))
        raised: list[int] = []

        def fail(rows: Sequence[ScheduledRow]) -> None:
            if len(rows) > 1 and not raised:
                raised.append(len(rows))
                raise MemoryError("for a moment")

        set_fault(worker, fail)
        worker.hold()
        tasks = [asyncio.create_task(gateway.tokens(request_for(index, PROMPT))) for index in (1, 2)]
        await until(lambda: worker.loop.core.num_requests == 2)
        worker.go_on()
        assert [tokens for tokens, _ in await asyncio.gather(*tasks)] == [wanted, wanted] and raised
        await until(lambda: worker.is_clean)
