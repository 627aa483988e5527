"""KV between two machines whose network fails in the ways that networks do: what was promised holds, and what cannot be
had is said in a sentence with the address, in seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machines import HERE, Machine, Network

sys.path.insert(0, str(HERE.parent / "contract"))
from node_identities import TestCluster

MakeNetwork = Callable[..., Network]
BLOCK = 64 * 1024
PORT = 7100


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> TestCluster:
    return TestCluster(tmp_path_factory.mktemp("cluster"))


class End:
    """`kv_end.py` on a machine."""

    def __init__(
        self,
        cluster: TestCluster,
        machine: Machine,
        worker: str,
        epoch: int = 1,
        blocks: int = 64,
        block_bytes: int = BLOCK,
        encryption: str = "encrypted",
        streams: int = 4,
    ) -> None:
        node = worker.partition("/")[0]
        folder = cluster.folder / node
        if not folder.exists():
            cluster.node_folder(node)
        self.worker, self.epoch = worker, epoch
        sizes = (str(block_bytes), str(blocks), encryption, str(streams))
        self.process = machine.start(
            sys.executable,
            str(HERE / "kv_end.py"),
            *(str(folder), worker, str(epoch), machine.address, str(PORT), *sizes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.took_s = 0.0

    @property
    def target(self) -> list[Any]:
        return [self.worker, self.epoch]

    def __call__(self, what: str, *arguments: Any) -> Any:
        self.ask(what, *arguments)
        return self.hear()

    def ask(self, what: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([what, *arguments]).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.worker} has ended"
        answer, self.took_s = json.loads(line)
        return answer

    def hands_over(self, other: End, address: str, name: str, blocks: list[int], timeout_s: float = 20.0) -> str:
        other("reserve", name, blocks)
        self("begin", other.target, address, name, blocks)
        told = self("end", timeout_s).get(name, "nothing")
        self("cancel", other.target, name, blocks)
        other("release", name, blocks)
        return str(told)


def test_a_port_that_is_late_filtered_or_on_a_way_without_large_packets(
    make_network: MakeNetwork, cluster: TestCluster
) -> None:
    """Red if a link that will not carry KV looks as if it would, or if it is not found again once it does."""
    net = make_network(2, families=(6,))
    p, d = End(cluster, net.machines[0], "p/w"), None
    address = f"tcp:[{net.machines[1].ipv6}]:{PORT}/d"
    early = p("probe", ["d/w", 1], address, 2.0)
    assert "no connection to" in early["failure"]
    d = End(cluster, net.machines[1], "d/w")
    assert d("address") == address
    net.filter_port(net.machines[1], PORT)
    filtered = p("probe", d.target, address, 0.7)["failure"]
    assert filtered.startswith(f"timed out at {net.machines[1].ipv6} port {PORT}")
    net.heal()
    net.drop_larger_than(1280)
    assert "MTU" in p("probe", d.target, address, 1.0)["failure"]
    net.heal()
    found = p("probe", d.target, address, 5.0)
    assert found["failure"] == ""
    assert found["mss"] <= 1500 - 60
    p("fill", 3)
    assert p.hands_over(d, address, "a", list(range(32))) == "sealed"
    assert d("digest", list(range(32))) == p("digest", list(range(32)))


def test_connections_that_the_network_forgot_cost_no_handoff(make_network: MakeNetwork, cluster: TestCluster) -> None:
    """Red if the burst after a quiet time is written into the void for half a minute."""
    net = make_network(2)
    p, d = End(cluster, net.machines[0], "p/w"), End(cluster, net.machines[1], "d/w")
    address = d("address")
    assert p.hands_over(d, address, "a", list(range(8))) == "sealed"
    net.forget_flows()
    assert p.hands_over(d, address, "b", list(range(8))) == "sealed"  # sent again, over a fresh connection


def test_a_receiver_that_dies_or_begins_anew_fails_its_transfers_and_no_others(
    make_network: MakeNetwork, cluster: TestCluster
) -> None:
    """Red if an address stands for a worker: who listens there later would be sent what was meant for the dead one."""
    net = make_network(3, rate="100mbit")
    at_p, at_d, at_e = net.machines
    p, d, e = End(cluster, at_p, "p/w"), End(cluster, at_d, "d/w"), End(cluster, at_e, "e/w")
    address, other = d("address"), e("address")
    blocks = list(range(64))
    for end in (d, e):
        end("reserve", "x", blocks)
    p("begin", d.target, address, "x", blocks)
    d.process.kill()
    d.process.wait()
    told = p("end", 20.0)["x"]
    assert told.startswith("failed")
    p("cancel", d.target, "x", blocks)
    assert p.hands_over(e, other, "x", blocks) == "sealed"
    again = End(cluster, at_d, "d/w", epoch=2)
    assert again("address") == address
    again("reserve", "late", blocks)
    p("begin", d.target, address, "late", blocks)  # as if this sender had not heard of it
    assert p("end", 20.0)["late"].startswith("stale")
    p("cancel", d.target, "late", blocks)
    assert p.hands_over(again, address, "new", blocks) == "sealed"
    at_d.kill()
    assert p.hands_over(e, other, "y", blocks) == "sealed"


def test_aborts_on_a_slow_link_let_go_soon_and_leave_the_link_good(
    make_network: MakeNetwork, cluster: TestCluster
) -> None:
    """Red if an abort waits for megabytes that were handed to the network before."""
    net = make_network(2)
    p, d = End(cluster, net.machines[0], "p/w"), End(cluster, net.machines[1], "d/w")
    address, blocks = d("address"), list(range(64))
    net.set_rate("10mbit")
    assert p.hands_over(d, address, "first", blocks[:16]) == "sealed"  # the link learns its rate
    before = d("connections")
    for number in range(3):
        d("reserve", str(number), blocks)
        p("begin", d.target, address, str(number), blocks)
        p("end", 0.2)
        d("release", str(number), blocks)
        p("cancel", d.target, str(number), blocks)
        assert p.took_s < 2.0, "the step loop stands still meanwhile"
    assert p.hands_over(d, address, "last", blocks[:8]) == "sealed"
    assert d("connections")[0] >= before[0]


def test_memory_for_blocks_needs_no_room_in_dev_shm(make_network: MakeNetwork, cluster: TestCluster) -> None:
    """Red if blocks lie in a file system that containers make small: the bus error comes in the midst of a step."""
    (machine,) = make_network(1).machines
    machine.mount_tmpfs(64 * 1024)
    end = End(cluster, machine, "p/w", blocks=256)
    end("fill", 1)
    assert len(end("digest", list(range(256)))) == 64
    assert not list(Path(f"/proc/{end.process.pid}/root/dev/shm").iterdir())
