"""`relevo serve MODEL`: start everything, print one URL, run until Ctrl-C.

Imports what it takes to read flags and to listen. What plans and supervises is imported while the gateway's process,
which has most to import, does so on another core.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator

from relevo.build.listening import open_listener
from relevo.cli.options import with_settings_flags
from relevo.environment import read_environment
from relevo.settings import Settings
from relevo.telemetry.log import configure
from relevo.telemetry.progress import be_quiet
from relevo.wire.started_process import StartedProcess, start_process


def serve(settings: Settings) -> None:
    """Serve a model over an OpenAI-compatible API, prefill and decode on separate workers."""
    configure(settings.log_level, "relevo")
    be_quiet(settings.quiet)
    for note in read_environment(os.environ, Settings.model_fields).notes:
        logging.getLogger("relevo").warning("environment: %s", note)
    with contextlib.ExitStack() as owned:
        listener = owned.enter_context(open_listener(settings.host, settings.port))
        loop = owned.enter_context(asyncio.Runner())
        waiting = owned.enter_context(_gateway_process(listener, loop))

        from relevo.cli.run_server import run_server

        run_server(settings, listener, loop, waiting)


@contextlib.contextmanager
def _gateway_process(listener: socket.socket, loop: asyncio.Runner) -> Iterator[list[StartedProcess]]:
    """Ended without having been told anything where no server comes of it."""
    try:
        waiting = [loop.run(start_process("gateway", (listener.fileno(),)))]
    except (OSError, RuntimeError):
        waiting = []  # the supervisor tries again, and says why that cannot be done
    try:
        yield waiting
    finally:
        for each in waiting:
            loop.run(each.end())


command = with_settings_flags(serve)
