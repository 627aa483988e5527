"""Runs the operator's command of `--scale-command`: no shell, its output in the server's log, and its whole group ended
with it where it takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from relevo.environment import PREFIX


async def run_program(words: Sequence[str], variables: Mapping[str, str]) -> int:
    """Its exit status. It has the server's environment without settings of Relevo, which hold keys, and would be those
    of a `relevo join` that it starts. Cancelled, it is ended. Raises OSError where it cannot be started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        stderr=sys.stderr.fileno(),
        env={**kept, **variables},
        start_new_session=True,
    )
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
