"""How fast KV moves between two machines on one box, beside plain sockets: `python kv_rates.py [RATE]`.

Prints bytes/s: median and best of ten times 45 MB, of one plain connection, of KV by certificates, and of KV encrypted,
and what AES-128-GCM alone does here on one core. Run it on an idle machine, as root.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machines import HERE, Machine, Network
from test_kv_links import End

sys.path.insert(0, str(HERE.parent / "contract"))
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from node_identities import TestCluster

BLOCK, COUNT, REPEATS = 360 * 1024, 125, 10
TOTAL = BLOCK * COUNT
RECEIVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], 7000)); print("up", flush=True)
sock, _ = listener.accept(); view = memoryview(bytearray(int(sys.argv[2])))
while True:
    rest = view
    while rest:
        count = sock.recv_into(rest)
        if not count: sys.exit()
        rest = rest[count:]
    sock.sendall(b"k")
"""
SENDER = """
import socket, sys, time
sock = socket.create_connection((sys.argv[1], 7000)); content = bytearray(int(sys.argv[2]))
for _ in range(int(sys.argv[3])):
    started = time.perf_counter(); sock.sendall(content); sock.recv(1); print(time.perf_counter() - started, flush=True)
"""


def plain(p: Machine, d: Machine) -> list[float]:
    with d.start(sys.executable, "-c", RECEIVER, d.ipv4, str(TOTAL), stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        told = p.run(sys.executable, "-c", SENDER, d.ipv4, str(TOTAL), str(REPEATS + 2)).stdout
    return [float(line) for line in told.split()][2:]


def handed_over(cluster: TestCluster, p: Machine, d: Machine, encryption: str, streams: int) -> list[float]:
    ends = [
        End(cluster, at, name, blocks=COUNT, block_bytes=BLOCK, encryption=encryption, streams=streams)
        for at, name in ((p, "p/w"), (d, "d/w"))
    ]
    sender, receiver = ends
    sender("fill", 1)
    receiver("fill", 2)
    blocks, samples = list(range(COUNT)), []
    for number in range(REPEATS + 4):
        receiver("reserve", str(number), blocks)
        samples.append(sender("timed", receiver.target, receiver("address"), str(number), blocks))
        receiver("release", str(number), blocks)
    assert sender("digest", blocks) == receiver("digest", blocks)
    for end in ends:
        end.process.kill()
        end.process.wait()
    return samples[4:]


def cipher() -> float:
    key, piece, into = AESGCM(bytes(16)), bytearray(256 * 1024), bytearray(256 * 1024 + 16)
    best = 1.0
    for _ in range(400):
        started_s = time.perf_counter()
        key.encrypt_into(bytes(12), piece, None, into)
        best = min(best, time.perf_counter() - started_s)
    return best


def main() -> None:
    cluster = TestCluster(Path(tempfile.mkdtemp()))
    rate = sys.argv[1] if len(sys.argv) > 1 else None
    with Network(2, rate=rate) as net:
        p, d = net.machines
        rows = {"plain sockets": plain(p, d)}
        for encryption in ("plain", "encrypted"):
            for streams in (1, 2, 4):
                rows[f"KV {encryption}, {streams} streams at most"] = handed_over(cluster, p, d, encryption, streams)
        for name, samples in rows.items():
            median, best = TOTAL / statistics.median(samples) / 1e9, TOTAL / min(samples) / 1e9
            sys.stdout.write(f"{name:32} median {median:5.2f} GB/s, best {best:5.2f}\n")
    sys.stdout.write(f"AES-128-GCM alone, one core: {256 * 1024 / cipher() / 1e9:.2f} GB/s\n")


if __name__ == "__main__":
    main()
