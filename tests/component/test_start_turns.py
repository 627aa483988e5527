"""Requests that arrive together are worked on one per turn of the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from scripted_gateway import raw_call, rig, says

from relevo.gateway.text.start_turns import StartTurns


async def test_who_comes_alone_does_not_wait() -> None:
    start_turns = StartTurns()
    for _ in range(3):
        entering = start_turns.enter()
        try:
            entering.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("it waited")
        await asyncio.sleep(0)  # a turn later it is open again


async def test_one_per_turn_in_order_and_who_gives_up_takes_no_turn() -> None:
    start_turns, entered = StartTurns(), list[tuple[int, int]]()
    turn = 0

    async def enter(number: int) -> None:
        await start_turns.enter()
        entered.append((turn, number))

    tasks = [asyncio.create_task(enter(number)) for number in range(6)]
    for turn in range(20):  # read by `enter`
        if turn == 1:
            tasks[3].cancel()
        await asyncio.sleep(0)
    assert [number for _, number in entered] == [0, 1, 2, 4, 5]
    turns = [at for at, _ in entered]
    assert len(set(turns)) == len(turns)
    assert turns[-1] - turns[1] == 3, "no turn is left out, not even that of the one that gave up"


async def test_a_burst_leaves_turns_to_running_streams() -> None:
    """Red if arrivals are worked on as they come: then all of them begin in one turn."""
    r = rig(says("ab"))
    body: dict[str, Any] = {"prompt": "hi", "stream": True}
    calls = [asyncio.create_task(raw_call(r.app, body, asyncio.Event().wait, "/v1/completions")) for _ in range(8)]
    most, before = 0, 0
    while not all(call.done() for call in calls):
        await asyncio.sleep(0)
        most, before = max(most, len(r.generator.requests) - before), len(r.generator.requests)
    assert len(r.generator.requests) == 8
    assert most == 1
