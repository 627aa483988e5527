"""The end of a gateway: what running answers are told, and where their rows go.

Red when a request that was admitted leaves no row or no last event, when an answer that is complete is cut instead of
ended, and when a gateway's own deadlines add up to more than the supervisor waits before it kills.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from metered_gateway import Metered, metered, until
from scripted_gateway import Hang, events, ids, says

from relevo.build import metering, serve_http
from relevo.build.serve_http import _on_signals, end_answers
from relevo.gateway.http.stopping import Stopping
from relevo.gateway.metering import writer
from relevo.gateway.metering.database import MemoryDatabase
from relevo.gateway.metering.journal import Journal, replay_journals
from relevo.gateway.metering.schema import prepare
from relevo.supervisor import GATEWAY_END_S
from relevo.wire.child_process import CUT_OFF

STREAMING_THEN_SILENT = [(0, ids("abc"), None), Hang()]


async def end(m: Metered, stopping: Stopping, drain_s: float = 0.0) -> None:
    stopping.drain()
    await end_answers(stopping, drain_s, m.meter.hurry)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_cut_has_its_row_and_its_last_event(stream: bool) -> None:
    stopping = Stopping()
    async with metered(STREAMING_THEN_SILENT, stopping=stopping) as m:
        answering = asyncio.create_task(m.rig.complete(stream=stream))
        await m.rig.generator.hanging.wait()
        await end(m, stopping)
        response = await answering
        if stream:
            *_, last = events(response)
            assert last["error"]["code"] == "server_stopping" and "[DONE]" not in response.text
        else:
            assert response.status_code == 503 and response.json()["error"]["code"] == "server_stopping"
            assert "Retry-After" in response.headers
        (row,) = await m.written()
        assert row.outcome == "failed"


async def test_what_runs_may_finish_before_the_cut_and_new_requests_are_refused() -> None:
    stopping = Stopping()
    async with metered(says("ab"), stopping=stopping) as m:
        m.connection.gate.clear()
        answering = asyncio.create_task(m.rig.complete())
        await until(lambda: m.connection.num_writes > 0)
        ending = asyncio.create_task(end(m, stopping, drain_s=3600.0))
        await until(lambda: stopping.is_draining)
        refused = await m.rig.complete()
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "server_stopping"
        assert "Retry-After" in refused.headers
        ready = await m.rig.get("/ready")
        assert ready.status_code == 503 and "stopped" in ready.json()["reason"]
        assert (await m.rig.get("/health")).status_code == 200
        m.connection.gate.set()
        assert (await answering).status_code == 200
        await ending
        assert [row.outcome for row in await m.written()] == ["finished"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_complete_answer_that_waits_for_a_slow_database_ends_well_over_the_journal(
    stream: bool, tmp_path: Path
) -> None:
    stopping = Stopping()
    async with metered(says("ab"), stopping=stopping, journal=Journal(tmp_path, "memory")) as m:
        m.connection.gate.clear()
        answering = asyncio.create_task(m.rig.complete(stream=stream))
        await until(lambda: m.connection.num_writes > 0)
        await end(m, stopping)
        response = await answering
        assert response.status_code == 200 and ("[DONE]" in response.text) == stream
        await m.meter.writer.close(0.0)  # the database still hangs
        assert m.meter.writer.is_stuck and m.rows() == []
        next_start = MemoryDatabase().connect()
        prepare(next_start)
        assert replay_journals(tmp_path, "memory", next_start).num_rows == 1
        (outcome,) = next_start.read("SELECT outcome FROM usage_ledger")
        assert outcome == ("finished",)


async def test_requests_cut_off_while_the_database_is_gone_are_all_in_the_journal(tmp_path: Path) -> None:
    stopping = Stopping()
    async with metered(STREAMING_THEN_SILENT, stopping=stopping, journal=Journal(tmp_path, "memory")) as m:
        m.rig.generator.num_to_hang = 32
        answering = [asyncio.create_task(m.rig.complete(stream=number % 2 == 0)) for number in range(32)]
        await m.rig.generator.hanging.wait()
        m.connection.full = True
        await end(m, stopping)
        await asyncio.gather(*answering)
        await m.meter.writer.close(0.0)
        next_start = MemoryDatabase().connect()
        prepare(next_start)
        assert replay_journals(tmp_path, "memory", next_start).num_rows == 32
        assert next_start.read("SELECT COUNT(*) FROM usage_ledger") == [(32,)]


async def test_without_any_place_for_its_row_an_answer_says_so_at_the_end_too() -> None:
    stopping = Stopping()
    async with metered(says("ab"), stopping=stopping) as m:
        m.connection.gate.clear()
        answering = asyncio.create_task(m.rig.complete(stream=True))
        await until(lambda: m.connection.num_writes > 0)
        await end(m, stopping)
        *_, last = events(await answering)
        assert last["error"]["code"] == "ledger_unavailable"


async def test_a_signal_to_every_process_of_a_service_cuts_nothing() -> None:
    """A gateway gets one from the service manager and one from its supervisor, which cuts by another signal."""
    stopping, seen = Stopping(), asyncio.Event()
    loop = asyncio.get_running_loop()
    _on_signals(stopping)
    loop.add_signal_handler(signal.SIGUSR2, seen.set)  # signals are handled in their order
    try:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGUSR2):
            os.kill(os.getpid(), number)
        await seen.wait()
        assert stopping.is_draining and not stopping.is_cut
        os.kill(os.getpid(), CUT_OFF)
        await until(lambda: stopping.is_cut)
    finally:
        for number in (signal.SIGTERM, signal.SIGUSR2, CUT_OFF):
            loop.remove_signal_handler(number)


def test_a_gateways_deadlines_after_the_cut_end_before_the_supervisors() -> None:
    stages = (
        *(serve_http.CUT_S, 2 * serve_http.CLOSE_CONNECTIONS_S, metering.LAST_TABS_S, metering.CLOSE_S),
        *(writer.STUCK_S, writer.JOURNAL_S, metering.CLOSE_CONNECTION_S),
    )
    assert sum(stages) < GATEWAY_END_S
