"""Two heads, and a node whose disk is gone and whose clock was set back: its last epoch is known to one head alone, and
it comes back at the other.

Red when it is let in under an epoch that was used already: what its former incarnation still sends would be taken for
its own. And when a head that has gone keeps nodes from the others.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from loopback_boxes import command, free_port, until

from relevo.cluster.enroller import found_cluster
from relevo.cluster.enrolment import enrol
from relevo.cluster.epoch_file import ACCEPTED_EPOCHS
from relevo.cluster.identity_folder import write_private
from relevo.cluster.peer import NodeRole
from relevo.core.host_port import HostPort

USED_EPOCH = 7_000_000_000  # far beyond the seconds of today: as if the clock had been set back since


def test_a_node_is_given_no_epoch_that_another_head_has_seen(tmp_path: Path) -> None:
    enroller = found_cluster(tmp_path / "A", "a")
    write_private(tmp_path / "A" / ACCEPTED_EPOCHS, json.dumps({"b": USED_EPOCH}).encode())
    a, b, c = (f"127.0.0.1:{free_port()}" for _ in range(3))
    first = ("serve", "fake", "--topology", "none", "--cluster", a, "--cluster-dir", "A", "--data-dir", "data-a",
             "--port", str(free_port()))  # fmt: skip
    second = ("serve", "fake", "--topology", "none", "--cluster", c, "--cluster-dir", "C", "--data-dir", "data-c",
              "--port", str(free_port()), "--join", a)  # fmt: skip
    node = ("join", c, "--cluster-dir", "B", "--listen", b, "--role", "unified", "--data-dir", "data-b")

    def epochs_at(log: str) -> list[int]:
        return [int(found) for found in re.findall(r"\bb joined \(epoch (\d+)", (tmp_path / log).read_text())]

    def enrolled(folder: str, name: str, role: NodeRole) -> None:
        token = enroller.new_token(name=name, role=role)
        asyncio.run(enrol([HostPort.parse(a)], token, folder=tmp_path / folder, name=name, role=role))

    with command(tmp_path, "a.log", *first) as head:
        until(lambda: "ready:" in (tmp_path / "a.log").read_text(), tmp_path, "the first head")
        enrolled("B", "b", NodeRole.NODE)
        enrolled("C", "c", NodeRole.HEAD)
        with command(tmp_path, "c.log", *second):
            with command(tmp_path, "b.log", *node):
                until(lambda: epochs_at("c.log"), tmp_path, "the node is taken in")
            assert epochs_at("c.log")[0] > USED_EPOCH
            num_before = len(epochs_at("c.log"))
            head.kill()
            head.wait()
            with command(tmp_path, "b.log", *node):
                until(lambda: len(epochs_at("c.log")) > num_before, tmp_path, "the head that is left takes it in")
            assert epochs_at("c.log")[-1] > epochs_at("c.log")[0]
