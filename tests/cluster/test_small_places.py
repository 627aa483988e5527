"""A machine as containers have it: next to no shared memory. Red when a server needs any that has a name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from boxes import Boxes, prompts
from clusters import answers
from machines import Network

pytestmark = pytest.mark.timeout(400)


def test_a_server_needs_no_shared_memory(make_network: Callable[..., Network], boxes: Boxes) -> None:
    (machine,) = make_network(1).machines
    machine.mount_tmpfs(2**16)
    server = boxes.alone(machine, "--topology", "1p1d", "--share-cores")
    boxes.until(lambda: len(server.ready_workers()) == 2, what="both workers")
    assert len(answers(server, prompts(16), 8)) == 16
    assert machine.run("ls", "/dev/shm").stdout == ""
