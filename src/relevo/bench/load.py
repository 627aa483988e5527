"""Drives requests at a server: open loop (arrivals do not wait for answers) and closed loop (clients that do).

Owns time and concurrency, nothing else; a record is appended to `records` before its request is sent, so that a run
that is cut short still holds everything that happened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from relevo.bench.records import ClientRecord, PlannedRequest

Send = Callable[[PlannedRequest, ClientRecord], Coroutine[Any, Any, None]]


async def run_open_loop(requests: Sequence[PlannedRequest], send: Send, records: list[ClientRecord]) -> None:
    """Send each request at its `due_at_s` after the start (None: at once) and return when all have ended.

    Never waits for an answer before the next request leaves. Cancelling ends every request in flight.
    """
    start_ns = time.monotonic_ns()
    async with asyncio.TaskGroup() as tasks:
        for planned in sorted(requests, key=lambda request: request.due_at_s or 0.0):
            due_at_ns = start_ns + round((planned.due_at_s or 0.0) * 1e9)
            wait_s = (due_at_ns - time.monotonic_ns()) / 1e9
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.create_task(send(planned, _new_record(planned, records, due_at_ns)))


async def run_closed_loop(
    requests: AsyncIterator[PlannedRequest],
    send: Send,
    records: list[ClientRecord],
    *,
    concurrency: int,
    duration_s: float | None = None,
) -> None:
    """`concurrency` clients, each sends its next request when its last one has ended, until `requests` is used up.

    After `duration_s` no new request is sent; those in flight are waited for.
    """
    ends_at_ns = None if duration_s is None else time.monotonic_ns() + round(duration_s * 1e9)
    turn = asyncio.Lock()

    async def take() -> PlannedRequest | None:
        async with turn:
            if ends_at_ns is not None and time.monotonic_ns() >= ends_at_ns:
                return None
            return await anext(requests, None)

    async def one_client() -> None:
        while (planned := await take()) is not None:
            await send(planned, _new_record(planned, records, None))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(concurrency):
            tasks.create_task(one_client())


def _new_record(planned: PlannedRequest, records: list[ClientRecord], due_at_ns: int | None) -> ClientRecord:
    record = ClientRecord(
        index=len(records),
        num_wanted_input_tokens=planned.num_input_tokens,
        max_tokens=planned.max_tokens,
        due_at_ns=due_at_ns,
    )
    records.append(record)
    return record
