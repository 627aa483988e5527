"""The supervisor and its children, which are small programs here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relevo.supervisor import ChildSpec, Supervisor


async def test_a_stop_while_a_child_is_being_started_ends_that_child_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when only children are ended that were there when the stop began: it would wait for the late one for ever."""
    start = asyncio.create_subprocess_exec
    processes: list[asyncio.subprocess.Process] = []
    supervisor = Supervisor(
        workers=[], gateways=[ChildSpec(name="gateway-0", kind="gateway", config={})], shutdown_timeout_s=0.0
    )

    async def start_late(*_: Any, **options: Any) -> asyncio.subprocess.Process:
        supervisor.stop()
        for _turn in range(5):  # the stop has looked at who is there
            await asyncio.sleep(0)
        processes.append(await start("sleep", "600", **options))
        return processes[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_late)
    running = asyncio.create_task(supervisor.run())
    try:
        async with asyncio.timeout(20.0):
            await running
        assert processes[0].returncode is not None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
