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


def main() -> None:
    be_quiet()  # what is under way here, the supervisor shows
    gc.disable()  # until the process serves: what a start makes is no garbage, and looking through it is a tenth of it
    kind = sys.argv[1]
    end_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides when to end
    text = sys.stdin.buffer.read()
    config = msgspec.json.decode(text, type=_CONFIGS[kind])
    report = StatusPipe(config.status_fd)
    try:
        if isinstance(config, WorkerConfig):
            from relevo.build.worker import run_worker  # imports what this process needs, not what others do

            with about_model(config.section):
                run_worker(config, report)
        elif isinstance(config, RankConfig):
            from relevo.build.rank import run_rank

            run_rank(config, report)
        elif isinstance(config, NodeConfig):
            from relevo.build.node import run_node

            run_node(config, report)
        elif isinstance(config, EngineConfig):
            from relevo.build.engine_process import run_engine

            with about_model(config.section):
                run_engine(config, report)
        else:
            from relevo.build.gateway import run_gateway

            run_gateway(config, report)
    except StartError as error:
        report(Status(kind="failed", message=error.message))
        sys.exit(EXIT_START_ERROR)
    except Exception as error:
        found = scarcity(error)
        if found is None or report.was_ready:
            raise
        report(Status(kind="failed", message=f"{kind} cannot be started ({found.reason}); {found.fix}"))
        sys.exit(EXIT_START_ERROR)


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
