"""Generated and mutated requests against the gateway's HTTP side, without a network: nothing is a failure or hangs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from http_mutations import conversations
from http_wire import LIMITS, Rig, statuses
from hypothesis import HealthCheck, given, settings
from scripted_gateway import rig, says

from relevo.policy.http.connections import LINGER_S

NUM_EXAMPLES = 250  # some 500 requests; tests/e2e/test_fuzz_server.py sends as many as it is told


class Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def script(request: Any) -> Any:
    return [step for sample in range(request.sampling.n) for step in says("x", sample=sample)]


async def converse(segments: list[bytes]) -> tuple[bytes, str]:
    """What came back, and what the server did about the connection in the end."""
    server = Rig(rig(script).app)
    connection, wire = server.open()
    for segment in segments:
        connection.data_received(segment)
        await asyncio.sleep(0)
    for _ in range(4):
        if server.limiter.tasks:
            await asyncio.wait(list(server.limiter.tasks), timeout=0.05)
    for seconds in (LIMITS.keep_alive_timeout_s, LIMITS.stall_timeout_s, LINGER_S, LIMITS.stall_timeout_s):
        server.pass_s(seconds)
        await server.settle()
    ended = wire.ended
    connection.connection_lost(None)
    if server.limiter.tasks:
        await asyncio.wait(list(server.limiter.tasks), timeout=5)
    assert not server.limiter.tasks and not len(server.limiter.table)
    return wire.written, ended


@settings(
    max_examples=NUM_EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(conversations())
def test_no_bytes_make_the_gateway_fail_or_keep_a_connection(segments: list[bytes]) -> None:
    """Red if any input were a 500, left a task, or a connection that no deadline ends."""
    errors = Errors()
    logging.getLogger().addHandler(errors)
    try:
        written, ended = asyncio.run(converse(segments))
    finally:
        logging.getLogger().removeHandler(errors)
    assert not errors.lines, errors.lines
    assert 500 not in statuses(written), written
    assert ended, written
