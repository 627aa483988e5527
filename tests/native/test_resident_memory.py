"""A memory plan for this machine is what a worker's process comes to hold. Red when a part of it is not counted, or is
counted twice: `make plan-memory` prints the parts."""

from __future__ import annotations

import sys

import pytest
from resident_memory import MODELS, TOLERANCE, measure


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps_rollup")
@pytest.mark.parametrize("name", MODELS)
def test_a_planned_worker_holds_what_was_planned(name: str) -> None:
    found = measure(name)
    assert abs(found.error) <= TOLERANCE, found
