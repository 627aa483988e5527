"""A real server that hands KV over by TCP: a stranger finds the ports, gets nothing, and service goes on."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from pathlib import Path

from stack import Stack, descendants, stack

PROMPT = [(i * 31) % 256 for i in range(200)]
HELD = 300  # connections a stranger holds at once


def descriptors(pid: int) -> dict[int, tuple[str, int]]:
    """What each descriptor of a process refers to, and its flags."""
    found: dict[int, tuple[str, int]] = {}
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            info = Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text()
            flags = re.search(r"flags:\s+([0-7]+)", info)
            assert flags, info
            found[int(fd.name)] = (str(fd.readlink()), int(flags[1], 8))
    return found


def listening_ports(pid: int) -> set[int]:
    """TCP ports on which a process listens, from what the kernel says of its descriptors."""
    targets = [target for target, _ in descriptors(pid).values()]
    inodes = {found[1] for target in targets if (found := re.match(r"socket:\[(\d+)\]", target))}
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {int(line[1].split(":")[1], 16) for line in lines if line[3] == "0A" and line[9] in inodes}


def num_threads(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())


def everything(sock: socket.socket) -> bytes:
    received = b""
    try:
        while data := sock.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def refused(server: Stack) -> float:
    return server.metric("relevo:refused_connections_total", door="kv")


def test_a_stranger_at_the_kv_port_gets_nothing_and_service_goes_on() -> None:
    flags = ("--topology", "1p1d", "--kv-transport", "tcp", "--num-kv-blocks", "256", "--max-model-len", "1024")
    with stack("fake", *flags) as server:
        expected = server.complete(PROMPT, max_tokens=8, ignore_eos=True)["choices"]
        pids = server.pids()
        ports = {name: listening_ports(pid) for name, pid in pids.items()}
        assert all(len(found) == 1 for found in ports.values()), "a worker has one port, and it is for KV"
        for name, pid in pids.items():
            (port,) = ports[name]
            before = num_threads(pid)
            held = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(HELD)]
            for said in (b"GET / HTTP/1.1\r\n\r\n" + bytes(40), b"RLKV\x01\x00\x00\x00" + b"\xff" * 60):
                with socket.create_connection(("127.0.0.1", port), 30) as sock:
                    sock.sendall(said)
                    assert everything(sock) == b""
            assert num_threads(pid) == before, "a stranger costs no thread"
            changed = [*PROMPT[:-1], ord(name[0])]
            assert server.complete(changed, max_tokens=8, ignore_eos=True)["usage"]["completion_tokens"] == 8
            for sock in held:
                sock.close()
        assert server.complete(PROMPT, max_tokens=8, ignore_eos=True)["choices"] == expected
        assert server.pids() == pids
        deadline_s = time.monotonic() + 60  # a worker's counters come with its next report
        while refused(server) <= 2 * (HELD - 100):
            assert time.monotonic() < deadline_s, "refused connections are not counted"
            time.sleep(0.05)
        lines = [line for line in server.log if "a KV connection was refused" in line]
        assert 1 <= len(lines) <= 20, "said, and not once per connection"
        for pid in pids.values():
            told = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            assert not re.search(rb"[0-9a-f]{64}", told), "no secret where other processes look"
        os.kill(pids["decode-0"], signal.SIGKILL)  # a new incarnation, the same secret
        assert server.complete(PROMPT[::-1], max_tokens=8, ignore_eos=True)["usage"]["completion_tokens"] == 8
        server.wait_ready()
        server.wait_idle()


def test_processes_hold_what_they_need_and_pass_nothing_on() -> None:
    """Red if the KV's memory is in a process that serves HTTP, or if what a child was given outlives an exec of its."""
    with stack("fake", "--topology", "1p1d", "--num-kv-blocks", "64", "--max-model-len", "256") as server:
        workers = set(server.pids().values())
        for pid in descendants(server.process.pid):
            held = descriptors(pid)
            for fd, (target, flags) in held.items():
                assert fd <= 2 or flags & os.O_CLOEXEC, f"{pid} passes on {target}"
            assert any("relevo-arena" in target for target, _ in held.values()) == (pid in workers)
