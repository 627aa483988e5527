"""Entry point of the processes that the supervisor starts: `python -m relevo.cli.child worker|gateway`.

Reads its configuration as JSON from stdin, dies with its parent, and reports a failed start in one sentence.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys

import msgspec

from relevo.build.about_model import about_model
from relevo.build.configs import GatewayConfig, WorkerConfig
from relevo.core.errors import StartError
from relevo.wire.status import EXIT_START_ERROR, Status

_PR_SET_PDEATHSIG = 1


def main() -> None:
    gc.disable()  # until the process serves: what a start makes is no garbage, and looking through it is a tenth of it
    kind = sys.argv[1]
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides when to end
    text = sys.stdin.buffer.read()
    config = msgspec.json.decode(text, type=WorkerConfig if kind == "worker" else GatewayConfig)
    report = StatusPipe(config.status_fd)
    try:
        if isinstance(config, WorkerConfig):
            from relevo.build.worker import run_worker  # imports what this process needs, not what others do

            with about_model(config.section):
                run_worker(config, report)
        else:
            from relevo.build.gateway import run_gateway

            run_gateway(config, report)
    except StartError as error:
        report(Status(kind="failed", message=error.message))
        sys.exit(EXIT_START_ERROR)


class StatusPipe:
    """Writes one JSON line per status; a supervisor that is gone is no reason to fail."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_inheritable(fd, False)

    def __call__(self, status: Status) -> None:
        if self._fd < 0:
            return
        try:
            os.write(self._fd, msgspec.json.encode(status) + b"\n")
        except OSError:
            os.close(self._fd)
            self._fd = -1  # the number may be another file's from here on


def _die_with_parent() -> None:
    """The kernel ends this process when the supervisor dies, however it dies (Linux)."""
    if sys.platform != "linux":
        return
    parent_pid = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("the supervisor is gone")


if __name__ == "__main__":
    main()
