"""Keeps an engine that is not ours running, in a process of its own: starts it on a leash, tells when it answers, hands
SIGTERM on, and ends when it ends, so that the supervisor starts both again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable

from relevo.build.configs import EngineConfig
from relevo.client.http import CLIENT_ERRORS, HttpClient, Request
from relevo.core.errors import StartError
from relevo.telemetry.log import configure
from relevo.wire.child_process import Lifeline, answer_pulses, on_leash, python_environment
from relevo.wire.status import Status

log = logging.getLogger("relevo.engine")

_ASK_S = 0.1  # arbitrary: gateways find it by themselves, and what they found shall have been seen here
_KILL_AFTER_S = 5.0  # beside its own time for running requests; arbitrary
_LOOK_S = 5.0  # arbitrary: how often an engine that runs is looked at
_MAX_SILENT = 12  # looks in a row without an answer, a minute: no load keeps it silent for so long


def run_engine(config: EngineConfig, report: Callable[[Status], None]) -> None:
    """Until the engine ends. Raises StartError if it ends by itself before it ever answered; a signal gives no reason
    that a person could mend, so the supervisor tries again as often as with any process."""
    configure(config.log_level, config.worker_id)
    status = asyncio.run(_run(config, report))
    if status:
        sys.exit(status)


async def _run(config: EngineConfig, report: Callable[[Status], None]) -> int:
    report(Status(kind="progress", message=f"starting {config.argv[0]}"))
    lifeline = Lifeline()
    environment = python_environment() | config.environment
    engine = await asyncio.create_subprocess_exec(
        *on_leash(lifeline.read_fd, list(config.argv)),
        pass_fds=(lifeline.read_fd,),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=2,  # our standard error: its log is beside ours
        start_new_session=True,
    )
    lifeline.passed()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, engine)
    if config.life_fd >= 0:
        alive = answer_pulses(config.life_fd, lambda: report(Status(kind="alive")))
        loop.add_reader(config.life_fd, alive)
    ready = asyncio.Event()
    asking = asyncio.create_task(_look_after(config.url, ready, report, engine))
    try:
        status = await engine.wait()
    finally:
        asking.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine.pid, signal.SIGKILL)  # what it started and left behind
        lifeline.close()
    if status < 0:
        log.warning("%s was ended by a signal: %s", config.argv[0], signal.strsignal(-status) or -status)
    elif not ready.is_set():
        raise StartError(
            f"{config.argv[0]} for {config.worker_id} ended with status {status} before it answered; its own log above "
            "says why"
        )
    return status


def _end(engine: asyncio.subprocess.Process) -> None:
    """Gateways have let their requests finish before: it has nothing left of ours."""
    with contextlib.suppress(ProcessLookupError):
        engine.terminate()
    asyncio.get_running_loop().call_later(_KILL_AFTER_S, _kill, engine)


def _kill(engine: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(engine.pid, signal.SIGKILL)


async def _look_after(
    url: str, ready: asyncio.Event, report: Callable[[Status], None], engine: asyncio.subprocess.Process
) -> None:
    """Tells when it answers; ends one that hangs, so that it is started again."""
    num_silent = 0
    async with HttpClient(timeout_s=_LOOK_S, reuse_connections=False) as http:
        while num_silent < _MAX_SILENT:
            await asyncio.sleep(_LOOK_S if ready.is_set() else _ASK_S)
            is_well = await _is_well(http, url)
            if is_well and not ready.is_set():
                ready.set()
                report(Status(kind="ready"))
            num_silent = 0 if is_well or not ready.is_set() else num_silent + 1
    log.error("the engine has not answered for %.0f s and is ended", _MAX_SILENT * _LOOK_S)
    _kill(engine)


async def _is_well(http: HttpClient, url: str) -> bool:
    with contextlib.suppress(*CLIENT_ERRORS):
        async with http.open(Request(method="GET", url=f"{url}/health", headers={})) as response:
            return response.status == 200
    return False
