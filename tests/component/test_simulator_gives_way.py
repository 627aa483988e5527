"""The process in which the planner asks the simulator takes no core that a worker wants."""

from __future__ import annotations

import logging
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from relevo.build.role_planner import _give_way

_AUTOGROUP = Path("/proc/self/autogroup")


def _standing() -> tuple[int, int, str]:
    return os.getsid(0), os.nice(0), _AUTOGROUP.read_text() if _AUTOGROUP.exists() else ""


def test_it_is_the_least_urgent_of_all_sessions() -> None:
    """Red when it is nice within a session of its parent's only: the kernel then gives that session as much as a
    worker's."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawned, initializer=_give_way, initargs=(os.getpid(),)) as pool:
        session, niceness, autogroup = pool.submit(_standing).result(timeout=60)
    assert session != os.getsid(0) and niceness == 19
    if not autogroup:
        pytest.skip("this kernel has no autogroups")
    assert autogroup.split()[-1] == "19"


def _is_told() -> tuple[bool, bool]:
    log = logging.getLogger("relevo.gateway")
    return log.isEnabledFor(logging.WARNING), log.isEnabledFor(logging.ERROR)


def test_what_simulated_workers_warn_of_is_not_told() -> None:
    """Red when slow handoffs of a simulated world stand in a server's log as if they were its own."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawned, initializer=_give_way, initargs=(os.getpid(),)) as pool:
        assert pool.submit(_is_told).result(timeout=60) == (False, True)
