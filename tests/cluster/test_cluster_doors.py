"""Every port of a cluster's boxes that is not loopback, tried by a machine without a certificate, and by a node
that has one and lies."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from boxes import Box, Boxes, place, prompts
from clusters import answers, blocks_are_back, cluster
from machines import Machine, Network

MakeNetwork = Callable[..., Network]

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

# Says what each of several strangers to a port was told, as a list of words and numbers.
STRANGER = """
import json, os, socket, ssl, sys
host, port = sys.argv[1], int(sys.argv[2])
def told(first, tls):
    try:
        sock = socket.create_connection((host, port), 5)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            sock = context.wrap_socket(sock, server_hostname="relevo")
        sock.settimeout(10)
        sock.sendall(first)
        got = b""
        while True:
            more = sock.recv(65536)
            if not more: return ["closed", len(got)]
            got += more
            if len(got) > 100_000: return ["told", len(got)]
    except (OSError, ssl.SSLError) as error:
        return [type(error).__name__, 0]
firsts = [b"GET / HTTP/1.1\\r\\nhost: a\\r\\n\\r\\n", os.urandom(4096), b"\\xff" * 64, b""]
print(json.dumps([told(first, tls) for first in firsts for tls in (False, True)]))
"""

# With the certificate of a node: opens a stream of a purpose with words about it, and says what came back.
FORGER = """
import asyncio, json, sys
from pathlib import Path
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.member_messages import Beat, Claim, HeartbeatOf, LinkTo
from relevo.cluster.opening import Purpose
from relevo.cluster.stream import open_stream
from relevo.core.host_port import HostPort
import msgspec
ANY = msgspec.msgpack.Decoder(msgspec.Raw)
identity = NodeIdentity.load(Path(sys.argv[1]))
head, epoch, session, worker, other = HostPort.parse(sys.argv[2]), *map(int, sys.argv[3:5]), sys.argv[5], sys.argv[6]
async def said(place, purpose, about, *messages):
    try:
        async with asyncio.timeout(5):
            stream = await open_stream(place, purpose, identity=identity, about=about)
            for message in messages: stream.send(message)
            return str(bytes(await stream.receive(ANY))[:20])
    except TimeoutError: return "silence"
    except Exception as error: return type(error).__name__
async def main():
    beat = Beat(1)
    print(json.dumps({
        "older beat": await said(head, Purpose.HEARTBEAT, HeartbeatOf(epoch - 1, session), beat),
        "future beat": await said(head, Purpose.HEARTBEAT, HeartbeatOf(epoch + 1, session), beat),
        "claim without hello": await said(head, Purpose.MEMBER, b"", Claim(epoch + 1, session + 1)),
        "link as a node": await said(HostPort.parse(other), Purpose.LINK, LinkTo("g", worker, epoch, session)),
        "admin as a node": await said(head, Purpose.ADMIN, b""),
    }))
asyncio.run(main())
"""


def open_ports(machine: Machine) -> list[int]:
    """TCP ports that listen on more than loopback."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in machine.run("cat", f"/proc/net/{table}").stdout.splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, port = local.split(":")
            if state == "0A" and address not in ("0100007F", "00000000000000000000000001000000"):
                found.add(int(port, 16))
    return sorted(found)


def epochs(head: Box) -> dict[str, int]:
    return {name: node["epoch"] for name, node in head.nodes().items()}


def test_strangers_get_nothing_at_any_port(make_network: MakeNetwork, boxes: Boxes) -> None:
    """From another machine, in plain words, rubbish and TLS without a certificate. Red when a port answers more than a
    refusal, or when the cluster suffers."""
    net = make_network(4, names=("gate", "p", "d", "stranger"))
    stranger, net.machines = net.machines[3], net.machines[:3]
    head, nodes = cluster(net, boxes, "1p", "1d")
    texts, before = prompts(8), epochs(head)
    want = answers(head, texts, 4)
    num_tried = 0
    for box in (head, *nodes):
        ports = open_ports(box.machine)
        assert ports, f"{box.name} listens nowhere"
        for port in ports:
            told = stranger.run(sys.executable, "-c", STRANGER, box.machine.ipv4, str(port), timeout_s=120).stdout
            assert all(number < 1500 for _, number in json.loads(told)), (box.name, port, told)
            num_tried += 1
    net.machines.append(stranger)
    assert num_tried >= 5, "a control port each, and two for KV"
    assert answers(head, texts, 4) == want
    assert epochs(head) == before
    assert head.metric("relevo:control_port_refused_total") > 0
    blocks_are_back(boxes, head)


def test_a_node_that_lies_gets_nothing(make_network: MakeNetwork, boxes: Boxes, tmp_path: Path) -> None:
    """With a certificate of its own: heartbeats of sessions that are over, or are yet to come, a claim out of turn, a
    link to another node's worker, administration. Red when one of these is acknowledged or changes who is there."""
    net = make_network(3, names=("gate", "p", "d"))
    head, (p, d) = cluster(net, boxes, "1p", "1d")
    before, texts = epochs(head), prompts(8)
    want = answers(head, texts, 4)
    worker = next(iter(d_worker for d_worker in head.ready_workers() if d_worker.startswith("d/")))
    said: dict[str, Any] = json.loads(
        p.machine.run(
            sys.executable,
            "-c",
            FORGER,
            str(tmp_path / "p"),
            *(place(head.machine), str(before["p"]), str(1 << 32 | 1), worker, place(d.machine)),
        ).stdout
    )
    assert all(word in ("silence", "WorkerLost", "PeerRefused") for word in said.values()), said
    assert said["link as a node"] == said["admin as a node"] == "PeerRefused", said
    assert epochs(head) == before
    assert answers(head, texts, 4) == want
    blocks_are_back(boxes, head)
