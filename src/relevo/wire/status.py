"""What a child process tells its supervisor: one JSON line per status, and its exit status."""

from __future__ import annotations

import msgspec

EXIT_START_ERROR = 3  # a child that cannot start for a reason the operator can mend


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line on a child's status pipe."""

    kind: str  # "progress", "ready", "alive", "failed", "kill", "note", "stop"
    message: str = ""
    num_done: int = 0
    num_total: int = 0
    worker_id: str = ""
    epoch: int = 0
