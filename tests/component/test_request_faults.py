"""Code of Relevo's own that raises over one request: that request ends, the worker, the connections and the others
stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from in_process_stack import InProcessStack, in_process_stack, request_for, until

from relevo.core.errors import InternalError, WorkerError
from relevo.policy.routing.worker_choice import WorkerView

SPLIT = {"d": "decode", "p": "prefill"}
PROMPT = list(range(20))
CULPRIT = "r1"


def names(argument: Any) -> bool:
    request = getattr(argument, "request", argument)
    return CULPRIT in (argument, getattr(request, "request_id", None))


def break_over_the_culprit(owner: Any, method: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The method raises whenever it is called for the culprit. One entry per time."""
    right, raised = getattr(type(owner), method), []

    def fail(*args: Any, **kwargs: Any) -> Any:
        if any(names(argument) for argument in args):
            raised.append(method)
            raise error
        return right(*args, **kwargs)

    monkeypatch.setattr(type(owner), method, fail)
    return raised


async def ends_alone(stack: InProcessStack, error: type[Exception]) -> None:
    gateway = stack.gateways[0]
    wanted, _ = await gateway.tokens(request_for(0, PROMPT))
    others = [asyncio.create_task(gateway.tokens(request_for(index, PROMPT))) for index in (2, 3)]
    with pytest.raises(error):
        await gateway.tokens(request_for(1, [7, *PROMPT]))
    assert [tokens for tokens, _ in await asyncio.gather(*others)] == [wanted, wanted]
    assert (await gateway.tokens(request_for(4, PROMPT)))[0] == wanted
    await until(
        lambda: all(worker.is_clean for worker in stack.workers.values()) and not gateway.dispatcher.num_in_flight
    )
    assert gateway.placement.is_idle and len(gateway.links) == len(stack.workers)


OF_THE_WORKER: dict[str, Callable[[Any], Any]] = {
    "submit": lambda worker: worker.loop.scheduler,
    "reserve": lambda worker: worker.loop.scheduler,
    "prefill_into": lambda worker: worker.loop.scheduler,
    "start_decode": lambda worker: worker.loop.scheduler,
    "seal": lambda worker: worker.loop.transports["shm"],
    "write": lambda worker: worker.loop.transports["shm"],
}


@pytest.fixture(autouse=True)
def every_prompt_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before costs are measured no prompt is computed on its decode worker, however slow this machine is."""
    monkeypatch.setattr(WorkerView, "has_measured_costs", property(lambda view: False))


@pytest.mark.parametrize("method", OF_THE_WORKER)
async def test_what_raises_for_one_request_on_a_worker_ends_that_request_only(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Red when the step loop ends with it, when it is tried again elsewhere, or when blocks stay behind."""
    roles = {"a": "unified", "b": "unified"} if method == "submit" else SPLIT
    async with in_process_stack(roles, num_gateways=1) as stack:
        owner = OF_THE_WORKER[method](next(iter(stack.workers.values())))
        raised = break_over_the_culprit(owner, method, ZeroDivisionError("of ours"), monkeypatch)
        await ends_alone(stack, InternalError)
        faults = sum(worker.loop.reports.counters().num_request_faults for worker in stack.workers.values())
        assert raised == [method] and faults == 1
        assert [record.exc_info is not None for record in caplog.records if CULPRIT in record.getMessage()] == [True]


async def test_what_the_machine_lacks_is_tried_on_another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_process_stack({"a": "unified", "b": "unified"}, num_gateways=1) as stack:
        owner = stack.workers["a"].loop.scheduler
        raised = break_over_the_culprit(owner, "submit", MemoryError("for now"), monkeypatch)
        with pytest.raises(WorkerError):
            await stack.gateways[0].tokens(request_for(1, PROMPT))
        assert len(raised) > 1


@pytest.mark.parametrize("method", ["choose_decode", "choose_prefill", "observe"])
async def test_what_raises_for_one_request_at_the_gateway_ends_no_connection_and_no_other_stream(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Red when the task that serves the worker's connection ends with it."""
    async with in_process_stack(SPLIT, num_gateways=1) as stack:
        break_over_the_culprit(stack.gateways[0].placement, method, ZeroDivisionError("of ours"), monkeypatch)
        await ends_alone(stack, InternalError)
        assert [record.exc_info is not None for record in caplog.records if CULPRIT in record.getMessage()] == [True]


async def test_a_message_that_cannot_be_handled_ends_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache reports are of no request."""
    async with in_process_stack({"a": "unified"}, num_gateways=1) as stack:
        gateway, raised = stack.gateways[0], []

        def fail(*args: Any) -> bool:
            raised.append(args)
            raise ZeroDivisionError("of ours")

        monkeypatch.setattr(type(gateway.placement), "take_cache_report", fail)
        assert len((await gateway.tokens(request_for(0, PROMPT)))[0]) == 8
        assert len((await gateway.tokens(request_for(2, PROMPT)))[0]) == 8
        assert raised and len(gateway.links) == 1 and not gateway.task.done()


async def test_a_request_of_which_room_cannot_be_told_blocks_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when the line is asked again and again about the one at its head, and nothing behind it goes."""
    async with in_process_stack({"a": "unified"}, num_gateways=1) as stack:
        gateway = stack.gateways[0]
        raised = break_over_the_culprit(gateway.placement, "has_room", ZeroDivisionError("of ours"), monkeypatch)
        culprit = asyncio.create_task(gateway.tokens(request_for(1, PROMPT)))
        assert len((await gateway.tokens(request_for(2, PROMPT)))[0]) == 8
        await culprit
        assert raised == ["has_room"]
