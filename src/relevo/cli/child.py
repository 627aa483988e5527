"""Entry point of the processes that the supervisor starts: `python -P -m relevo.cli.child
worker|engine|gateway|node LIFE_FD`, and of those that a worker starts: `... rank LIFE_FD`.

Reads its configuration as JSON from stdin, ends with its parent (`wire.leash`), and reports a failed start in one
sentence.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from relevo.build.about_model import about_model
from relevo.build.configs import EngineConfig, GatewayConfig, NodeConfig, RankConfig, WorkerConfig
from relevo.core.errors import StartError
from relevo.telemetry.progress import be_quiet
from relevo.wire.child_process import scarcity
from relevo.wire.leash import end_with_parent
from relevo.wire.status import EXIT_START_ERROR, Status

_CONFIGS: dict[str, type[WorkerConfig | RankConfig | EngineConfig | NodeConfig | GatewayConfig]] = {
    "worker": WorkerConfig,
    "rank": RankConfig,
    "engine": EngineConfig,
    "node": NodeConfig,
    "gateway": GatewayConfig,
}
_RUNS = {
    "worker": ("relevo.build.worker", "run_worker"),
    "rank": ("relevo.build.rank", "run_rank"),
    "engine": ("relevo.build.engine_process", "run_engine"),
    "node": ("relevo.build.node", "run_node"),
    "gateway": ("relevo.build.gateway", "run_gateway"),
}


def main() -> None:
    be_quiet()  # what is under way here, the supervisor shows
    gc.disable()  # until the process serves: what a start makes is no garbage, and looking through it is a tenth of it
    kind = sys.argv[1]
    end_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides when to end
    run = _run_of(kind)  # its starter may still be deciding what it is to do
    text = sys.stdin.buffer.read()
    if not text:
        sys.exit()  # nothing: its starter has found out that no server can be started
    config = msgspec.json.decode(text, type=_CONFIGS[kind])
    report = StatusPipe(config.status_fd)
    section = config.section if isinstance(config, WorkerConfig | EngineConfig) else ""
    try:
        with about_model(section):
            run(config, report)
    except StartError as error:
        report(Status(kind="failed", message=error.message))
        sys.exit(EXIT_START_ERROR)
    except Exception as error:
        found = scarcity(error)
        if found is None or report.was_ready:
            raise
        report(Status(kind="failed", message=f"{kind} cannot be started ({found.reason}); {found.fix}"))
        sys.exit(EXIT_START_ERROR)


def _run_of(kind: str) -> Callable[[Any, StatusPipe], None]:
    """Imports what a process of this kind needs, not what others do. What fails of that fails when it is called, where
    it can be reported."""
    module, name = _RUNS[kind]
    try:
        run: Callable[[Any, StatusPipe], None] = getattr(import_module(module), name)
    except Exception as error:
        failure = error

        def run(config: Any, report: StatusPipe) -> None:
            raise failure

    return run


class StatusPipe:
    """Writes one JSON line per status; a supervisor that is gone is no reason to fail."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.was_ready = False
        os.set_inheritable(fd, False)

    def __call__(self, status: Status) -> None:
        self.was_ready = self.was_ready or status.kind == "ready"
        if self._fd < 0:
            return
        try:
            os.write(self._fd, msgspec.json.encode(status) + b"\n")
        except OSError:
            os.close(self._fd)
            self._fd = -1  # the number may be another file's from here on


if __name__ == "__main__":
    main()
