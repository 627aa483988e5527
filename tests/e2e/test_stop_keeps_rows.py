"""SIGTERM under streams while another process holds the ledger's file: every client is told, every row is there.

Red when the end of a gateway is not its own (a signal's default ends it before rows are kept), when a stream is cut
without its last event, and when rows that the database did not take are not in the ledger after the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from ledger_traffic import read_rows
from stack import stack
from test_ledger import metered

NUM_STREAMS = 32

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("num_signals", [1, 2], ids=["Ctrl-C", "Ctrl-C twice"])
def test_a_stop_while_the_database_is_locked_loses_no_row_and_no_last_event(tmp_path: Path, num_signals: int) -> None:
    flags, env = metered(tmp_path)
    shutdown_timeout_s = "0.1" if num_signals == 1 else "600"
    flags = (*flags, "--fake-base-s", "0.02", "--shutdown-timeout-s", shutdown_timeout_s)
    with stack(*flags, env=env) as running:
        last_events = asyncio.run(_streams_that_are_stopped(running, tmp_path / "relevo.db", num_signals))
        assert running.process.wait(timeout=60) == 0
    assert [event["error"]["code"] for event in last_events] == ["server_stopping"] * NUM_STREAMS
    assert read_rows(tmp_path / "relevo.db") == []
    assert len(list((tmp_path / "journal").iterdir())) == 1
    with stack(*flags, env=env):
        pass
    rows = read_rows(tmp_path / "relevo.db")
    assert sorted(row["response_id"] for row in rows) == sorted(f"cmpl-s{number}" for number in range(NUM_STREAMS))
    assert not list((tmp_path / "journal").iterdir())


async def _streams_that_are_stopped(running: Any, database: Path, num_signals: int) -> list[dict[str, Any]]:
    """The last event of each."""
    num_begun, all_begun = 0, asyncio.Event()

    async def stream(session: aiohttp.ClientSession, number: int) -> dict[str, Any]:
        nonlocal num_begun
        last: dict[str, Any] = {}
        body = {"model": "fake", "prompt": [1, 2, 3], "max_tokens": 2000, "ignore_eos": True, "stream": True}
        headers = {"x-request-id": f"s{number}"}
        async with session.post(running.url + "/v1/completions", json=body, headers=headers) as answer:
            async for line in answer.content:
                if line.startswith(b"data: "):
                    num_begun += not last
                    last = json.loads(line.removeprefix(b"data: "))
                    if num_begun == NUM_STREAMS:
                        all_begun.set()
        return last

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        streams = [asyncio.create_task(stream(session, number)) for number in range(NUM_STREAMS)]
        await all_begun.wait()
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            for _ in range(num_signals):
                running.process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.3)  # two signals that are pending together are one
            last_events = await asyncio.gather(*streams)
            await asyncio.to_thread(running.process.wait, 60)
    return last_events
